#pragma once

#include <cstdint>

namespace shardrun {

/// How the partial values of ranks or shards combine to the value.
enum class Reduction : std::uint8_t { sum, max };

[[nodiscard]] constexpr const char* to_string(Reduction reduction) noexcept {
  return reduction == Reduction::sum ? "sum" : "max";
}

}  // namespace shardrun
