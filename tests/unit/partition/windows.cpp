// What ranks exchange for ops that read split dimensions through windows: the edges that each is missing, and no more.

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "core/graph/builder.h"
#include "core/graph/sliding.h"
#include "core/runtime/interpreter.h"
#include "tests/support/catch.h"
#include "tests/support/parts.h"
#include "tests/support/plans.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

using Sizes = std::vector<std::int64_t>;

/// A convolution of one channel, [1, 1, height, width] or [1, 1, width], and its gradients.
struct WindowCase {
  Sizes shape;
  Sizes kernel;
  Sizes strides;
  Sizes padding;
  Sizes dilation;
  std::vector<plan::MeshAxis> mesh;
  std::vector<plan::AxisPlacement> axes;

  [[nodiscard]] graph::Attributes attributes() const {
    return {{"strides", strides}, {"padding", padding}, {"dilation", dilation}, {"groups", std::int64_t{1}}};
  }
  [[nodiscard]] std::vector<graph::Sliding> slidings() const { return sliding_of(attributes(), kernel); }
  [[nodiscard]] Sizes result() const {
    Sizes sizes;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      sizes.push_back(slidings()[d].result_size(shape[d]));
    }
    return sizes;
  }
};

graph::TensorType image(const Sizes& sizes, const char* first, const char* second) {
  graph::TensorType type{graph::DType::f32, {1, 1}, {first, second}};
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    type.shape.push_back(sizes[d]);
    type.axes.push_back(sizes.size() - d == 2 ? "height" : "width");
  }
  return type;
}

graph::TensorType kernel_type(const Sizes& sizes) {
  graph::TensorType type = image(sizes, "out", "in");
  std::fill(type.axes.begin() + 2, type.axes.end(), "kernel");
  return type;
}

using State = graph::StateId;
const State x(0), w(1), dy(2), y(3), dx(4), dw(5);

/// The graph of y = conv(x, w) and, with `gradients`, of dx and dw from dy.
graph::Graph graph_of(const WindowCase& test, bool gradients) {
  graph::Graph graph;
  const auto add = [&](const char* name, graph::TensorType type) {
    graph.states.push_back({.name = name, .type = std::move(type), .kind = graph::StateKind::field});
  };
  add("x", image(test.shape, "batch", "in"));
  add("w", kernel_type(test.kernel));
  add("dy", image(test.result(), "batch", "out"));
  add("y", image(test.result(), "batch", "out"));
  add("dx", image(test.shape, "batch", "in"));
  add("dw", kernel_type(test.kernel));
  graph::FunctionBuilder builder(graph, "f", graph::Role::once, 0);
  const auto write = [&](State state, graph::ValueId value) {
    builder.write(state, value, graph::StateWrite::Mode::assign);
  };
  const graph::ValueId result = builder.call("conv", {builder.state("x"), builder.state("w")}, test.attributes());
  write(y, result);
  for (std::size_t operand = 0; gradients && operand < 2; ++operand) {
    const std::vector<graph::ValueId> operands = {builder.state("x"), builder.state("w")};
    write(operand == 0 ? dx : dw, graph::find_op("conv").gradient(builder, {.attributes = test.attributes(),
                                                                            .inputs = operands,
                                                                            .outputs = {result},
                                                                            .output_gradients = {builder.state("dy")},
                                                                            .input = operand}));
  }
  builder.finish();
  return graph;
}

std::uint64_t bytes_of(const partition::SentBytes& sent) {
  std::uint64_t bytes = 0;
  for (const auto& [axis, collectives] : sent) {
    for (const auto& [collective, each] : collectives) {
      bytes += each;
    }
  }
  return bytes;
}

class WindowRanks {
 public:
  WindowRanks(const WindowCase& test, bool gradients, const std::vector<plan::MeshAxis>& mesh,
              const std::vector<plan::AxisPlacement>& axes)
      : graph_(graph_of(test, gradients)),
        ranks_(graph_, partition::split(graph_, plan_of(mesh, axes)), device::Device::find("reference"), 1) {
    for (const State state : {x, w, dy}) {
      Tensor whole = zeros(graph_.states[state].type);
      Random(state.index() + 1).fill_normal(whole, 0, 1);
      for (std::size_t rank = 0; rank < ranks_.ranks(); ++rank) {
        write_part(whole, ranks_.rank(rank).state(state));
      }
    }
    ranks_.run("f", 0, true, {});
  }

