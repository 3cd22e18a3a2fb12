#include "core/verify/rounding.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/base/philox.h"
#include "core/device/elements.h"

namespace shardrun::verify {
namespace {

constexpr int kept_bits = 20;

int bits_of(graph::DType dtype) noexcept {
  return dtype == graph::DType::bf16 ? 8 : dtype == graph::DType::f16 ? 11 : std::numeric_limits<float>::digits;
}

/// Half a unit in the last place of a value of this type: the largest error of rounding to nearest.
double half_of_last_place(graph::DType dtype, double value) noexcept {
  int exponent = 0;
  (void)std::frexp(value, &exponent);
  const int least = dtype == graph::DType::f16 ? -13 : std::numeric_limits<float>::min_exponent;
  return std::ldexp(0.5, std::max(exponent, least) - bits_of(dtype));
}

/// Adds a random error of up to half a unit in the last of `bits` bits. Leaves values that need no more bits unchanged.
double disturbed(double value, int bits, std::uint32_t random) noexcept {
  constexpr std::uint64_t fraction = (std::uint64_t{1} << 52U) - 1;
  std::uint64_t word = 0;
  std::memcpy(&word, &value, sizeof(word));
  if ((word & (fraction >> static_cast<unsigned>(bits - 1))) == 0) {
    return value;
  }
  word &= ~fraction;
  double power = 0;  // the largest power of two that is not above the value
  std::memcpy(&power, &word, sizeof(word));
  return value + std::ldexp(power, 1 - bits) * (static_cast<double>(uniform(random)) - 0.5);
}

void round_to_nearest(graph::DType dtype, std::span<double> values) noexcept {
  device::round_elements(dtype, values);
  if (dtype == graph::DType::f32) {
    std::ranges::transform(values, values.begin(), [](double value) { return static_cast<float>(value); });
  }
}

/// Calls act(i, random) for each i in [begin, end). REQUIRES: `begin` is a multiple of 4.
template <typename Act>
void for_each_random(std::uint32_t stream, std::int64_t begin, std::int64_t end, const Act& act) {
  const PhiloxKey key = stream_key(0, "verify");
  PhiloxBlock random = {};
  for (std::int64_t i = begin; i < end; ++i) {
    const auto block = static_cast<std::uint64_t>(i) / random.size();
    const std::size_t draw = static_cast<std::uint64_t>(i) % random.size();
    if (draw == 0) {
      random = philox({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32U), stream, 0}, key);
    }
    act(i, random[draw]);
  }
}

/// Rounds to nearest, after a random error of up to half a unit in the last of `bits` bits.
void round_disturbed(graph::DType dtype, int bits, std::span<double> values, std::uint32_t stream,
                     device::Threads& threads) {
  threads.split(std::ssize(values), 4096, [&](std::int64_t begin, std::int64_t end) {
    for_each_random(stream, begin, end, [&](std::int64_t i, std::uint32_t random) {
      double& value = values[static_cast<std::size_t>(i)];
      value = disturbed(value, bits, random);
    });
    round_to_nearest(dtype, values.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
  });
}

}  // namespace

Size larger(const Size& a, const Size& b) noexcept {
  return {.mean = std::max(a.mean, b.mean), .largest = std::max(a.largest, b.largest)};
}

Size rounding_of(graph::DType dtype, std::span<const double> values) noexcept {
  double squares = 0;
  double largest = 0;
  for (const double value : values) {
    const double half = half_of_last_place(dtype, value);
    squares += half * half / 3;  // the mean square of uniformly distributed errors
    largest = std::max(largest, half);
  }
  return {.mean = std::sqrt(squares / static_cast<double>(values.size())), .largest = largest};
}

void round_result(graph::DType rounded, std::span<double> values, std::uint32_t stream, device::Threads& threads) {
  round_disturbed(rounded, std::min(kept_bits, bits_of(rounded)), values, stream, threads);
}

void round_stored(graph::DType dtype, std::span<double> values, std::uint32_t stream, device::Threads& threads) {
  round_disturbed(dtype, kept_bits, values, stream, threads);
}

void round_change(graph::DType dtype, std::span<const double> before, std::span<double> after, std::uint32_t stream) {
  for_each_random(stream, 0, std::ssize(after), [&](std::int64_t i, std::uint32_t random) {
    const auto at = static_cast<std::size_t>(i);
    after[at] = before[at] + disturbed(after[at] - before[at], kept_bits, random);
  });
  round_to_nearest(dtype, after);
}

}  // namespace shardrun::verify
