#pragma once

#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/conformance/member.h"

namespace shardrun::conformance {

/// A group that fails has one second to end its ops. A loaded machine gets some more.
constexpr double failure_limit_s = 5;

/// Throws Failure.
inline void require(bool holds, const std::string& what) {
  if (!holds) {
    throw Failure(what);
  }
}

/// The error that `act` fails with. Throws Failure where it does not fail.
template <class Act>
Error error_of(const std::string& what, Act act) {
  try {
    act();
  } catch (const Error& error) {
    return error;
  }
  throw Failure(what + " did not fail");
}

template <class Act>
ErrorCode code_of(const std::string& what, Act act) {
  return error_of(what, std::move(act)).code();
}

/// Waits for an op that is to fail by itself, soon. Returns its error code.
ErrorCode failure_of(plugins::TransportOp& op, const std::string& what);
/// The same with op_test only.
ErrorCode polled_failure_of(plugins::TransportOp& op, const std::string& what);

}  // namespace shardrun::conformance
