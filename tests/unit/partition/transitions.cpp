// Transitions from one placement to another: what is inserted, how many bytes it sends, and that values are right.

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/graph/builder.h"
#include "core/runtime/interpreter.h"
#include "tests/support/catch.h"
#include "tests/support/model_cases.h"
#include "tests/support/parts.h"
#include "tests/support/plans.h"

using namespace shardrun;
using namespace shardrun::test;
using partition::Instruction;
using plan::DimSplits;

namespace {

enum class Given { value, sum };  ///< the input's negative, or its sum over the rows of each of two blocks

/// A graph in which function `f` makes the state `to` of its input `x`, [rows 6, columns 5]. The rows are split as the
/// plan says.
graph::Graph graph_of(Given given) {
  graph::Graph graph;
  const graph::TensorType input{graph::DType::f32, {6, 5}, {"rows", "columns"}};
  const graph::TensorType sum{graph::DType::f32, {5}, {"columns"}};
  graph.states.push_back({.name = "to", .type = given == Given::sum ? sum : input, .kind = graph::StateKind::field});
  graph::FunctionBuilder builder(graph, "f", graph::Role::on_demand, 6);
  const graph::ValueId negated = builder.call("negate", {builder.input("x", input)}, {}, "n");
  const graph::ValueId value =
      given == Given::sum ? builder.call("sum_leading", {negated}, {{"keep", std::int64_t{1}}}, "s") : negated;
  builder.write(graph::StateId(0), value, graph::StateWrite::Mode::assign);
  builder.finish();
  return graph;
}

struct Transition {
  const char* name;
  Given given;
  std::vector<plan::AxisPlacement> from;  ///< of the input
  DimSplits to;                           ///< of the state
  std::vector<plan::MeshAxis> mesh;
  std::string moved;                ///< the collectives, in order
  std::vector<std::uint64_t> sent;  ///< by each rank
  std::vector<std::string> flat{};  ///< what splits the elements of the state
};

/// The collectives and copies of rank 0: "all_gather n; slice".
std::string moves_of(const partition::Programs& programs) {
  std::string text;
  for (const Instruction& at : programs.programs[0].instructions) {
    const bool slice = at.kind == Instruction::Kind::move && at.op->name == "slice";
    if (at.kind == Instruction::Kind::start || slice) {
      text += (text.empty() ? "" : "; ") + at.op->name;
    }
  }
  return text;
}

/// Small whole numbers: sums over them are exact in any order.
Tensor numbered(const graph::TensorType& type) {
  Tensor tensor = zeros(type);
  for (std::size_t i = 0; i < tensor.values.size(); ++i) {
    tensor.values[i] = static_cast<double>((i * 7) % 23);
  }
  return tensor;
}

Tensor expected_of(const Tensor& x, const graph::TensorType& type) {
  Tensor expected = zeros(type);
  for (std::size_t i = 0; i < x.values.size(); ++i) {
    expected.values[i % expected.values.size()] -= x.values[i];
  }
  return expected;
}

}  // namespace

