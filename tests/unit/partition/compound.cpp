// What ranks exchange for ops that move elements along a split dimension: merged and taken apart dimensions,
// concatenation, slices and padding. Each rank receives the elements that it lacks, and no more.

#include <algorithm>
#include <functional>

#include "core/graph/builder.h"
#include "core/runtime/interpreter.h"
#include "tests/support/catch.h"
#include "tests/support/parts.h"
#include "tests/support/plans.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

using Counts = std::vector<std::int64_t>;
using graph::FunctionBuilder;
using graph::ValueId;

/// An op that `call` adds to states x0, x1, …. Its result is the state y.
struct Moved {
  std::vector<graph::TensorType> operands;
  std::function<ValueId(FunctionBuilder&, const std::vector<ValueId>&)> call;
};

graph::TensorType type(std::vector<std::int64_t> shape, std::vector<std::string> axes) {
  return {graph::DType::f32, std::move(shape), std::move(axes)};
}

Moved reshape(graph::TensorType from, std::vector<std::int64_t> shape, std::string axes) {
  return {{std::move(from)}, [=](FunctionBuilder& builder, const std::vector<ValueId>& x) {
            return builder.call("reshape", x, {{"shape", shape}, {"axes", axes}});
          }};
}

Moved along_first(std::string op, std::vector<graph::TensorType> operands, graph::Attributes attributes) {
  attributes.add("dim", std::int64_t{0});
  return {std::move(operands), [op = std::move(op), attributes](FunctionBuilder& builder, const auto& x) {
            return builder.call(op, x, attributes);
          }};
}

graph::Graph graph_of(const Moved& test) {
  graph::Graph graph;
  for (std::size_t i = 0; i < test.operands.size(); ++i) {
    graph.states.push_back(
        {.name = "x" + std::to_string(i), .type = test.operands[i], .kind = graph::StateKind::field});
  }
  graph::Graph trial = graph;
  const auto build = [&](graph::Graph& into) {
    FunctionBuilder builder(into, "f", graph::Role::once, 0);
    std::vector<ValueId> x;
    for (std::size_t i = 0; i < test.operands.size(); ++i) {
      x.push_back(builder.state("x" + std::to_string(i)));
    }
    const ValueId result = test.call(builder, x);
    const graph::TensorType made = builder.type(result);
    if (into.states.size() > test.operands.size()) {
      builder.write(graph::StateId(test.operands.size()), result, graph::StateWrite::Mode::assign);
      builder.finish();
    }
    return made;
  };
  graph.states.push_back({.name = "y", .type = build(trial), .kind = graph::StateKind::field});
  build(graph);
  return graph;
}

struct Ran {
  std::vector<double> result;
  Counts sent;  ///< elements, by rank
};

Ran run_split(const graph::Graph& graph, const plan::Plan& plan, const device::Device& device) {
  runtime::Interpreter ranks(graph, partition::split(graph, plan), device, 1);
  const graph::StateId y(graph.states.size() - 1);
  for (std::size_t i = 0; i < y.index(); ++i) {
    Tensor whole = zeros(graph.states[graph::StateId(i)].type);
    for (std::size_t e = 0; e < whole.values.size(); ++e) {
      whole.values[e] = static_cast<double>(1000 * (i + 1) + e);
    }
    for (std::size_t rank = 0; rank < ranks.ranks(); ++rank) {
      write_part(whole, ranks.rank(rank).state(graph::StateId(i)));
    }
  }
  ranks.run("f", 0, true, {});
  Ran ran;
  Tensor whole = zeros(graph.states[y].type);
  std::vector<int> filled(whole.values.size(), 0);
  for (std::size_t rank = 0; rank < ranks.ranks(); ++rank) {
    CHECK(gather_part(ranks.rank(rank).state(y), whole, filled));
    std::uint64_t bytes = 0;
    for (const auto& [axis, collectives] : ranks.rank(rank).sent()) {
      for (const auto& [collective, each] : collectives) {
        bytes += each;
      }
    }
    ran.sent.push_back(static_cast<std::int64_t>(bytes / graph::element_bytes(ranks.rank(rank).state(y).dtype)));
  }
  CHECK(std::ranges::count(filled, 0) == 0);
  ran.result = std::move(whole.values);
  return ran;
}

/// The number of elements that each rank sends. Checks that the result is that of one rank, on both devices.
Counts sent(const Moved& test, const std::vector<plan::MeshAxis>& mesh, const std::vector<plan::AxisPlacement>& axes) {
  const graph::Graph graph = graph_of(test);
  const Ran whole = run_split(graph, plan_of({{"a", 1}}, {}), device::Device::find("reference"));
  const Ran split = run_split(graph, plan_of(mesh, axes), device::Device::find("reference"));
  const Ran fast = run_split(graph, plan_of(mesh, axes), device::Device::find("cpu"));
  CHECK(split.result == whole.result);
  CHECK(fast.result == whole.result);
  CHECK(fast.sent == split.sent);
  return split.sent;
}

}  // namespace