  [[nodiscard]] bool transfers() { return !ranks_.programs(0).programs[0].transfers.empty(); }

  [[nodiscard]] Tensor result(State state) {
    Tensor whole = zeros(graph_.states[state].type);
    std::vector<int> filled(whole.values.size(), 0);
    for (std::size_t rank = 0; rank < ranks_.ranks(); ++rank) {
      CHECK(gather_part(ranks_.rank(rank).state(state), whole, filled));
    }
    CHECK(std::ranges::count(filled, 0) == 0);
    return whole;
  }

  /// The elements that each rank has sent. Checks that the plan says the same.
  [[nodiscard]] std::vector<std::int64_t> sent() {
    std::vector<std::int64_t> elements;
    for (std::size_t rank = 0; rank < ranks_.ranks(); ++rank) {
      partition::SentBytes planned;
      partition::add_sent_bytes(planned, ranks_.programs(rank), ranks_.programs(rank).programs[0]);
      CHECK(bytes_of(ranks_.rank(rank).sent()) == bytes_of(planned));
      elements.push_back(static_cast<std::int64_t>(bytes_of(planned) / sizeof(double)));
    }
    return elements;
  }

  /// The number of elements of x, along its only sliding dimension, that ranks lack between the first and the last that
  /// they read.
  [[nodiscard]] std::int64_t missing(const WindowCase& test) {
    const graph::Sliding window = test.slidings().front();
    std::int64_t count = 0;
    for (std::size_t rank = 0; rank < ranks_.ranks(); ++rank) {
      const device::TensorView own = ranks_.rank(rank).state(x);
      const device::TensorView made = ranks_.rank(rank).state(y);
      std::set<std::int64_t> read;
      for (std::int64_t i = made.origin[2]; i < made.origin[2] + made.shape[2]; ++i) {
        for (std::int64_t k = 0; k < window.size; ++k) {
          const std::int64_t at = i * window.stride + k * window.dilation - window.low;
          if (at >= 0 && at < test.shape[0]) {
            read.insert(at);
          }
        }
      }
      for (std::int64_t at = read.empty() ? 0 : *read.begin(); !read.empty() && at <= *read.rbegin(); ++at) {
        count += at < own.origin[2] || at >= own.origin[2] + own.shape[2] ? 1 : 0;
      }
    }
    return count;
  }

 private:
  graph::Graph graph_;
  runtime::Interpreter ranks_;
};

void check_same(const WindowCase& test, State state, WindowRanks& split, WindowRanks& whole) {
  const Tensor found = split.result(state);
  const Tensor expected = whole.result(state);
  double worst = 0;
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    worst = std::max(worst, std::abs(found.values[i] - expected.values[i]));
  }
  INFO("state " << state.number() << " of a kernel of " << test.kernel.front());
  CHECK(worst < 1e-12);
}

const std::vector<plan::AxisPlacement> columns_over_a = {{"width", {"a"}}};

}  // namespace

TEST_CASE("a convolution along a split dimension receives exactly the elements that its ranks lack", "[partition]") {
  std::vector<WindowCase> cases;
  for (const std::uint32_t ranks : {2U, 3U, 4U, 7U}) {
    for (const std::int64_t size : {5, 9, 12, 23}) {
      for (const Sizes& window :
           {Sizes{1, 1, 0, 0, 1}, Sizes{3, 1, 1, 1, 1}, Sizes{3, 2, 1, 0, 1}, Sizes{2, 2, 0, 0, 1},
            Sizes{2, 3, 1, 1, 2}, Sizes{5, 1, 0, 4, 1}, Sizes{1, 2, 0, 0, 1}}) {
        cases.push_back(
            {{size}, {window[0]}, {window[1]}, {window[2], window[3]}, {window[4]}, {{"a", ranks}}, columns_over_a});
      }
    }
  }
  for (const WindowCase& test : cases) {
    INFO(test.mesh[0].size << " ranks, " << test.shape[0] << " elements, kernel " << test.kernel[0] << ", stride "
                           << test.strides[0]);
    WindowRanks split(test, false, test.mesh, test.axes);
    WindowRanks whole(test, false, {{"a", 1}}, {});
    check_same(test, y, split, whole);
    const std::vector<std::int64_t> sent = split.sent();
    CHECK(std::accumulate(sent.begin(), sent.end(), std::int64_t{0}) == split.missing(test));
  }
}

