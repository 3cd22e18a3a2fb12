#include "core/verify/rounding.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/support/catch.h"

using namespace shardrun;
using graph::DType;

namespace {

/// The same number many times, rounded.
std::vector<double> rounded(double value, DType dtype) {
  std::vector<double> values(10'000, value);
  device::Threads threads(2);
  verify::round_result(dtype, values, 1, threads);
  return values;
}

double share_of(const std::vector<double>& values, double value) {
  return static_cast<double>(std::ranges::count(values, value)) / static_cast<double>(values.size());
}

}  // namespace

TEST_CASE("a float32 result is off by up to half a unit in the last of 20 bits, evenly", "[verify]") {
  for (const double sign : {1.0, -1.0}) {
    const double value = sign * (1.5 + 0x1p-23);
    const std::vector<double> values = rounded(value, DType::f32);
    const auto [least, most] = std::ranges::minmax(values);
    CHECK(value - least == Approx(0x1p-20).epsilon(0.1));
    CHECK(most - value == Approx(0x1p-20).epsilon(0.1));
    CHECK(std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size()) - value ==
          Approx(0).margin(0x1p-24));
    CHECK(std::ranges::all_of(values, [](double x) { return x == static_cast<float>(x); }));
  }
}

TEST_CASE("numbers of 20 bits, and those that are not finite, stay as they are", "[verify]") {
  for (const double value : {0.0, -0.0, 1.0, -3.0, 1048575.0, 0x1p-126, std::numeric_limits<double>::infinity()}) {
    const std::vector<double> values = rounded(value, DType::f32);
    CHECK(share_of(values, value) == 1);
    CHECK(std::signbit(values.front()) == std::signbit(value));
  }
  CHECK(std::isnan(rounded(std::numeric_limits<double>::quiet_NaN(), DType::f32).front()));
}

TEST_CASE("a bfloat16 result is rounded up or down at random", "[verify]") {
  const std::vector<double> values = rounded(1 + 0x1p-9, DType::bf16);
  CHECK(share_of(values, 1) == Approx(0.75).margin(0.02));
  CHECK(share_of(values, 1 + 0x1p-7) == Approx(0.25).margin(0.02));
  CHECK(share_of(rounded(1 + 0x1p-7, DType::bf16), 1 + 0x1p-7) == 1);
}

TEST_CASE("what a bfloat16 cache stores is rounded to nearest, unless it is almost in the middle", "[verify]") {
  const auto stored = [](double value) {
    std::vector<double> values(10'000, value);
    device::Threads threads(2);
    verify::round_stored(DType::bf16, values, 1, threads);
    return values;
  };
  CHECK(share_of(stored(1 + 0x1p-9), 1) == 1);
  CHECK(share_of(stored(1 + 0x1.8p-8), 1 + 0x1p-7) == 1);
  const std::vector<double> middle = stored(1 + 0x1p-8 + 0x1p-22);
  CHECK(share_of(middle, 1) == Approx(0.375).margin(0.02));
  CHECK(share_of(middle, 1 + 0x1p-7) == Approx(0.625).margin(0.02));
}

TEST_CASE("a state is rounded to its type, and only its change is disturbed", "[verify]") {
  const std::vector<double> before(1000, 1);
  const auto rounded_change = [&](double change) {
    std::vector<double> after(before.size(), 1 + change);
    verify::round_change(DType::f32, before, after, 1);
    return after;
  };
  CHECK(rounded_change(0) == before);
  CHECK(share_of(rounded_change(0x1p-10 + 0x1p-24 + 0x1p-26), 1 + 0x1p-10 + 0x1p-23) == 1);
  CHECK(share_of(rounded_change(2 + 0x1p-30), 3) < 0.5);
}

TEST_CASE("rounding a number once makes up to half a unit in the last place of its type", "[verify]") {
  const std::vector<double> values = {1, -3};
  const verify::Size once = verify::rounding_of(DType::f32, values);
  CHECK(once.largest == 0x1p-23);
  CHECK(once.mean == Approx(std::sqrt((0x1p-48 + 0x1p-46) / 2 / 3)));
  CHECK(verify::rounding_of(DType::bf16, values).largest == 0x1p-7);
}
