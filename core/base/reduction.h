#pragma once

#include <cstdint>

namespace shardrun {

/// How the partial values of ranks or shards are combined.
enum class Reduction : std::uint8_t { sum, max, min };

[[nodiscard]] constexpr const char* to_string(Reduction reduction) noexcept {
  return reduction == Reduction::sum ? "sum" : reduction == Reduction::max ? "max" : "min";
}

/// Combines two values. NaN if one of them is NaN.
template <typename T>
[[nodiscard]] constexpr T combined(Reduction reduction, T a, T b) noexcept {
  switch (reduction) {
    case Reduction::sum: break;
    case Reduction::max: return a < b || b != b ? b : a;
    case Reduction::min: return b < a || b != b ? b : a;
  }
  return static_cast<T>(a + b);
}

}  // namespace shardrun
