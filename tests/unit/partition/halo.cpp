// What ranks exchange for an op that shifts a dimension which is split over them: exactly the elements that each lacks.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "core/graph/builder.h"
#include "core/runtime/interpreter.h"
#include "tests/support/catch.h"
#include "tests/support/parts.h"
#include "tests/support/plans.h"

using namespace shardrun;
using namespace shardrun::test;
using Shape = std::vector<std::int64_t>;

namespace {

struct Shift {
  Shape shape;  ///< axes are named x, y, z
  std::int64_t dim = 0;
  std::int64_t offset = 0;
  bool periodic = false;
  std::vector<plan::MeshAxis> mesh;
  std::vector<plan::AxisPlacement> axes;
};

constexpr double wall = 0.5;

std::string to_string(const Shift& shift) {
  std::string text = fmt::format("dimension {} of", shift.dim);
  for (const std::int64_t size : shift.shape) {
    text += fmt::format(" {}", size);
  }
  text += fmt::format(" by {}, {}, over", shift.offset, shift.periodic ? "periodic" : "fixed");
  for (const plan::MeshAxis& axis : shift.mesh) {
    text += fmt::format(" {} {}", axis.name, axis.size);
  }
  return text;
}

/// A graph in which the state `to` is the state `from`, shifted.
graph::Graph graph_of(const Shift& shift) {
  graph::Graph graph;
  const std::vector<std::string> names = {"x", "y", "z"};
  const graph::TensorType type{
      graph::DType::f32, shift.shape, {names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shift.shape.size())}};
  graph.states.push_back({.name = "from", .type = type, .kind = graph::StateKind::field});
  graph.states.push_back({.name = "to", .type = type, .kind = graph::StateKind::field});
  graph::FunctionBuilder builder(graph, "f", graph::Role::once, 0);
  builder.write(graph::StateId(1),
                builder.call("shift", {builder.state("from")},
                             {{"dim", shift.dim},
                              {"offset", shift.offset},
                              {"boundary", shift.periodic ? "periodic" : "fixed"},
                              {"value", wall}}),
                graph::StateWrite::Mode::assign);
  builder.finish();
  return graph;
}

/// The element of the operand that becomes an element of the result, both as row-major indices; −1: beyond a wall.
std::int64_t source_of(const Shift& shift, std::int64_t element) {
  const auto dim = static_cast<std::size_t>(shift.dim);
  const std::int64_t inner =
      std::accumulate(shift.shape.begin() + shift.dim + 1, shift.shape.end(), std::int64_t{1}, std::multiplies<>());
  const std::int64_t size = shift.shape[dim];
  const std::int64_t at = element / inner % size;
  const std::int64_t from = at + shift.offset;
  if (shift.periodic) {
    return element + ((from % size + size) % size - at) * inner;
  }
  return from < 0 || from >= size ? -1 : element + (from - at) * inner;
}

std::set<std::size_t> elements_of(const device::TensorView& part) {
  std::set<std::size_t> elements;
  for_each_element(part, [&](std::size_t at, std::size_t) { elements.insert(at); });
  return elements;
}

class Ranks {
 public:
  Ranks(const Shift& shift, const char* device)
      : shift_(shift),
        graph_(graph_of(shift)),
        device_(device::Device::find(device)),
        ranks_(graph_, partition::split(graph_, plan_of(shift.mesh, shift.axes)), device_, 1) {}

  /// Runs the shift. Returns whether the result is right in every element.
  [[nodiscard]] bool run() {
    Tensor from = zeros(graph_.states.front().type);
    std::iota(from.values.begin(), from.values.end(), 1.0);
    for (std::size_t rank = 0; rank < ranks_.ranks(); ++rank) {
      write_part(from, ranks_.rank(rank).state(graph::StateId(0)));
      Tensor nothing = zeros(graph_.states.front().type);
      std::fill(nothing.values.begin(), nothing.values.end(), -99.0);
      write_part(nothing, ranks_.rank(rank).state(graph::StateId(1)));
    }
    ranks_.run("f", 0, true, {});
    Tensor to = zeros(graph_.states.back().type);
    std::vector<int> filled(to.values.size(), 0);
    bool right = true;
    for (std::size_t rank = 0; rank < ranks_.ranks(); ++rank) {
      right = gather_part(ranks_.rank(rank).state(graph::StateId(1)), to, filled) && right;
    }
    for (std::size_t i = 0; i < to.values.size(); ++i) {
      const std::int64_t source = source_of(shift_, static_cast<std::int64_t>(i));
      right = right && filled[i] > 0 && to.values[i] == (source < 0 ? wall : from.values[static_cast<std::size_t>(source)]);
    }
    return right;
  }

  /// The bytes that each rank reports to have sent.
  [[nodiscard]] std::vector<std::uint64_t> sent() {
    std::vector<std::uint64_t> sent;
    for (std::size_t rank = 0; rank < ranks_.ranks(); ++rank) {
      std::uint64_t sum = 0;
      for (const auto& [axis, collectives] : ranks_.rank(rank).sent()) {
        for (const auto& [collective, bytes] : collectives) {
          sum += bytes;
        }
      }
      sent.push_back(sum);
    }
    return sent;
  }

