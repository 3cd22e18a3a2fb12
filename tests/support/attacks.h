#pragma once

#include <cstdlib>

namespace shardrun::test {

/// How often a test repeats an attack: SHARDRUN_ATTACKS if that is set, otherwise `few`.
[[nodiscard]] inline int attacks(int few) {
  const char* const given = std::getenv("SHARDRUN_ATTACKS");
  return given == nullptr ? few : std::atoi(given);
}

}  // namespace shardrun::test
