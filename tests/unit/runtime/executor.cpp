#include "core/runtime/executor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/memory/layout.h"
#include "core/partition/partition.h"
#include "tests/support/allocations.h"
#include "tests/support/catch.h"
#include "tests/support/depth.h"
#include "tests/support/errors.h"
#include "tests/support/model_cases.h"
#include "tests/support/plans.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

/// The offset at which the states end and other buffers begin.
std::uint64_t end_of_states(const partition::Programs& programs) {
  std::uint64_t end = 0;
  for (const partition::Buffer& state : programs.states) {
    end = std::max(end, memory::align_up(state.offset + state.bytes));
  }
  return end;
}

/// A model's programs and the executor that runs them.
class Machine {
 public:
  Machine(const ModelCase& model, const char* device, int threads)
      : graph_(model.graph),
        device_(device::Device::find(device)),
        programs_(partition::programs_of(graph_, device_, threads)),
        executor_(programs_, device_) {}

  void load(const States& states) {
    for (const graph::StateId s : states.ids()) {
      write_view(states[s], executor_.state(s));
    }
  }

  /// Sets all bits of the memory that holds no state, which gives NaN.
  void poison() {
    const std::uint64_t begin = end_of_states(programs_);
    std::memset(executor_.arena()->data() + begin, 0xFF, programs_.arena_bytes - begin);
  }

  std::vector<Tensor> call(const Call& call) {
    const std::size_t program = write_inputs(call);
    executor_.run(program, call.scalars);
    std::vector<Tensor> outputs;
    for (const graph::Port& port : call.function->outputs) {
      const graph::TensorType& type = call.function->values[port.value].type;
      outputs.push_back(read_view(type, executor_.output(program, port.name)));
    }
    return outputs;
  }

  std::size_t write_inputs(const Call& call) {
    const std::size_t program = executor_.find(call.function->name, call.function->rows);
    for (std::size_t i = 0; i < call.inputs.size(); ++i) {
      write_view(call.inputs[i], executor_.input(program, call.function->inputs[i].name));
    }
    return program;
  }

  [[nodiscard]] States states() const {
    States states;
    for (const graph::StateId s : graph_.states.ids()) {
      states.push_back(read_view(graph_.states[s].type, executor_.state(s)));
    }
    return states;
  }

  [[nodiscard]] const partition::Programs& programs() const { return programs_; }
  [[nodiscard]] runtime::Executor& executor() { return executor_; }

 private:
  const graph::Graph& graph_;
  const device::Device& device_;
  partition::Programs programs_;
  runtime::Executor executor_;
};

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.values.size() == b.values.size() &&
         std::memcmp(a.values.data(), b.values.data(), a.values.size() * sizeof(double)) == 0;
}

/// The name of the first state that differs in any bit; "" if none does.
std::string difference(const graph::Graph& graph, const States& a, const States& b) {
  for (const graph::StateId s : a.ids()) {
    if (!same_bits(a[s], b[s])) {
      return graph.states[s].name;
    }
  }
  return "";
}

}  // namespace

TEST_CASE("a program has the same bits as its function in separate memory", "[runtime]") {
  for (const char* device : {"cpu", "reference"}) {
    for (const ModelCase& model : model_cases()) {
      DYNAMIC_SECTION(device << ", " << model.name) {
        States expected = first_states(model.graph);
        Machine machine(model, device, 1);
        machine.load(expected);
        for (const Call& call : calls_of(model, 2)) {
          INFO(call.function->name << " of " << call.function->rows << " rows, step " << call.scalars.step);
          const std::vector<Tensor> outputs = interpret(call, device::Device::find(device), expected);

          const std::vector<Tensor> found = machine.call(call);

          CHECK(difference(model.graph, machine.states(), expected).empty());
          for (std::size_t o = 0; o < outputs.size(); ++o) {
            CHECK(same_bits(found[o], outputs[o]));
          }
        }
      }
    }
  }
}

