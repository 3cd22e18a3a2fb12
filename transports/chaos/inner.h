#pragma once

#include <shardrun/transport.h>

#include <cstdint>

#include "transports/chaos/faults.h"

namespace shardrun::chaos {

/// The transport that moves the bytes. A copyable view: the host closes it after the wrapper.
struct Inner {
  void* self = nullptr;
  const sr_transport* functions = nullptr;  ///< those of ABI 1.0 are there; ask SR_HAS for others

  /// A function's status, which goes on to the caller with the inner transport's own words.
  template <class Function, class... Arguments>
  [[nodiscard]] std::int32_t operator()(Function function, Arguments... arguments) const noexcept {
    return (functions->*function)(self, arguments...);
  }
};

}  // namespace shardrun::chaos
