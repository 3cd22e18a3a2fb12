// Bits of states that change while no program writes them, and programs that are run twice.

#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <string>

#include "core/base/error.h"
#include "core/base/process.h"
#include "core/graph/builder.h"
#include "core/partition/partition.h"
#include "core/runtime/executor.h"
#include "tests/support/allocations.h"
#include "tests/support/catch.h"
#include "tests/support/depth.h"
#include "tests/support/model_cases.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Matchers::Contains;

namespace {

/// A model whose states are watched.
class WatchedMachine {
 public:
  WatchedMachine(const ModelCase& model, const char* device, int threads)
      : model_(model),
        programs_(
            partition::programs_of(model.graph, partition::split(model.graph, {}),
                                   {.device = device::Device::find(device), .threads = threads, .watches = true})),
        executor_(programs_, device::Device::find(device)) {
    const States states = first_states(model.graph);
    for (const graph::StateId s : states.ids()) {
      write_view(states[s], executor_.state(s));
    }
    executor_.watch();
  }

  /// Runs all calls of some steps.
  void run(std::int64_t steps) {
    for (const Call& call : calls_of(model_, steps)) {
      const std::size_t program = executor_.find(call.function->name, call.function->rows);
      for (std::size_t i = 0; i < call.inputs.size(); ++i) {
        write_view(call.inputs[i], executor_.input(program, call.function->inputs[i].name));
      }
      executor_.begin_step(call.scalars.step);
      executor_.run(program, call.scalars);
    }
  }

  void flip(graph::StateId state, std::size_t byte) {
    static_cast<std::byte*>(executor_.state(state).data)[byte] ^= std::byte{4};
  }

  [[nodiscard]] runtime::Executor& executor() { return executor_; }

 private:
  const ModelCase& model_;
  partition::Programs programs_;
  runtime::Executor executor_;
};

/// The message of the damage that `act` finds, or "".
template <typename Act>
std::string damage_found_by(const Act& act) {
  try {
    act();
  } catch (const Error& error) {
    REQUIRE(error.code() == ErrorCode::damaged);
    return error.message();
  }
  return "";
}

bool lasts(graph::StateKind kind) {
  return kind != graph::StateKind::gradient && kind != graph::StateKind::metric && kind != graph::StateKind::output;
}

}  // namespace

TEST_CASE("healthy states are never taken for damaged ones", "[runtime]") {
  for (const char* device : {"cpu", "reference"}) {
    for (const ModelCase& model : model_cases()) {
      INFO(device << ", " << model.name);
      WatchedMachine machine(model, device, 2);
      machine.run(2);
      CHECK_NOTHROW(machine.executor().verify_states());
    }
  }
}

TEST_CASE("a bit flipped between two steps is found by the next step, and by verify_states()", "[runtime]") {
  for (const char* device : {"cpu", "reference"}) {
    for (const ModelCase& model : training_cases(graph::Remat::none)) {
      int lasting = 0;
      for (const graph::StateId state : model.graph.states.ids()) {
        const graph::State& about = model.graph.states[state];
        if (!lasts(about.kind) || lasting++ % depth(1, 1, 7) != 0) {
          continue;
        }
        INFO(device << ", " << model.name << ", " << about.name);
        WatchedMachine machine(model, device, 2);
        machine.run(1);
        const std::size_t bytes = machine.executor().state(state).bytes();
        for (const std::size_t byte : {std::size_t{0}, bytes - 1}) {
          machine.flip(state, byte);
          CHECK_THAT(damage_found_by([&] { machine.executor().verify_states(); }),
                     Contains("step 1: bits of " + about.name + " (") &&
                         Contains("in the memory of rank 0 on host " + host_name() + ": "));
          machine.flip(state, byte);
        }
        machine.executor().verify_states();
        machine.flip(state, bytes / 2);
        CHECK_THAT(damage_found_by([&] { machine.run(1); }), Contains("bits of " + about.name + " ("));
      }
    }
  }
}

TEST_CASE("a step that is watched allocates nothing", "[runtime]") {
  const std::vector<ModelCase> models = training_cases(graph::Remat::none);
  WatchedMachine machine(models.front(), "cpu", 2);
  machine.run(1);
  const std::size_t update = machine.executor().find(graph::Role::once);

  const std::uint64_t before = allocations();
  machine.executor().run(update, device::Scalars{.step = 1, .learning_rate = 0.1});
  machine.executor().verify_states();
  const std::uint64_t allocated = allocations() - before;

  CHECK(allocated == 0);
}

namespace {

/// A kernel that copies its operand, plus an error that grows from call to call.
struct Growing final : device::AddedKernel {
  explicit Growing(float& of) : error(of) {}

  void run(const device::KernelCall& call) const override {
    const auto* const from = static_cast<const float*>(call.inputs[0].data);
    auto* const to = static_cast<float*>(call.outputs[0].data);
    for (std::int64_t i = 0; i < call.outputs[0].elements(); ++i) {
      to[i] = from[i] + error;
    }
    error *= 2;
  }
  [[nodiscard]] std::size_t scratch_bytes(const graph::OpShape&) const override { return 0; }
  [[nodiscard]] std::shared_ptr<void> prepare(const graph::OpShape&) const override { return nullptr; }

  float& error;
};

}  // namespace

TEST_CASE("a program run twice reports the first state whose bits differ", "[runtime]") {
  static float error = 0;
  graph::add_op({.name = "test.faulty", .rule = [](const graph::Attributes&, const std::vector<graph::TensorType>&) {
                   return graph::parse_rule("a b -> a b");
                 }});
  device::add_kernel("cpu", "test.faulty", std::make_unique<Growing>(error));
  graph::Graph graph;
  graph.states.push_back({.name = "right", .type = {}, .kind = graph::StateKind::metric});
  graph.states.push_back({.name = "wrong", .type = {}, .kind = graph::StateKind::metric});
  graph::FunctionBuilder builder(graph, "micro", graph::Role::repeated, 2);
  const graph::ValueId x = builder.input("x", {graph::DType::f32, {2, 3}, {"batch", "e"}});
  builder.write(graph.find_state("right"), builder.call("sum_all", {x}, {{"scale", 1.0}}),
                graph::StateWrite::Mode::accumulate);
  builder.write(graph.find_state("wrong"),
                builder.call("sum_all", {builder.call("test.faulty", {x})}, {{"scale", 1.0}}),
                graph::StateWrite::Mode::accumulate);
  builder.finish();
  const device::Device& cpu = device::Device::find("cpu");
  runtime::Executor executor(partition::programs_of(graph, cpu, 2), cpu);
  executor.expect_twice();
  const std::size_t program = executor.find("micro", 2);
  const auto refill = [&] {
    const device::TensorView input = executor.input(program, "x");
    std::memset(input.data, 0, input.bytes());
  };
  refill();
  const device::Scalars scalars;

  CHECK(executor.run_twice(program, {&scalars, 1}, refill) == nullptr);

  error = 1;
  const partition::Buffer* const differs = executor.run_twice(program, {&scalars, 1}, refill);
  REQUIRE(differs != nullptr);
  CHECK(differs->name == "wrong");
}
