#pragma once

#include <string>

#include "core/base/error.h"

namespace shardrun::test {

/// The exit code and message of the Error that `act` throws, such as "2: cannot …"; "nothing" if it throws none.
template <typename Act>
std::string error_of(const Act& act) {
  try {
    act();
  } catch (const Error& error) {
    return std::to_string(exit_code(error.code())) + ": " + error.message();
  }
  return "nothing";
}

}  // namespace shardrun::test
