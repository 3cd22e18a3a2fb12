// Which gradients are reduced together, and when.

#include <algorithm>

#include "core/graph/builder.h"
#include "core/memory/layout.h"
#include "core/partition/partition.h"
#include "tests/support/catch.h"
#include "tests/support/model_cases.h"
#include "tests/support/plans.h"

using namespace shardrun;
using namespace shardrun::test;
using graph::FunctionBuilder;
using partition::Instruction;
using partition::Program;
using partition::Programs;
using partition::Transfer;
using partition::TransferId;
using Names = std::vector<std::string>;

namespace {

Programs programs_of(const graph::Graph& graph, const plan::Plan& plan, std::int64_t rank = 0) {
  return partition::programs_of(graph, partition::split(graph, plan),
                                {.device = device::Device::find("cpu"), .rank = rank});
}

/// A model with weights of 6 by 16 and of 16 by 4 floats.
ModelCase mlp() { return training_case("mlp", "mlp", {{"hidden", "16"}}, {.features = 6, .outputs = 4}, {.batch = 4}); }

ModelCase bucketed_gpt() {
  return training_case("gpt", "gpt",
                       {{"layers", "3"}, {"heads", "2"}, {"width", "16"}, {"context", "4"}, {"bias", "true"}},
                       {.vocab = 10}, {.batch = 4});
}

/// The states to which a transfer's elements belong, in their order in memory; nothing if it ends within a state.
Names covered(const Programs& programs, const Transfer& transfer) {
  const std::uint64_t begin = programs.states[graph::StateId(transfer.send.buffer.number())].offset;
  const std::uint64_t end = begin + static_cast<std::uint64_t>(transfer.send.elements) * sizeof(float);
  std::vector<partition::Buffer> within;
  std::copy_if(programs.states.begin(), programs.states.end(), std::back_inserter(within),
               [&](const partition::Buffer& state) { return state.offset >= begin && state.offset < end; });
  std::sort(within.begin(), within.end(),
            [](const partition::Buffer& a, const partition::Buffer& b) { return a.offset < b.offset; });
  Names names;
  std::uint64_t at = begin;
  for (const partition::Buffer& state : within) {
    if (state.offset != at) {
      return {};
    }
    at += state.bytes;
    names.push_back(state.name);
  }
  return at == end ? names : Names{};
}

std::vector<Names> buckets(const Programs& programs, const Program& program) {
  std::vector<Names> all;
  for (const Transfer& transfer : program.transfers) {
    all.push_back(covered(programs, transfer));
  }
  return all;
}

/// The number of the first instruction of this kind and transfer.
std::size_t find(const Program& program, Instruction::Kind kind, TransferId transfer) {
  const auto at = std::find_if(program.instructions.begin(), program.instructions.end(),
                               [&](const Instruction& each) { return each.kind == kind && each.transfer == transfer; });
  return static_cast<std::size_t>(at - program.instructions.begin());
}

}  // namespace

TEST_CASE("a bucket takes gradients in the order of their completion, up to its size", "[partition]") {
  const ModelCase model = mlp();
  const auto with = [&](std::uint64_t bytes) {
    const Programs programs = programs_of(model.graph, data_parallel(2, bytes));
    return buckets(programs, programs.find("micro", 4));
  };
  const std::string first = "gradients/layer_0/weights";   // 384 bytes, complete last
  const std::string second = "gradients/layer_1/weights";  // 256 bytes
  CHECK(with(0) == std::vector<Names>{{"loss"}, {second}, {first}});
  CHECK(with(259) == std::vector<Names>{{"loss"}, {second}, {first}});
  CHECK(with(260) == std::vector<Names>{{second, "loss"}, {first}});
  CHECK(with(643) == std::vector<Names>{{second, "loss"}, {first}});
  CHECK(with(644) == std::vector<Names>{{second, first, "loss"}});
}

TEST_CASE("only the last call of a step reduces gradients", "[partition]") {
  const ModelCase model = mlp();
  const Programs programs = programs_of(model.graph, data_parallel(2, 260));
  CHECK(programs.find("micro", 4, true).transfers.size() == 2);
  CHECK(programs.find("micro", 4, false).transfers.empty());
  CHECK(programs.find("update", 0).transfers.empty());
}

