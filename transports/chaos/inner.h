#pragma once

#include <shardrun/transport.h>

#include <cstdint>

#include "transports/chaos/faults.h"

namespace shardrun::chaos_transport {

/// The inner transport, which moves the bytes. A copyable view: the host closes it after the wrapper.
struct Inner {
  void* self = nullptr;
  const sr_transport* functions = nullptr;  ///< has the functions of ABI 1.0; ask SR_HAS for others

  /// Calls a function of it. Its status and its error text go to the caller unchanged.
  template <class Function, class... Arguments>
  [[nodiscard]] std::int32_t operator()(Function function, Arguments... arguments) const noexcept {
    return (functions->*function)(self, arguments...);
  }
};

}  // namespace shardrun::chaos_transport