TEST_CASE("each transition moves exactly the elements that it must", "[partition]") {
  const std::vector<plan::MeshAxis> two = {{"a", 2}};
  const std::vector<plan::MeshAxis> both = {{"a", 2}, {"b", 2}};
  // 6 rows of 5 columns are 120 bytes, one row 20, one column 24; over two axes the rows are 2, 1, 2 and 1.
  for (const Transition& each : {
           Transition{"replicated", Given::value, {}, {{}, {}}, two, "", {0, 0}},
           Transition{"split alike", Given::value, {{"rows", {"a"}}}, {{"a"}, {}}, two, "", {0, 0}},
           Transition{"replicated to split rows", Given::value, {}, {{"a"}, {}}, two, "slice", {0, 0}},
           Transition{"replicated to split columns", Given::value, {}, {{}, {"a"}}, two, "slice", {0, 0}},
           Transition{"rows to replicated", Given::value, {{"rows", {"a"}}}, {{}, {}}, two, "all_gather", {60, 60}},
           // Blocks of 3 and 2 columns of 6 rows: each of the two ranks sends its own block.
           Transition{
               "columns to replicated", Given::value, {{"columns", {"a"}}}, {{}, {}}, two, "all_gather", {72, 48}},
           // Each rank has 3 rows. The first sends the second's 2 columns of them, and the second the first's
           // 3 columns.
           Transition{"rows to columns", Given::value, {{"rows", {"a"}}}, {{}, {"a"}}, two, "all_to_all", {24, 36}},
           Transition{"columns to rows", Given::value, {{"columns", {"a"}}}, {{"a"}, {}}, two, "all_to_all", {36, 24}},
           // Blocks of 3 and 2 elements.
           Transition{"partial to replicated", Given::sum, {{"rows", {"a"}}}, {{}}, two, "all_reduce", {20, 20}},
           Transition{"partial to split", Given::sum, {{"rows", {"a"}}}, {{"a"}}, two, "reduce_scatter", {8, 12}},
           Transition{"partial over two axes",
                      Given::sum,
                      {{"rows", {"a", "b"}}},
                      {{}},
                      both,
                      "all_reduce; all_reduce",
                      {40, 40, 40, 40}},
           Transition{"nested rows to replicated",
                      Given::value,
                      {{"rows", {"a", "b"}}},
                      {{}, {}},
                      both,
                      "all_gather; all_gather",
                      {100, 80, 100, 80}},
           Transition{"split over one axis, then over another",
                      Given::value,
                      {{"rows", {"a"}}},
                      {{"b"}, {}},
                      both,
                      "all_gather; slice",
                      {60, 60, 60, 60}},
           Transition{"split over another axis too",
                      Given::value,
                      {{"rows", {"a"}}},
                      {{"a"}, {"b"}},
                      both,
                      "slice",
                      {0, 0, 0, 0}},
           Transition{"replicated to split elements", Given::value, {}, {{}, {}}, two, "slice", {0, 0}, {"a"}},
           Transition{"split elements of split columns",
                      Given::value,
                      {{"columns", {"a"}}},
                      {{}, {"a"}},
                      both,
                      "slice",
                      {0, 0, 0, 0},
                      {"b"}},
           Transition{"columns to elements",
                      Given::value,
                      {{"columns", {"a"}}},
                      {{}, {}},
                      two,
                      "all_gather; slice",
                      {72, 48},
                      {"a"}},
           Transition{
               "partial to split elements", Given::sum, {{"rows", {"a"}}}, {{}}, two, "reduce_scatter", {8, 12}, {"a"}},
           // Blocks of 3 and 2 elements, then of these 2 and 1, or 1 and 1.
           Transition{"partial over two axes to split elements",
                      Given::sum,
                      {{"rows", {"a", "b"}}},
                      {{}},
                      both,
                      "reduce_scatter; reduce_scatter",
                      {12, 16, 16, 16},
                      {"a", "b"}},
       }) {
    DYNAMIC_SECTION(each.name) {
      const graph::Graph graph = graph_of(each.given);
      plan::Plan plan = plan_of(each.mesh, each.from);
      plan.tensors = {{"to", plan::TensorRole::store, each.to, each.flat}};
      const device::Device& device = device::Device::find("cpu");
      runtime::Interpreter ranks(graph, partition::split(graph, plan), device, 1);

      CHECK(moves_of(ranks.programs(0)) == each.moved);

      const Tensor x = numbered({graph::DType::f32, {6, 5}, {"rows", "columns"}});
      for (std::size_t rank = 0; rank < ranks.ranks(); ++rank) {
        write_part(x, ranks.rank(rank).input(0, "x"));
      }
      ranks.run("f", 6, true, {});

      Tensor whole = zeros(graph.states.front().type);
      std::vector<int> filled(whole.values.size(), 0);
      for (std::size_t rank = 0; rank < ranks.ranks(); ++rank) {
        const runtime::Executor& executor = ranks.rank(rank);
        const device::TensorView view = executor.state(graph::StateId(0));
        const mesh::Box& box = executor.part(graph::StateId(0));
        const Tensor part = read_view(part_type(whole.type, view), view);
        CHECK(box.elements() == view.elements());
        for (std::int64_t i = 0; i < view.elements(); ++i) {
          const auto at = static_cast<std::size_t>(box.index_in_whole(whole.type.shape, i));
          whole.values[at] = part.values[static_cast<std::size_t>(i)];
          filled[at] = 1;
        }
        std::uint64_t planned = 0;
        for (const partition::Transfer& transfer : ranks.programs(rank).programs[0].transfers) {
          const mesh::Coordinates at = mesh::coordinates_of(ranks.programs(rank).mesh, static_cast<std::int64_t>(rank));
          planned += partition::sent_bytes(transfer, at[transfer.axis], 2);
        }
        INFO("rank " << rank);
        CHECK(planned == each.sent[rank]);
      }
      CHECK(std::count(filled.begin(), filled.end(), 0) == 0);
      CHECK(whole.values == expected_of(x, whole.type).values);
    }
  }
}