TEST_CASE("instructions read only transient memory that the call has written", "[runtime]") {
  for (const ModelCase& model : model_cases()) {
    DYNAMIC_SECTION(model.name) {
      Machine clean(model, "cpu", 2);
      Machine poisoned(model, "cpu", 2);
      clean.load(first_states(model.graph));
      poisoned.load(first_states(model.graph));
      for (const Call& call : calls_of(model, 2)) {
        INFO(call.function->name << " of " << call.function->rows << " rows");
        const std::vector<Tensor> expected = clean.call(call);

        poisoned.poison();
        const std::vector<Tensor> found = poisoned.call(call);

        CHECK(difference(model.graph, poisoned.states(), clean.states()).empty());
        for (std::size_t o = 0; o < expected.size(); ++o) {
          CHECK(same_bits(found[o], expected[o]));
        }
      }
    }
  }
}

TEST_CASE("the number of threads changes no bit", "[runtime]") {
  for (const ModelCase& model : model_cases()) {
    DYNAMIC_SECTION(model.name) {
      std::vector<States> results;
      for (int threads = 1; threads <= 3; ++threads) {
        Machine machine(model, "cpu", threads);
        machine.load(first_states(model.graph));
        for (const Call& call : calls_of(model, 2)) {
          static_cast<void>(machine.call(call));
        }
        results.push_back(machine.states());
        CHECK(difference(model.graph, results.back(), results[0]).empty());
      }
    }
  }
}

TEST_CASE("recomputation changes no bit", "[runtime]") {
  const std::vector<ModelCase> kept = training_cases(graph::Remat::none);
  constexpr auto stride = depth<std::size_t>(1, 1, 4);
  std::size_t first = 0;  // if only every `stride`th model runs: other models for each kind of recomputation
  for (const graph::Remat remat : {graph::Remat::layer, graph::Remat::selective}) {
    const std::vector<ModelCase> repeated = training_cases(remat);
    for (std::size_t m = first++ % stride; m < kept.size(); m += stride) {
      DYNAMIC_SECTION(kept[m].name << (remat == graph::Remat::layer ? ", layer" : ", selective")) {
        Machine expected(kept[m], "cpu", 2);
        Machine machine(repeated[m], "cpu", 2);
        expected.load(first_states(kept[m].graph));
        machine.load(first_states(repeated[m].graph));
        const std::vector<Call> calls = calls_of(kept[m], 2);
        const std::vector<Call> same_calls = calls_of(repeated[m], 2);
        for (std::size_t c = 0; c < calls.size(); ++c) {
          INFO(calls[c].function->name << " of " << calls[c].function->rows << " rows, step " << calls[c].scalars.step);
          static_cast<void>(expected.call(calls[c]));
          static_cast<void>(machine.call(same_calls[c]));
          CHECK(difference(kept[m].graph, machine.states(), expected.states()).empty());
        }
      }
    }
  }
}

TEST_CASE("programs touch exactly the planned pages", "[runtime]") {
  for (const ModelCase& model : model_cases()) {
    for (const int threads : {1, 3}) {
      DYNAMIC_SECTION(model.name << ", " << threads << " threads") {
        Machine machine(model, "cpu", threads);
        machine.load(first_states(model.graph));
        for (const Call& call : calls_of(model, 2)) {
          static_cast<void>(machine.call(call));
        }
        CHECK(machine.executor().arena()->touched_bytes() == machine.programs().memory.peak);
      }
    }
  }
}

TEST_CASE("the categories add up to the peak", "[runtime]") {
  for (const ModelCase& model : model_cases()) {
    const Machine machine(model, "cpu", 2);
    const partition::MemoryUse& use = machine.programs().memory;
    INFO(model.name);
    CHECK(use.parameters + use.gradients + use.optimizer + use.activations + use.communication + use.scratch ==
          use.peak);
    CHECK(use.peak <= memory::align_up(machine.programs().arena_bytes, memory::page_bytes));
    CHECK(use.activations <= use.peak);
  }
}