TEST_CASE("there are programs only for the calls that a step makes", "[partition]") {
  const ModelCase model =
      training_case("mlp", "mlp", {{"hidden", "16"}}, {.features = 6, .outputs = 4}, {.batch = 5, .microbatches = 3});
  const auto programs_for = [&](const std::vector<std::int64_t>& rows) {
    const Programs programs = partition::programs_of(model.graph, partition::split(model.graph, data_parallel(2), rows),
                                                     {.device = device::Device::find("cpu")});
    std::vector<std::pair<std::int64_t, bool>> found;
    for (const Program& program : programs.programs) {
      if (program.function == "micro") {
        found.emplace_back(program.rows, program.finalizes);
      }
    }
    return found;
  };
  using Found = std::vector<std::pair<std::int64_t, bool>>;
  CHECK(programs_for({2, 2, 1}) == Found{{1, true}, {2, false}});
  CHECK(programs_for({2, 1, 2}) == Found{{1, false}, {2, true}, {2, false}});
  CHECK(programs_for({}) == Found{{1, true}, {1, false}, {2, true}, {2, false}});
}

TEST_CASE("every gradient is in one bucket, and no other state but the loss", "[partition]") {
  const ModelCase model = bucketed_gpt();
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{2000}, std::uint64_t{1} << 20U}) {
    const Programs programs = programs_of(model.graph, data_parallel(2, bytes));
    Names found;
    for (const Names& bucket : buckets(programs, programs.find("micro", 4))) {
      CHECK_FALSE(bucket.empty());
      found.insert(found.end(), bucket.begin(), bucket.end());
    }
    Names expected = {"loss"};
    for (const graph::State& state : model.graph.states) {
      if (state.kind == graph::StateKind::gradient) {
        expected.push_back(state.name);
      }
    }
    std::sort(found.begin(), found.end());
    std::sort(expected.begin(), expected.end());
    CHECK(found == expected);
  }
}

TEST_CASE("a bucket's transfer starts after the op that completes it, and is waited for at the end", "[partition]") {
  const ModelCase model = bucketed_gpt();
  const Programs programs = programs_of(model.graph, data_parallel(2, 2000));
  const Program& program = programs.find("micro", 4);
  REQUIRE(program.transfers.size() > 5);
  const auto is_compute = [](const Instruction& each) { return each.kind == Instruction::Kind::compute; };
  for (const TransferId t : program.transfers.ids()) {
    const std::size_t start = find(program, Instruction::Kind::start, t);
    const std::size_t wait = find(program, Instruction::Kind::wait, t);
    const Names states = covered(programs, program.transfers[t]);
    INFO("bucket " << t.number() << " of " << states.front() << ", started at " << start << ", waited for at " << wait);
    REQUIRE(start < wait);
    REQUIRE(wait < program.instructions.size());
    const auto writes = [&](const Instruction& each) {
      return std::any_of(each.outputs.begin(), each.outputs.end(), [&](partition::BufferId id) {
        const std::string& name = program.buffers[id].name;
        return std::find(states.begin(), states.end(), name) != states.end();
      });
    };
    const auto begin = program.instructions.begin();
    const auto after = begin + static_cast<std::ptrdiff_t>(start);
    // The bucket is started by the last write and not later: only starts of other buckets lie between.
    std::size_t last_compute = start;
    while (!is_compute(program.instructions[last_compute])) {
      --last_compute;
    }
    CHECK(writes(program.instructions[last_compute]));
    CHECK(std::none_of(after, program.instructions.end(), writes));
    // All later computing overlaps with it.
    CHECK(std::none_of(begin + static_cast<std::ptrdiff_t>(wait), program.instructions.end(), is_compute));
    const bool last = t == TransferId(program.transfers.size() - 1);
    CHECK((std::count_if(after, begin + static_cast<std::ptrdiff_t>(wait), is_compute) > 0) == !last);
  }
}

