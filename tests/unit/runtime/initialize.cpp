#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "core/runtime/executor.h"
#include "tests/support/catch.h"

using namespace shardrun;

namespace {

graph::State state_of(const char* name, std::vector<std::int64_t> shape, graph::Initializer initializer) {
  return {.name = name,
          .type = {.dtype = graph::DType::f32, .shape = std::move(shape), .axes = {}},
          .initializer = initializer};
}

/// The state's first values, or those of one shard of it.
template <typename Element>
std::vector<Element> values(const graph::State& state, std::uint64_t seed, int threads = 1,
                            const std::vector<std::int64_t>& shape = {}, const std::vector<std::int64_t>& origin = {}) {
  device::TensorView view;
  view.rank = static_cast<std::uint32_t>(state.type.shape.size());
  const mesh::Box part{origin.empty() ? std::vector<std::int64_t>(view.rank, 0) : origin,
                       shape.empty() ? state.type.shape : shape};
  std::copy(part.shape.begin(), part.shape.end(), view.shape.begin());
  std::vector<Element> elements(static_cast<std::size_t>(view.elements()));
  view.data = elements.data();
  view.dtype = std::is_same_v<Element, double> ? graph::DType::f64 : graph::DType::f32;
  device::Threads pool(threads);
  runtime::initialize(view, part, state, seed, pool);
  return elements;
}

using Kind = graph::Initializer::Kind;
const graph::Initializer normal{graph::Initializer::Kind::normal, 0.02};

}  // namespace

TEST_CASE("first values are the same on both devices and for any number of threads", "[runtime]") {
  const graph::Initializer bump{graph::Initializer::Kind::gaussian_bump, 0.1};
  for (const graph::State& state : {state_of("w", {130, 101}, normal), state_of("u", {9001}, bump),
                                    state_of("gain", {5}, {graph::Initializer::Kind::constant, 0.5})}) {
    const std::vector<float> narrow = values<float>(state, 7);
    const std::vector<double> wide = values<double>(state, 7);
    INFO(state.name);
    CHECK(std::equal(narrow.begin(), narrow.end(), wide.begin(), wide.end(),
                     [](float a, double b) { return static_cast<double>(a) == b; }));
    CHECK(values<float>(state, 7, 3) == narrow);
  }
}

TEST_CASE("normal draws have the mean, deviation and tails that were asked for", "[runtime]") {
  const std::vector<double> draws = values<double>(state_of("w", {400, 500}, normal), 1337);
  double sum = 0;
  double squares = 0;
  double beyond_two = 0;
  for (const double draw : draws) {
    sum += draw;
    squares += draw * draw;
    beyond_two += std::abs(draw) > 0.04 ? 1 : 0;
  }
  const double count = static_cast<double>(draws.size());
  // Five standard errors.
  CHECK(std::abs(sum / count) < 5 * 0.02 / std::sqrt(count));
  CHECK(std::abs(std::sqrt(squares / count) / 0.02 - 1) < 5 / std::sqrt(2 * count));
  CHECK(std::abs(beyond_two / count - 0.0455) < 5 * std::sqrt(0.0455 * 0.9545 / count));
  CHECK(std::all_of(draws.begin(), draws.end(), [](double draw) { return std::abs(draw) < 0.02 * 7; }));
}

TEST_CASE("draws differ by seed and by name, and neighbours are not alike", "[runtime]") {
  const std::vector<float> draws = values<float>(state_of("w", {4096}, normal), 1);
  CHECK(values<float>(state_of("w", {4096}, normal), 2) != draws);
  CHECK(values<float>(state_of("v", {4096}, normal), 1) != draws);
  double product = 0;
  for (std::size_t i = 1; i < draws.size(); ++i) {
    product += static_cast<double>(draws[i]) * static_cast<double>(draws[i - 1]);
  }
  CHECK(std::abs(product / 4096 / (0.02 * 0.02)) < 5 / std::sqrt(4096.0));
}

TEST_CASE("uniform draws fill their range evenly, and chance draws have their probability", "[runtime]") {
  const std::vector<double> draws = values<double>(state_of("u", {40000}, {Kind::uniform, 2.0}), 5);
  double sum = 0;
  for (const double draw : draws) {
    REQUIRE((draw >= 0 && draw < 2));
    sum += draw;
  }
  CHECK(std::abs(sum / 40000 - 1) < 5 * 2 / std::sqrt(12.0 * 40000));
  const std::vector<double> ones = values<double>(state_of("c", {40000}, {Kind::chance, 0.3}), 5);
  CHECK(std::all_of(ones.begin(), ones.end(), [](double each) { return each == 0 || each == 1; }));
  const double share = static_cast<double>(std::count(ones.begin(), ones.end(), 1.0)) / 40000;
  CHECK(std::abs(share - 0.3) < 5 * std::sqrt(0.3 * 0.7 / 40000));
}

TEST_CASE("a shard of a counting state continues the order of the whole tensor", "[runtime]") {
  const graph::State state = state_of("n", {3, 4}, {Kind::counting, 0.5});
  CHECK(values<float>(state, 0)[11] == 6.0F);
  CHECK(values<float>(state, 0, 1, {2, 2}, {1, 2}) == std::vector<float>{3.5F, 4.0F, 5.5F, 6.0F});
}

TEST_CASE("a shard draws the same values as the whole tensor", "[runtime]") {
  const graph::State state = state_of("w", {7, 6, 5}, normal);
  const std::vector<float> whole = values<float>(state, 3);
  const std::vector<float> shard = values<float>(state, 3, 1, {3, 2, 5}, {4, 3, 0});
  std::size_t i = 0;
  for (std::size_t a = 4; a < 7; ++a) {
    for (std::size_t b = 3; b < 5; ++b) {
      for (std::size_t c = 0; c < 5; ++c) {
        CHECK(shard[i++] == whole[(a * 6 + b) * 5 + c]);
      }
    }
  }
}

TEST_CASE("the bump has its middle, height and width", "[runtime]") {
  const std::vector<double> bump =
      values<double>(state_of("u", {101}, {graph::Initializer::Kind::gaussian_bump, 0.1}), 0);
  CHECK(bump[50] == 1.0);
  CHECK(bump[40] == Approx(std::exp(-0.5 * std::pow(10.0 / 101 / 0.1, 2))).epsilon(1e-6));
  CHECK(bump[60] == bump[40]);
}