TEST_CASE("a call allocates nothing", "[runtime]") {
  for (const ModelCase& model : model_cases()) {
    DYNAMIC_SECTION(model.name) {
      Machine machine(model, "cpu", 2);
      machine.load(first_states(model.graph));
      const std::vector<Call> calls = calls_of(model, 2);
      std::uint64_t allocated = 0;
      for (const Call& call : calls) {
        const std::size_t program = machine.write_inputs(call);
        machine.executor().run(program, call.scalars);
        const std::uint64_t before = allocations();
        machine.executor().run(program, call.scalars);
        allocated += allocations() - before;
      }
      CHECK(allocated == 0);
    }
  }
}

TEST_CASE("a checked run names the first tensor that is not finite", "[runtime]") {
  const ModelCase model = training_case("mlp", "mlp", {{"hidden", "3"}}, {.features = 2, .outputs = 1}, {.batch = 2});
  for (const char* device : {"cpu", "reference"}) {
    Machine machine(model, device, 1);
    States states = first_states(model.graph);
    machine.load(states);
    Call call = calls_of(model, 1).front();
    const std::size_t program = machine.write_inputs(call);
    CHECK_FALSE(machine.executor().run_checked(program, call.scalars).has_value());

    states[graph::StateId(1)].values[0] = std::numeric_limits<double>::infinity();
    machine.load(states);
    static_cast<void>(machine.write_inputs(call));
    const std::optional<runtime::NonFiniteResult> bad = machine.executor().run_checked(program, call.scalars);
    REQUIRE(bad);
    CHECK(bad->name == "layer.1/residual (op matmul, function micro)");
    CHECK(bad->call() == 0);
  }
}

TEST_CASE("profiling counts every call and changes nothing", "[runtime]") {
  const ModelCase model = model_cases().front();
  Machine plain(model, "cpu", 1);
  Machine profiled(model, "cpu", 1);
  plain.load(first_states(model.graph));
  profiled.load(first_states(model.graph));
  profiled.executor().start_profile();
  double flops = 0;
  for (const Call& call : calls_of(model, 3)) {
    static_cast<void>(plain.call(call));
    static_cast<void>(profiled.call(call));
    flops += graph::flops(*call.function);
  }
  CHECK(difference(model.graph, profiled.states(), plain.states()).empty());
  std::int64_t profiled_flops = 0;
  std::int64_t attention_calls = 0;
  double last = std::numeric_limits<double>::infinity();
  for (const runtime::OpTime& time : profiled.executor().profile()) {
    CHECK(time.seconds <= last);
    last = time.seconds;
    profiled_flops += time.flops;
    attention_calls += time.op == "attention" && time.function == "micro" ? time.calls : 0;
  }
  CHECK(static_cast<double>(profiled_flops) == flops);
  CHECK(attention_calls == 3 * 2);
}

TEST_CASE("a recorded call has every instruction once, in order, and recording allocates nothing", "[runtime]") {
  const ModelCase model = model_cases().front();
  Machine machine(model, "cpu", 1);
  machine.load(first_states(model.graph));
  const Call call = calls_of(model, 1).front();
  const std::size_t program = machine.write_inputs(call);
  const std::size_t instructions = machine.programs().programs[program].instructions.size();
  runtime::Timeline timeline(instructions + 1);
  machine.executor().run(program, call.scalars);

  machine.executor().record(&timeline);
  const std::uint64_t before = allocations();
  machine.executor().run(program, call.scalars);
  const std::uint64_t allocated = allocations() - before;
  machine.executor().record(nullptr);
  machine.executor().run(program, call.scalars);

  CHECK(allocated == 0);
  REQUIRE(timeline.spans().size() == instructions);
  CHECK(timeline.left_out() == 0);
  std::int64_t last = 0;
  for (std::size_t i = 0; i < instructions; ++i) {
    const runtime::Timeline::Span& span = timeline.spans()[i];
    CHECK(span.program == program);
    CHECK(span.instruction == i);
    CHECK(span.begin >= last);
    CHECK(span.end >= span.begin);
    CHECK_FALSE(span.failed);
    last = span.end;
  }

  machine.executor().record(&timeline);
  machine.executor().run(program, call.scalars);
  CHECK(timeline.spans().size() == timeline.spans().capacity());
  CHECK(timeline.spans().size() + timeline.left_out() == 2 * instructions);
}