  /// The bytes that each rank's programs say it will send.
  [[nodiscard]] std::vector<std::uint64_t> planned() {
    std::vector<std::uint64_t> planned;
    for (std::size_t rank = 0; rank < ranks_.ranks(); ++rank) {
      partition::SentBytes sum;
      partition::add_sent_bytes(sum, ranks_.programs(rank), ranks_.programs(rank).programs[0]);
      std::uint64_t all = 0;
      for (const auto& [axis, collectives] : sum) {
        for (const auto& [collective, each] : collectives) {
          all += each;
        }
      }
      planned.push_back(all);
    }
    return planned;
  }

  /// The bytes of the operand that all ranks need and do not have.
  [[nodiscard]] std::uint64_t missing() {
    std::uint64_t elements = 0;
    for (std::size_t rank = 0; rank < ranks_.ranks(); ++rank) {
      const std::set<std::size_t> own = elements_of(ranks_.rank(rank).state(graph::StateId(0)));
      std::set<std::size_t> needed;
      for (const std::size_t element : elements_of(ranks_.rank(rank).state(graph::StateId(1)))) {
        const std::int64_t source = source_of(shift_, static_cast<std::int64_t>(element));
        if (source >= 0 && !own.contains(static_cast<std::size_t>(source))) {
          needed.insert(static_cast<std::size_t>(source));
        }
      }
      elements += needed.size();
    }
    return elements * bytes();
  }

 private:
  [[nodiscard]] std::size_t bytes() const { return graph::element_bytes(device_.stored(graph::DType::f32)); }

  Shift shift_;
  graph::Graph graph_;
  const device::Device& device_;
  runtime::Interpreter ranks_;
};

std::vector<std::int64_t> offsets(std::int64_t size) {
  return {-2 * size - 1, -size, -size + 1, -3, -2, -1, 0, 1, 2, 3, size - 1, size, size + 1, 3 * size + 2};
}

}  // namespace

TEST_CASE("a shift receives exactly the elements that its rank lacks", "[partition]") {
  const std::vector<plan::AxisPlacement> over_a = {{"x", {"a"}}};
  std::vector<Shift> cases;
  const auto add = [&](const Shape& shape, std::int64_t dim, const std::vector<plan::MeshAxis>& mesh,
                       const std::vector<plan::AxisPlacement>& axes) {
    for (const std::int64_t offset : offsets(shape[static_cast<std::size_t>(dim)])) {
      for (const bool periodic : {true, false}) {
        cases.push_back({shape, dim, offset, periodic, mesh, axes});
      }
    }
  };
  for (const std::uint32_t ranks : {2U, 3U, 4U, 7U}) {
    for (const std::int64_t size : {1, 2, 5, 10, 12}) {  // also fewer than ranks, and none on some
      add({size}, 0, {{"a", ranks}}, over_a);
    }
  }
  const std::vector<plan::MeshAxis> grid = {{"a", 2}, {"b", 2}};
  for (const std::int64_t dim : {0, 1}) {
    add({7, 5}, dim, {{"a", 3}}, over_a);
    add({7, 5}, dim, {{"a", 3}}, {{"y", {"a"}}});
    add({7, 5}, dim, grid, {{"x", {"a"}}, {"y", {"b"}}});
    add({7, 5}, dim, grid, {{"x", {"b"}}});
  }
  for (const std::int64_t dim : {0, 1, 2}) {
    add({2, 5, 3}, dim, {{"a", 3}, {"b", 2}}, {{"y", {"a"}}, {"z", {"b"}}});
  }
  for (const Shift& shift : cases) {
    for (const char* device : {"cpu", "reference"}) {
      INFO(to_string(shift) << ", " << device);
      Ranks ranks(shift, device);
      CHECK(ranks.run());
      const std::vector<std::uint64_t> sent = ranks.sent();
      CHECK(sent == ranks.planned());
      CHECK(std::accumulate(sent.begin(), sent.end(), std::uint64_t{0}) == ranks.missing());
    }
  }
}

TEST_CASE("a halo has the width of the shift and the length of the edge", "[partition]") {
  const auto sent = [](const Shift& shift) {
    Ranks ranks(shift, "cpu");
    CHECK(ranks.run());
    return ranks.sent();
  };
  const std::vector<plan::MeshAxis> line = {{"a", 4}};
  const std::vector<plan::AxisPlacement> cells = {{"x", {"a"}}};
  using Bytes = std::vector<std::uint64_t>;
  // Of 10 cells the ranks have 3, 3, 2 and 2. To take one from the right each sends its first; on a line the first rank
  // has nobody to send to.
  CHECK(sent({{10}, 0, 1, true, line, cells}) == Bytes{4, 4, 4, 4});
  CHECK(sent({{10}, 0, 1, false, line, cells}) == Bytes{0, 4, 4, 4});
  CHECK(sent({{10}, 0, -1, false, line, cells}) == Bytes{4, 4, 4, 0});
  // A shift by 3, which is more than the last two ranks have: these send all that they have.
  CHECK(sent({{10}, 0, 3, false, line, cells}) == Bytes{0, 12, 8, 8});
  // One row of 5 columns, and one column of 4 and 3 rows.
  const std::vector<plan::MeshAxis> grid = {{"a", 2}, {"b", 2}};
  const std::vector<plan::AxisPlacement> both = {{"x", {"a"}}, {"y", {"b"}}};
  CHECK(sent({{7, 5}, 0, 1, true, {{"a", 2}}, cells}) == Bytes{20, 20});
  CHECK(sent({{7, 5}, 0, 1, true, grid, both}) == Bytes{12, 8, 12, 8});
  CHECK(sent({{7, 5}, 1, -1, true, grid, both}) == Bytes{16, 16, 12, 12});
  // Without elements past the edge, ranks need nothing from each other.
  CHECK(sent({{7, 5}, 1, 1, true, {{"a", 2}}, cells}) == Bytes{0, 0});
}

