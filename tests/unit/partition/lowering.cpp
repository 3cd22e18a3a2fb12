// Small graphs made by hand, in which a write to a state must, may or must not be fused into the op that
// makes the value.

#include <functional>

#include "core/graph/builder.h"
#include "core/partition/partition.h"
#include "core/runtime/executor.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/model_cases.h"

using namespace shardrun;
using namespace shardrun::test;
using graph::FunctionBuilder;
using graph::StateWrite;
using graph::ValueId;

namespace {

constexpr StateWrite::Mode assign = StateWrite::Mode::assign;
constexpr StateWrite::Mode accumulate = StateWrite::Mode::accumulate;
constexpr StateWrite::Mode add = StateWrite::Mode::add;

/// A graph with the states u, v and w of four elements, and the function `f` that `build` writes.
ModelCase states_and(const std::function<void(FunctionBuilder&)>& build) {
  ModelCase model{.name = "by hand", .graph = {}};
  for (const char* name : {"u", "v", "w"}) {
    model.graph.states.push_back({.name = name, .type = type_of({4}), .kind = graph::StateKind::field});
  }
  FunctionBuilder builder(model.graph, "f", graph::Role::on_demand, 1);
  build(builder);
  builder.finish();
  return model;
}

partition::Program program_of(const ModelCase& model) {
  return partition::programs_of(model.graph, device::Device::find("cpu"), 1).programs[0];
}

/// The ops with the names of their buffers, and how each writes: "sin u -> v; copy v +-> w".
std::string shape_of(const partition::Program& program) {
  const auto names = [&](const std::vector<partition::BufferId>& ids) {
    std::string text;
    for (const partition::BufferId id : ids) {
      text += " " + program.buffers[id].name;
    }
    return text;
  };
  std::string text;
  for (const partition::Instruction& at : program.instructions) {
    const char* arrow = at.accumulate == partition::Accumulate::never         ? " ->"
                        : at.accumulate == partition::Accumulate::after_first ? " (+)->"
                                                                              : " +->";
    text += (text.empty() ? "" : "; ") + at.op->name + names(at.inputs) + arrow + names(at.outputs);
  }
  return text;
}

/// Runs `f` as the first and the second microbatch on whole numbers, and compares with a run in separate memory.
void check_results(const ModelCase& model) {
  for (const char* name : {"cpu", "reference"}) {
    const device::Device& device = device::Device::find(name);
    runtime::Executor executor(partition::programs_of(model.graph, device, 1), device);
    States expected;
    for (const graph::StateId s : model.graph.states.ids()) {
      Tensor& tensor = expected[expected.push_back(zeros(model.graph.states[s].type))];
      for (std::size_t i = 0; i < tensor.values.size(); ++i) {
        tensor.values[i] = static_cast<double>(10 * s.index() + i + 1);
      }
      write_view(tensor, executor.state(s));
    }
    for (const bool first : {true, false}) {
      Call call{.function = &model.graph.functions[0], .scalars = {.first_microbatch = first}, .inputs = {}};
      for (const graph::Port& port : call.function->inputs) {
        Tensor& tensor = call.inputs.emplace_back(zeros(type_of({4})));
        tensor.values = {5, 6, 7, first ? 8.0 : 9.0};
        write_view(tensor, executor.input(0, port.name));
      }
      const std::vector<Tensor> outputs = interpret(call, device, expected);

      executor.run(0, call.scalars);

      INFO(name << (first ? ", first" : ", second") << " call");
      for (const graph::StateId s : expected.ids()) {
        INFO("state " << model.graph.states[s].name);
        CHECK(read_view(expected[s].type, executor.state(s)).values == expected[s].values);
      }
      for (std::size_t o = 0; o < outputs.size(); ++o) {
        CHECK(read_view(outputs[o].type, executor.output(0, call.function->outputs[o].name)).values ==
              outputs[o].values);
      }
    }
  }
}

}  // namespace

TEST_CASE("a new value overwrites the old one in place if nothing reads the old one", "[partition]") {
  const ModelCase model = states_and([](FunctionBuilder& f) {
    f.write(f.graph().find_state("v"), f.call("negate", {f.state("u")}, {}, "n"), assign);
  });
  CHECK(shape_of(program_of(model)) == "negate u -> v");
  check_results(model);
}

TEST_CASE("a new value overwrites the old one in the op that reads the old one last", "[partition]") {
  const ModelCase model = states_and([](FunctionBuilder& f) {
    f.write(f.graph().find_state("u"), f.call("negate", {f.state("u")}, {}, "n"), assign);
  });
  CHECK(shape_of(program_of(model)) == "negate u -> u");
  check_results(model);
}

TEST_CASE("a new value is copied at the end if the old one is read after it", "[partition]") {
  const ModelCase model = states_and([](FunctionBuilder& f) {
    const ValueId n = f.call("negate", {f.state("u")}, {}, "n");
    const ValueId sum = f.call("add", {n, f.state("u")}, {}, "sum");
    f.write(f.graph().find_state("u"), n, assign);
    f.write(f.graph().find_state("v"), sum, assign);
  });
  CHECK(shape_of(program_of(model)) == "negate u -> n; add n u -> v; copy n -> u");
  check_results(model);
}

TEST_CASE("a value that still has to be copied is not overwritten", "[partition]") {
  const ModelCase model = states_and([](FunctionBuilder& f) {
    const ValueId n = f.call("negate", {f.state("u")}, {}, "n");
    const ValueId again = f.call("negate", {n}, {}, "again");
    const ValueId sum = f.call("add", {again, f.state("u")}, {}, "sum");
    f.write(f.graph().find_state("u"), n, assign);
    f.write(f.graph().find_state("v"), sum, assign);
  });
  check_results(model);
}