TEST_CASE("sums of functions that add to different groups of states stay separate", "[partition]") {
  graph::Graph graph;
  for (const char* name : {"p", "q", "r"}) {
    graph.states.push_back({.name = name, .type = {graph::DType::f32, {5}, {"e"}}, .kind = graph::StateKind::field});
  }
  const auto function = [&](const char* name, const std::vector<const char*>& states) {
    FunctionBuilder builder(graph, name, graph::Role::on_demand, 4);
    const graph::ValueId x = builder.input("x", {graph::DType::f32, {4, 5}, {"batch", "e"}});
    for (const char* state : states) {
      const graph::ValueId sum =
          builder.call("sum_leading", {builder.call("negate", {x})}, {{"keep", std::int64_t{1}}});
      builder.write(graph.find_state(state), sum, graph::StateWrite::Mode::accumulate);
    }
    builder.finish();
  };
  function("one", {"p"});
  function("two", {"p", "q"});
  function("three", {"q", "r"});
  function("four", {"p"});
  const Programs programs = programs_of(graph, data_parallel(2, 1 << 20));
  CHECK(buckets(programs, programs.find("one", 4)) == std::vector<Names>{{"p"}});
  CHECK(buckets(programs, programs.find("two", 4)) == std::vector<Names>{{"p"}, {"q"}});
  CHECK(buckets(programs, programs.find("three", 4)) == std::vector<Names>{{"q"}, {"r"}});
  CHECK(buckets(programs, programs.find("four", 4)) == std::vector<Names>{{"p"}});
}

TEST_CASE("metrics are finalized in one order, even if stages complete them in different orders", "[partition]") {
  graph::Graph graph{.model = "two metrics", .layers = 2};
  for (const char* name : {"of_second", "of_first"}) {
    graph.states.push_back({.name = name, .type = {}, .kind = graph::StateKind::metric});
  }
  FunctionBuilder builder(graph, "micro", graph::Role::repeated, 4);
  const graph::ValueId x = builder.input("x", {graph::DType::f32, {4, 5}, {"batch", "e"}});
  for (const char* name : {"of_first", "of_second"}) {
    builder.set_layer(std::string_view(name) == "of_first" ? 0 : 1);
    builder.write(graph.find_state(name), builder.call("sum_all", {x}), graph::StateWrite::Mode::accumulate);
  }
  builder.finish();
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{1} << 20U}) {
    plan::Plan plan = plan_of({{"pipe", 2}}, {}, bytes);
    plan.pipeline = {.mesh_axis = "pipe", .chunks = {{0, 0}, {1, 1}}, .actions = {{}, {}}};
    for (const std::uint32_t stage : {0U, 1U}) {
      plan.pipeline.actions[stage] = {{plan::Action::Kind::forward, stage, 0},
                                      {plan::Action::Kind::backward, stage, 0}};
    }
    const partition::Partition partition = partition::split(graph, plan, {4});
    for (const std::int64_t rank : {0, 1}) {
      INFO("stage " << rank << ", buckets of " << bytes << " bytes");
      const Programs programs =
          partition::programs_of(graph, partition, {.device = device::Device::find("cpu"), .rank = rank});
      CHECK(buckets(programs, programs.programs.front()) == std::vector<Names>{{"of_second", "of_first"}});
    }
  }
}

TEST_CASE("in a bucket only states of odd size may be unaligned", "[partition]") {
  struct Case {
    ModelCase model;
    plan::Plan plan;
  };
  // Hidden columns over three ranks: 22, 21 and 21 of 64, of which the biases are odd.
  const plan::Plan uneven = plan_of({{"data", 2}, {"model", 3}}, {{"batch", {"data"}}, {"mlp", {"model"}}}, 1 << 20);
  for (const Case& each : {Case{mlp(), data_parallel(2, 260)}, Case{mlp(), data_parallel(2, 1 << 20)},
                           Case{bucketed_gpt(), data_parallel(4, 1 << 20)}, Case{bucketed_gpt(), uneven}}) {
    for (std::int64_t rank = 0; rank < each.plan.ranks(); ++rank) {
      const Programs programs = programs_of(each.model.graph, each.plan, rank);
      for (const partition::Buffer& state : programs.states) {
        INFO(each.model.name << ", rank " << rank << ", " << state.name << " @" << state.offset << "+" << state.bytes);
        CHECK((state.bytes % memory::alignment != 0 || state.offset % memory::alignment == 0));
      }
    }
  }
}