TEST_CASE("halos in one and two dimensions are as wide as the window reaches", "[partition]") {
  using Elements = std::vector<std::int64_t>;
  const auto sent = [](const WindowCase& test) { return WindowRanks(test, false, test.mesh, test.axes).sent(); };
  const std::vector<plan::MeshAxis> line = {{"a", 4}};
  // Of 10 elements the ranks have 3, 3, 2 and 2: one edge to each side.
  CHECK(sent({{10}, {3}, {1}, {1, 1}, {1}, line, columns_over_a}) == Elements{1, 2, 2, 1});
  // A window that reads two to the left only.
  CHECK(sent({{10}, {3}, {1}, {2, 0}, {1}, line, columns_over_a}) == Elements{2, 2, 2, 0});
  // Windows that do not overlap: each rank has all that it reads.
  CHECK(sent({{16}, {2}, {2}, {0, 0}, {1}, line, columns_over_a}) == Elements{0, 0, 0, 0});
  CHECK_FALSE(WindowRanks({{16}, {2}, {2}, {0, 0}, {1}, line, {}}, false, line, columns_over_a).transfers());
  // 8 x 8 over 2 x 2 ranks: a row of 4, and a column of the 4 rows and the one that came before it.
  const std::vector<plan::AxisPlacement> both = {{"height", {"a"}}, {"width", {"b"}}};
  const std::vector<plan::MeshAxis> grid = {{"a", 2}, {"b", 2}};
  CHECK(sent({{8, 8}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}, grid, both}) == Elements{9, 9, 9, 9});
  // Along one of two dimensions.
  CHECK(sent({{8, 8}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}, {{"a", 2}}, {{"height", {"a"}}}}) == Elements{8, 8});
}

TEST_CASE("a convolution and its gradients are the same when both dimensions are split", "[partition]") {
  const std::vector<plan::AxisPlacement> both = {{"height", {"a"}}, {"width", {"b"}}};
  for (const std::uint32_t rows : {1U, 2U, 3U}) {
    for (const std::uint32_t columns : {2U, 4U}) {
      for (const WindowCase& test :
           {WindowCase{{8, 9}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}, {{"a", rows}, {"b", columns}}, both},
            WindowCase{{9, 11}, {3, 5}, {2, 1}, {1, 0, 2, 2}, {1, 1}, {{"a", rows}, {"b", columns}}, both},
            WindowCase{{7, 10}, {2, 2}, {2, 2}, {0, 1, 0, 0}, {2, 1}, {{"a", rows}, {"b", columns}}, both},
            WindowCase{{5, 5}, {5, 5}, {1, 1}, {0, 0, 0, 0}, {1, 1}, {{"a", rows}, {"b", columns}}, both}}) {
        INFO(rows << " x " << columns << " ranks, " << test.shape[0] << " x " << test.shape[1]);
        WindowRanks split(test, true, test.mesh, test.axes);
        WindowRanks whole(test, true, {{"a", 1}}, {});
        for (const State state : {y, dx, dw}) {
          check_same(test, state, split, whole);
        }
        static_cast<void>(split.sent());
      }
    }
  }
}

TEST_CASE("two convolutions that read the same window of a value share its halo", "[partition]") {
  WindowCase test{{12}, {3}, {1}, {1, 1}, {1}, {{"a", 2}}, columns_over_a};
  graph::Graph graph = graph_of(test, false);
  graph::FunctionBuilder builder(graph, "twice", graph::Role::on_demand, 0);
  const graph::ValueId input = builder.state("x");
  const graph::ValueId first = builder.call("conv", {input, builder.state("w")}, test.attributes(), "first");
  const graph::ValueId second = builder.call("conv", {input, builder.state("dw")}, test.attributes(), "second");
  builder.write(y, builder.call("add", {first, second}), graph::StateWrite::Mode::assign);
  builder.finish();
  runtime::Interpreter ranks(graph, partition::split(graph, plan_of(test.mesh, test.axes)),
                             device::Device::find("reference"), 1);
  const partition::Program& program = ranks.programs(0).programs[1];
  CHECK(program.function == "twice");
  CHECK(program.transfers.size() == 1);
}
