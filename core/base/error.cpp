#include "core/base/error.h"

#include <utility>

namespace shardrun {

Error::Error(ErrorCode code, std::string message, std::optional<int> awaited)
    : code_(code), message_(std::move(message)), awaited_(awaited) {}

int exit_code(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::usage:
    case ErrorCode::job:
    case ErrorCode::plugin:
    case ErrorCode::data: return 2;
    case ErrorCode::io:
    case ErrorCode::shape_mismatch:
    case ErrorCode::numerics:
    case ErrorCode::damaged:
    case ErrorCode::transport:
    case ErrorCode::timeout:
    case ErrorCode::aborted:
    case ErrorCode::peer_lost:
    case ErrorCode::unsaved:
    case ErrorCode::internal: return 1;
  }
  return 1;
}

}  // namespace shardrun