TEST_CASE("an op that cannot work in place does not overwrite its operand", "[partition]") {
  const ModelCase model = states_and([](FunctionBuilder& f) {
    const graph::Attributes left{
        {"dim", std::int64_t{0}}, {"offset", std::int64_t{-1}}, {"boundary", std::string("periodic")}, {"value", 0.0}};
    f.write(f.graph().find_state("u"), f.call("shift", {f.state("u")}, left, "s"), assign);
  });
  CHECK(shape_of(program_of(model)) == "shift u -> s; copy s -> u");
  check_results(model);
}

TEST_CASE("a reshaped value has a buffer of its own shape", "[partition]") {
  const auto reshape = [](FunctionBuilder& f, graph::ValueId value, std::vector<std::int64_t> shape, const char* axes) {
    return f.call("reshape", {value}, {{"shape", std::move(shape)}, {"axes", std::string(axes)}});
  };
  const ModelCase model = states_and([&](FunctionBuilder& f) {
    const ValueId square = reshape(f, f.call("negate", {f.state("u")}, {}, "n"), {2, 2}, "a b");
    const ValueId turned = f.call("transpose", {square}, {{"order", std::vector<std::int64_t>{1, 0}}});
    f.write(f.graph().find_state("v"), reshape(f, turned, {4}, "a0"), assign);
  });
  check_results(model);
}

TEST_CASE("an op that reads its operand twice does not work in place unless both places allow it", "[partition]") {
  const ModelCase model = states_and([](FunctionBuilder& f) {
    f.write(f.graph().find_state("u"), f.call("add_n", {f.state("u"), f.state("u")}, {}, "doubled"), assign);
  });
  CHECK(shape_of(program_of(model)) == "add_n u u -> doubled; copy doubled -> u");
  check_results(model);
}

TEST_CASE("an op that can add to its result adds to the state", "[partition]") {
  const ModelCase model = states_and([](FunctionBuilder& f) {
    f.write(f.graph().find_state("v"), f.call("copy", {f.state("u")}, {}, "c"), accumulate);
    f.write(f.graph().find_state("w"), f.call("copy", {f.state("u")}, {}, "d"), add);
  });
  CHECK(shape_of(program_of(model)) == "copy u (+)-> v; copy u +-> w");
  check_results(model);
}

TEST_CASE("a copy adds a value to its state at once if the op cannot", "[partition]") {
  const ModelCase model = states_and([](FunctionBuilder& f) {
    f.write(f.graph().find_state("v"), f.call("negate", {f.state("u")}, {}, "n"), accumulate);
    f.write(f.graph().find_state("v"), f.call("sin", {f.state("u")}, {}, "s"), add);
  });
  CHECK(shape_of(program_of(model)) == "negate u -> n; copy n (+)-> v; sin u -> s; copy s +-> v");
  check_results(model);
}

TEST_CASE("a value with other readers is not added in place", "[partition]") {
  const ModelCase model = states_and([](FunctionBuilder& f) {
    const ValueId c = f.call("copy", {f.state("u")}, {}, "c");
    f.write(f.graph().find_state("v"), c, accumulate);
    f.write(f.graph().find_state("w"), c, add);
  });
  check_results(model);
}

TEST_CASE("a state read after its sum is made has the value from before", "[partition]") {
  const ModelCase model = states_and([](FunctionBuilder& f) {
    f.write(f.graph().find_state("v"), f.call("negate", {f.state("u")}, {}, "n"), add);
    f.write(f.graph().find_state("w"), f.call("negate", {f.state("v")}, {}, "old"), assign);
  });
  check_results(model);
}

TEST_CASE("sums of one state are added in the order of the writes", "[partition]") {
  const ModelCase model = states_and([](FunctionBuilder& f) {
    const ValueId early = f.call("copy", {f.state("u")}, {}, "early");
    const ValueId late = f.call("negate", {f.state("u")}, {}, "late");
    f.write(f.graph().find_state("v"), late, accumulate);
    f.write(f.graph().find_state("v"), early, add);
  });
  check_results(model);
}

TEST_CASE("inputs that are written to states or given out are unchanged", "[partition]") {
  const ModelCase model = states_and([](FunctionBuilder& f) {
    const ValueId x = f.input("x", type_of({4}));
    const ValueId n = f.call("negate", {x}, {}, "n");
    f.write(f.graph().find_state("u"), x, assign);
    f.write(f.graph().find_state("v"), x, accumulate);
    f.output("n", n);
    f.output("x", x);
    f.output("same", f.call("negate", {n}, {}, "again"));
  });
  check_results(model);
}

TEST_CASE("an output keeps its contents to the end", "[partition]") {
  const ModelCase model = states_and([](FunctionBuilder& f) {
    f.output("early", f.call("negate", {f.state("u")}, {}, "early"));
    const ValueId middle = f.call("add", {f.state("u"), f.state("v")}, {}, "middle");
    f.output("late", f.call("add", {middle, f.state("v")}, {}, "late"));
  });
  check_results(model);
}

TEST_CASE("a state may be copied to another, but two states cannot be swapped", "[partition]") {
  const ModelCase copied = states_and([](FunctionBuilder& f) {
    f.write(f.graph().find_state("v"), f.state("u"), assign);
    f.write(f.graph().find_state("w"), f.state("u"), add);
  });
  CHECK(shape_of(program_of(copied)) == "copy u -> v; copy u +-> w");
  check_results(copied);

  const ModelCase swapped = states_and([](FunctionBuilder& f) {
    f.write(f.graph().find_state("v"), f.state("u"), assign);
    f.write(f.graph().find_state("u"), f.state("v"), assign);
  });
  CHECK(error_of([&] { static_cast<void>(program_of(swapped)); }) ==
        "1: function f: state u is copied and overwritten in one call");
}
