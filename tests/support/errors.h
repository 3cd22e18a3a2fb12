#pragma once

#include <string>

#include "core/base/error.h"

namespace shardrun::test {

/// The message of the Error that `act` throws, with its exit code before it ("2: cannot …"), or "nothing".
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