TEST_CASE("unknown functions and ports are named", "[runtime]") {
  const ModelCase model = model_cases().front();
  Machine machine(model, "cpu", 1);
  CHECK(error_of([&] { static_cast<void>(machine.executor().find("micro", 4)); }) ==
        "1: no program for function micro with 4 rows");
  CHECK(error_of([&] { static_cast<void>(machine.executor().input(0, "input")); }) ==
        "1: function micro has no input or output 'input'");
}

namespace {

/// Another rank whose part is as large as this one's, and infinite in the first element of the transfer named `bad`.
class Doubling final : public runtime::Communicator {
 public:
  explicit Doubling(std::string bad) : bad_(std::move(bad)) {}

  Handle prepare(const partition::Transfer& transfer, const TransferBuffers& buffers, bool) override {
    prepared_.emplace_back(transfer, buffers);
    return prepared_.size() - 1;
  }
  void start(Handle handle) override {
    const auto& [transfer, buffers] = prepared_[handle];
    auto* values = static_cast<float*>(buffers.recv);
    std::for_each_n(values, buffers.recv_bytes / sizeof(float), [](float& value) { value *= 2; });
    if (transfer.name == bad_) {
      values[0] = std::numeric_limits<float>::infinity();
    }
  }
  bool test(Handle) override { return true; }
  void wait(Handle) override {}

 private:
  std::string bad_;
  std::vector<std::pair<partition::Transfer, TransferBuffers>> prepared_;
};

/// The first bad value that is found in a microbatch of the first rank.
std::string first_bad(const plan::Plan& plan, std::string bad_transfer) {
  const ModelCase model = training_case("mlp", "mlp", {{"hidden", "16"}}, {.features = 3, .outputs = 2}, {.batch = 4});
  const device::Device& device = device::Device::find("cpu");
  const partition::Programs programs =
      partition::programs_of(model.graph, partition::split(model.graph, plan), {.device = device});
  runtime::Executor executor(programs, device);
  Doubling communicator(std::move(bad_transfer));
  executor.bind(communicator);
  const auto fill = [](const device::TensorView& view, float value) {
    std::fill_n(static_cast<float*>(view.data), view.elements(), value);
  };
  for (const graph::StateId s : model.graph.states.ids()) {
    fill(executor.state(s), 0.5F);
  }
  const std::size_t program = executor.find("micro", 4);
  fill(executor.input(program, "inputs"), 1);
  fill(executor.input(program, "targets"), 0);
  return executor.run_checked(program, device::Scalars{}).value_or(runtime::NonFiniteResult{.name = "nothing"}).name;
}

}  // namespace

TEST_CASE("a bad value that a transfer brings is reported with its collective", "[runtime]") {
  CHECK(first_bad(data_parallel(2, 1 << 20), "") == "nothing");
  CHECK(first_bad(data_parallel(2), "gradients/layer_0/weights") ==
        "gradients/layer_0/weights (all_reduce over data, function micro)");
  // The first state of a bucket of three.
  CHECK(first_bad(data_parallel(2, 1 << 20), "gradients/layer_1/weights") ==
        "gradients/layer_1/weights (all_reduce over data, function micro)");
  CHECK(first_bad(tensor_parallel(2), "layer.1/residual") ==
        "layer.1/residual (all_reduce over model, function micro)");
}