TEST_CASE("splitting a split dimension into heads moves no whole heads", "[partition]") {
  const auto heads = [](std::int64_t count) {
    return reshape(type({2, 4 * count}, {"batch", "embed"}), {2, count, 4}, "batch heads head_dim");
  };
  const std::vector<plan::AxisPlacement> both = {{"embed", {"a"}}, {"heads", {"a"}}};
  CHECK(sent(heads(4), {{"a", 4}}, both) == Counts{0, 0, 0, 0});
  // Groups of heads: 2 groups of 3 heads of 4.
  CHECK(sent(reshape(type({2, 24}, {"batch", "embed"}), {2, 2, 3, 4}, "batch groups heads head_dim"), {{"a", 2}},
             {{"embed", {"a"}}, {"groups", {"a"}}}) == Counts{0, 0});
  // 3 heads over 2 ranks: the ranks have 6 elements of 12 each, and rank 0 reads 8 of each of 2 rows.
  CHECK(sent(heads(3), {{"a", 2}}, both) == Counts{0, 4});
  // 2 heads over 3 ranks: the last one has none. It has 2 of the 8 elements, and rank 0 reads the first 4.
  CHECK(sent(heads(2), {{"a", 3}}, both) == Counts{0, 2, 4});
}

TEST_CASE("a merged dimension stays split like its first part", "[partition]") {
  const auto rows = [](std::int64_t batch) {
    return reshape(type({batch, 3, 5}, {"batch", "seq", "embed"}), {3 * batch, 5}, "rows embed");
  };
  const std::vector<plan::AxisPlacement> over_a = {{"batch", {"a"}}, {"rows", {"a"}}};
  CHECK(sent(rows(4), {{"a", 2}}, over_a) == Counts{0, 0});
  CHECK(sent(rows(4), {{"a", 2}}, {{"batch", {"a"}}}) == Counts{30, 30});  // the result is stored whole
  // Over two mesh axes.
  CHECK(sent(rows(8), {{"a", 2}, {"b", 2}}, {{"batch", {"a", "b"}}, {"rows", {"a", "b"}}}) == Counts{0, 0, 0, 0});
  // 3 samples over 2 ranks have 9 rows: rank 0 makes 5 of them out of its 2 samples, and rank 1 makes 4. It reads the
  // second sample too, of 3 rows of 5.
  CHECK(sent(rows(3), {{"a", 2}}, over_a) == Counts{15, 0});
}

TEST_CASE("parts concatenated along a split dimension move to the ranks that own them", "[partition]") {
  const auto both = along_first("concatenate", {type({8}, {"n"}), type({8}, {"n"})}, {});
  // Rank 0 has 4 elements of each operand and makes the first 8.
  CHECK(sent(both, {{"a", 2}}, {{"n", {"a"}}}) == Counts{4, 4});
  const auto uneven = along_first("concatenate", {type({2, 3}, {"n", "m"}), type({5, 3}, {"n", "m"})}, {});
  // Of the 7 rows the ranks make 3, 2 and 2. They have 1, 1, 0 of the first operand, and 2, 2, 1 of the second.
  CHECK(sent(uneven, {{"a", 3}}, {{"n", {"a"}}}) == Counts{3, 6, 0});
}

TEST_CASE("a slice or a padding moves only the edges", "[partition]") {
  const auto x = type({8}, {"n"});
  const std::vector<plan::AxisPlacement> split = {{"n", {"a"}}};
  const auto slice = [&](std::int64_t begin, std::int64_t end) {
    return along_first("slice", {x}, {{"begin", begin}, {"end", end}});
  };
  CHECK(sent(slice(0, 8), {{"a", 2}}, split) == Counts{0, 0});
  CHECK(sent(slice(2, 8), {{"a", 2}}, split) == Counts{0, 1});
  CHECK(sent(slice(7, 8), {{"a", 4}}, split) == Counts{0, 0, 0, 1});
  const auto pad = [&](std::int64_t low, std::int64_t high, double value) {
    return along_first("pad", {x}, {{"low", low}, {"high", high}, {"value", value}});
  };
  CHECK(sent(pad(0, 4, 0), {{"a", 2}}, split) == Counts{0, 2});
  CHECK(sent(pad(2, 0, 7), {{"a", 2}}, split) == Counts{1, 0});
}

TEST_CASE("values that every rank has are not sent", "[partition]") {
  CHECK(sent(along_first("concatenate", {type({8}, {"m"}), type({8}, {"m"})}, {}), {{"a", 2}}, {}) == Counts{0, 0});
  // The result's axis is split, the operand's is not: 7 heads of 2 over 2 ranks.
  CHECK(sent(reshape(type({3, 14}, {"batch", "embed"}), {3, 7, 2}, "batch heads head_dim"), {{"a", 2}},
             {{"heads", {"a"}}}) == Counts{0, 0});
}