namespace {

/// A graph in which the state `to` of 8 cells is what `make` makes of the state `from`. Both are split over two ranks.
template <typename Make>
graph::Graph line_of(const Make& make) {
  graph::Graph graph;
  const graph::TensorType type{graph::DType::f32, {8}, {"x"}};
  graph.states.push_back({.name = "from", .type = type, .kind = graph::StateKind::field});
  graph.states.push_back({.name = "to", .type = type, .kind = graph::StateKind::field});
  graph::FunctionBuilder builder(graph, "f", graph::Role::once, 0);
  const auto shift = [&](graph::ValueId value, std::int64_t offset) {
    return builder.call("shift", {value},
                        {{"dim", std::int64_t{0}}, {"offset", offset}, {"boundary", "periodic"}, {"value", 0.0}});
  };
  builder.write(graph::StateId(1), make(builder, shift, builder.state("from")), graph::StateWrite::Mode::assign);
  builder.finish();
  return graph;
}

runtime::Interpreter two_ranks(const graph::Graph& graph) {
  return {graph, partition::split(graph, plan_of({{"a", 2}}, {{"x", {"a"}}})), device::Device::find("cpu"), 1};
}

/// The first rank's instructions, such as "start exchange; shift".
std::string order_of(const partition::Programs& programs) {
  std::string order;
  for (const partition::Instruction& at : programs.programs[0].instructions) {
    constexpr const char* kinds[] = {"", "move ", "start ", "wait "};
    order += (order.empty() ? "" : "; ") + (kinds[static_cast<std::size_t>(at.kind)] + at.op->name);
  }
  return order;
}

}  // namespace

TEST_CASE("ranks shift their own elements while all halos of a value are exchanged", "[partition]") {
  const graph::Graph graph = line_of([](graph::FunctionBuilder& builder, const auto& shift, graph::ValueId from) {
    const graph::ValueId left = shift(from, -1);
    return builder.call("add", {left, shift(from, 1)});
  });
  CHECK(order_of(two_ranks(graph).programs(0)) ==
        "move exchange; move exchange; start exchange; start exchange; shift; shift; wait exchange; move exchange; "
        "wait exchange; move exchange; add");
}

TEST_CASE("a second shift waits for the halos of the first", "[partition]") {
  const graph::Graph graph = line_of(
      [](graph::FunctionBuilder&, const auto& shift, graph::ValueId from) { return shift(shift(from, 3), -2); });
  runtime::Interpreter ranks = two_ranks(graph);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    float* from = static_cast<float*>(ranks.rank(rank).state(graph::StateId(0)).data);
    std::iota(from, from + 4, static_cast<float>(4 * rank));
  }
  ranks.run("f", 0, true, {});
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const float* to = static_cast<const float*>(ranks.rank(rank).state(graph::StateId(1)).data);
    for (std::size_t i = 0; i < 4; ++i) {
      CHECK(to[i] == static_cast<float>((4 * rank + i + 1) % 8));
    }
  }
}

TEST_CASE("a shift by many times the dimension's size is right", "[partition]") {
  for (const bool periodic : {true, false}) {
    for (const std::int64_t offset :
         {-(std::int64_t{1} << 62), std::int64_t{-101}, std::int64_t{10}, std::int64_t{997}}) {
      const Shift shift{{10}, 0, offset, periodic, {{"a", 3}}, {{"x", {"a"}}}};
      INFO(to_string(shift));
      Ranks ranks(shift, "cpu");
      CHECK(ranks.run());
    }
  }
}

// Halos are exchanged along one mesh axis. A shifted dimension that is split over more axes is gathered along all but
// the first.
TEST_CASE("a shift along a dimension split over two mesh axes gathers along the second", "[partition]") {
  for (const bool periodic : {true, false}) {
    for (const std::int64_t offset : {-4, -1, 1, 2}) {
      const Shift shift{{10}, 0, offset, periodic, {{"a", 2}, {"b", 2}}, {{"x", {"a", "b"}}}};
      INFO(to_string(shift));
      Ranks ranks(shift, "cpu");
      CHECK(ranks.run());
      const std::vector<std::uint64_t> sent = ranks.sent();
      CHECK(std::accumulate(sent.begin(), sent.end(), std::uint64_t{0}) > ranks.missing());
    }
  }
}