TEST_CASE("values along a grouped axis, which several ranks have in part, go to any placement and back",
          "[partition]") {
  struct Way {
    std::vector<plan::AxisPlacement> from;
    DimSplits to;
    std::string moved;
    std::vector<std::string> flat = {};
  };
  // 9 heads over 4 ranks need heads/3 0:1, 1:2, 1:3 and 2:3.
  const std::vector<plan::AxisPlacement> grouped = {{"heads", {"a"}}};
  const std::vector<plan::AxisPlacement> columns = {{"columns", {"a"}}};
  const graph::TensorType type{graph::DType::f32, {3, 5}, {"heads/3", "columns"}};
  for (const Way& way :
       {Way{grouped, {{"a"}, {}}, ""}, Way{grouped, {{}, {}}, "slice; all_gather"},
        Way{grouped, {{}, {"a"}}, "slice; all_to_all"}, Way{grouped, {{}, {}}, "slice; all_gather; slice", {"a"}},
        Way{grouped, {{"a"}, {}}, "slice; slice", {"b"}}, Way{{}, {{"a"}, {}}, "slice"},
        Way{columns, {{"a"}, {}}, "all_to_all; exchange"}}) {
    INFO(way.moved);
    graph::Graph graph;
    graph.states.push_back({.name = "to", .type = type, .kind = graph::StateKind::field});
    graph::FunctionBuilder builder(graph, "f", graph::Role::on_demand, 3);
    const graph::ValueId value = builder.call("negate", {builder.input("x", type)}, {}, "n");
    builder.write(graph::StateId(0), value, graph::StateWrite::Mode::assign);
    builder.finish();
    plan::Plan plan = plan_of({{"a", 4}, {"b", 2}}, way.from);
    plan.tensors = {{"to", plan::TensorRole::store, way.to, way.flat}};
    runtime::Interpreter ranks(graph, partition::split(graph, plan), device::Device::find("cpu"), 1);
    CHECK(moves_of(ranks.programs(0)) == way.moved);
    const Tensor x = numbered(type);
    for (std::size_t rank = 0; rank < ranks.ranks(); ++rank) {
      write_part(x, ranks.rank(rank).input(0, "x"));
    }
    ranks.run("f", 3, true, {});
    std::set<std::int64_t> found;
    for (std::size_t rank = 0; rank < ranks.ranks(); ++rank) {
      const device::TensorView view = ranks.rank(rank).state(graph::StateId(0));
      const Tensor part = read_view(part_type(type, view), view);
      for (std::int64_t i = 0; i < view.elements(); ++i) {
        const std::int64_t at = ranks.rank(rank).part(graph::StateId(0)).index_in_whole(type.shape, i);
        found.insert(at);
        CHECK(part.values[static_cast<std::size_t>(i)] == -x.values[static_cast<std::size_t>(at)]);
      }
    }
    CHECK(found.size() == x.values.size());
  }
}
