// Weights that are converted to int8 in blocks while they are read.

#include "core/checkpoint/weight_blocks.h"

#include <shardrun/sdk/transport/half.hpp>

#include <cmath>
#include <cstring>
#include <random>

#include "tests/support/catch.h"

using namespace shardrun;

namespace {

/// A source with the one tensor "w", in memory.
checkpoint::TensorSource source_of(std::vector<std::int64_t> shape, std::vector<float> values) {
  checkpoint::TensorSource source;
  source.path = "memory";
  source.tensors = {{"w", checkpoint::DType::f32, std::move(shape)}};
  source.read = [values = std::move(values)](std::size_t, std::int64_t first, std::span<std::byte> to) {
    REQUIRE((static_cast<std::size_t>(first) * sizeof(float) + to.size()) <= values.size() * sizeof(float));
    std::memcpy(to.data(), values.data() + first, to.size());
  };
  return source;
}

/// A graph that keeps "w" as int8. `shape`: with the dimensions of rows last.
graph::Graph graph_of(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& scales,
                      std::size_t contracted, bool is_turned) {
  graph::Graph graph;
  const std::vector<std::string> axes(shape.size());
  const graph::StateId weights = graph.add_state(
      {.name = "w", .type = {graph::DType::i8, shape, axes}, .contracted = contracted, .is_turned = is_turned});
  graph.add_state({.name = "scale/w", .type = {graph::DType::f16, scales, axes}, .of_parameter = weights});
  return graph;
}

std::vector<float> read(const checkpoint::TensorSource& source, std::string_view name, std::int64_t first,
                        std::size_t count) {
  std::vector<float> values(count);
  checkpoint::read_as_float(source, source.index_of(name), first, values);
  return values;
}

std::vector<float> random_values(std::size_t count) {
  std::mt19937 engine(5);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  std::ranges::generate(values, [&] { return normal(engine); });
  return values;
}

}  // namespace

TEST_CASE("a block's scale is its largest magnitude over 127, and its integers are rounded to nearest",
          "[checkpoint]") {
  // Two rows of 35: a block of 32 elements and one of 3 each.
  std::vector<float> values(70, 0.0F);
  values[0] = 254;    // the scale is 2
  values[1] = -3.0F;  // -1.5: away from zero
  values[2] = 2.9F;   // 1.45
  values[32] = -1.27F;
  values[33] = 0.5F;
  values[69] = 127;
  const checkpoint::TensorSource source = source_of({2, 35}, values);
  const graph::Graph graph = graph_of({2, 35}, {2, 2}, 1, false);
  const checkpoint::TensorSource blocks = checkpoint::in_blocks(source, graph);
  CHECK(read(blocks, "scale/w", 0, 4) == std::vector<float>{2, 1.27F / 127, 0, 1});
  std::vector<float> expected(70, 0.0F);
  expected[0] = 127;
  expected[1] = -2;
  expected[2] = 1;
  expected[32] = -127;
  expected[33] = 50;
  expected[69] = 127;
  CHECK(read(blocks, "w", 0, 70) == expected);
}

TEST_CASE("any part of weights in blocks equals that part of the whole", "[checkpoint]") {
  const checkpoint::TensorSource source = source_of({3, 71}, random_values(213));
  const graph::Graph graph = graph_of({3, 71}, {3, 3}, 1, false);
  const checkpoint::TensorSource blocks = checkpoint::in_blocks(source, graph);
  const std::vector<float> whole = read(blocks, "w", 0, 213);
  const std::vector<float> scales = read(blocks, "scale/w", 0, 9);
  for (std::int64_t first = 0; first < 213; ++first) {
    for (const std::int64_t count : {std::int64_t{1}, std::int64_t{40}, 213 - first}) {
      if (first + count <= 213) {
        const auto begin = whole.begin() + first;
        CHECK(read(blocks, "w", first, static_cast<std::size_t>(count)) == std::vector<float>(begin, begin + count));
      }
    }
  }
  for (std::int64_t first = 0; first < 9; ++first) {
    CHECK(read(blocks, "scale/w", first, static_cast<std::size_t>(9 - first)) ==
          std::vector<float>(scales.begin() + first, scales.end()));
  }
}

TEST_CASE("weights whose rows are columns of the file become the blocks of the transposed weights", "[checkpoint]") {
  constexpr std::size_t rows = 5;
  constexpr std::size_t width = 6 * 12;
  const std::vector<float> values = random_values(rows * width);
  std::vector<float> turned(values.size());
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t e = 0; e < width; ++e) {
      turned[e * rows + r] = values[r * width + e];
    }
  }
  const checkpoint::TensorSource source = source_of({5, 72}, values);
  const checkpoint::TensorSource turned_source = source_of({6, 12, 5}, turned);
  const graph::Graph graph = graph_of({5, 72}, {5, 3}, 1, false);
  const graph::Graph turned_graph = graph_of({5, 6, 12}, {5, 3, 1}, 2, true);
  CHECK(checkpoint::shape_in_files(turned_graph.states[graph::StateId(0)]) == std::vector<std::int64_t>{6, 12, 5});
  const checkpoint::TensorSource expected = checkpoint::in_blocks(source, graph);
  const checkpoint::TensorSource found = checkpoint::in_blocks(turned_source, turned_graph);
  CHECK(read(found, "w", 0, 360) == read(expected, "w", 0, 360));
  CHECK(read(found, "scale/w", 0, 15) == read(expected, "scale/w", 0, 15));
  CHECK(read(found, "w", 100, 31) == read(expected, "w", 100, 31));
}

TEST_CASE("blocks of Q8_0 stay as they are", "[checkpoint]") {
  std::mt19937 engine(7);
  std::vector<float> values;
  std::vector<float> integers;
  std::vector<std::uint16_t> scales;
  for (int block = 0; block < 2000; ++block) {
    scales.push_back(static_cast<std::uint16_t>(engine() % 0x6000U + 1));  // any size, subnormal ones too
    for (int e = 0; e < 32; ++e) {
      integers.push_back(e == block % 32 ? 127 : static_cast<float>(engine() % 255) - 127);
      values.push_back(sdk::widen(sdk::Half{scales.back()}) * integers.back());
    }
  }
  const checkpoint::TensorSource source = source_of({1000, 64}, values);
  const graph::Graph graph = graph_of({1000, 64}, {1000, 2}, 1, false);
  const checkpoint::TensorSource blocks = checkpoint::in_blocks(source, graph);
  CHECK((read(blocks, "w", 0, integers.size()) == integers));
  const std::vector<float> found = read(blocks, "scale/w", 0, scales.size());
  CHECK(std::ranges::equal(found, scales, {}, [](float scale) { return sdk::narrow_to_half(scale).bits; }));
}
