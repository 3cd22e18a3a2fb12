// An executor on a device that fuses everything that it is offered.

#include <string>
#include <utility>
#include <vector>

#include "core/partition/partition.h"
#include "core/runtime/executor.h"
#include "tests/support/catch.h"
#include "tests/support/model_cases.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

/// Kernels that run one after the other.
struct FusedKernels final : device::PreparedKernel {
  struct Part {
    const device::Kernel* kernel;
    const graph::Attributes* attributes;
    std::vector<device::TensorView> inputs;
    std::vector<device::TensorView> outputs;
    std::span<std::byte> scratch;
    std::shared_ptr<void> prepared;
  };
  device::Kernel through;
  std::vector<Part> parts;
  int* all_runs = nullptr;

  void add(const device::PreparedKernel& other) {
    if (const auto* const fused = dynamic_cast<const FusedKernels*>(&other)) {
      parts = fused->parts;
      return;
    }
    parts.push_back({other.kernel, other.attributes, other.inputs, other.outputs, other.scratch, other.prepared});
  }
  static void run(const device::KernelCall& call) {
    const auto& fused = *static_cast<const FusedKernels*>(call.prepared);
    ++*fused.all_runs;
    CHECK_FALSE(call.accumulate);
    for (const Part& part : fused.parts) {
      device::run_kernel(*part.kernel, {.attributes = *part.attributes,
                                        .inputs = part.inputs,
                                        .outputs = part.outputs,
                                        .scratch = part.scratch,
                                        .scalars = call.scalars,
                                        .threads = call.threads,
                                        .prepared = part.prepared.get(),
                                        .stream = call.stream});
    }
  }
};

/// The cpu, as a device that fuses kernels.
class FusingDevice final : public device::Device {
 public:
  FusingDevice() : Device("fusing", "cpu"), cpu_(device::Device::find("cpu")) {}
  [[nodiscard]] device::DeviceFacts facts() const override { return cpu_.facts(); }
  [[nodiscard]] bool is_addressable() const noexcept override { return true; }
  [[nodiscard]] std::shared_ptr<const device::Memory> allocate(std::uint64_t bytes) const override {
    return cpu_.allocate(bytes);
  }
  [[nodiscard]] std::unique_ptr<device::Queue> open_queue(device::Threads& threads) const override {
    return cpu_.open_queue(threads);
  }
  [[nodiscard]] std::unique_ptr<const device::PreparedKernel> fuse(const device::PreparedKernel& first,
                                                                   const device::PreparedKernel& next) const override {
    ++offered;
    auto made = std::make_unique<FusedKernels>();
    made->add(first);
    made->add(next);
    made->through = {.run = FusedKernels::run, .op = "fused"};
    made->kernel = &made->through;
    made->attributes = first.attributes;
    made->all_runs = &runs;
    made->prepared = std::shared_ptr<void>(std::shared_ptr<void>(), made.get());
    return made;
  }

  mutable int offered = 0;
  mutable int runs = 0;  ///< runs of fused kernels

 private:
  const device::Device& cpu_;
};

/// Results of some training steps: states, and the times of ops.
struct Trained {
  std::vector<std::vector<double>> states;
  std::vector<runtime::OpTime> times;
};

Trained train(const ModelCase& model, const device::Device& device, bool checked = false) {
  runtime::Executor executor(partition::programs_of(model.graph, device, 1), device);
  const States first = first_states(model.graph);
  for (const graph::StateId s : first.ids()) {
    write_view(first[s], executor.state(s));
  }
  executor.start_profile();
  for (const Call& call : calls_of(model, 3)) {
    const std::size_t program = executor.find(call.function->name, call.function->rows);
    for (std::size_t i = 0; i < call.inputs.size(); ++i) {
      write_view(call.inputs[i], executor.input(program, call.function->inputs[i].name));
    }
    if (checked) {
      CHECK_FALSE(executor.run_checked(program, call.scalars).has_value());
    } else {
      executor.run(program, call.scalars);
    }
  }
  Trained trained{.states = {}, .times = executor.profile()};
  for (const graph::StateId s : first.ids()) {
    trained.states.push_back(read_view(model.graph.states[s].type, executor.state(s)).values);
  }
  return trained;
}

std::int64_t flops_of(const Trained& trained) {
  std::int64_t sum = 0;
  for (const runtime::OpTime& time : trained.times) {
    sum += time.flops;
  }
  return sum;
}

}  // namespace

TEST_CASE("programs with all possible kernels fused have the same bits", "[runtime]") {
  for (const ModelCase& model : model_cases()) {
    INFO(model.name);
    const Trained expected = train(model, device::Device::find("cpu"));
    const FusingDevice fusing;

    const Trained found = train(model, fusing);

    CHECK(found.states == expected.states);
    CHECK(fusing.offered > 0);
    CHECK(fusing.runs > 0);
    CHECK(flops_of(found) == flops_of(expected));
  }
}

TEST_CASE("a checked run runs every kernel by itself", "[runtime]") {
  const ModelCase model = model_cases().front();
  const FusingDevice fusing;

  const Trained found = train(model, fusing, true);

  CHECK(fusing.offered > 0);
  CHECK(fusing.runs == 0);
  CHECK(found.states == train(model, fusing).states);
  CHECK(fusing.runs > 0);
}
