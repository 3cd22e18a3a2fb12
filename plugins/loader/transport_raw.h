#pragma once

#include <shardrun/sdk/op.hpp>
#include <shardrun/transport.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "plugins/loader/transport.h"

namespace shardrun::plugins {

[[nodiscard]] inline sr_error empty_error() noexcept {
  sr_error error{};
  error.struct_size = sizeof(error);
  return error;
}

/// A plugin's failure, with a text that can be printed.
[[nodiscard]] sdk::TransportError failure_of(std::int32_t status, const sr_error& error);

/// Throws Error "WHAT: TEXT" with the code for an SR_... status.
[[noreturn]] void fail(std::string_view what, const sdk::TransportError& failure);

/// The host's functions for an opened transport. `self` is their first argument.
[[nodiscard]] sr_transport_host raw_host(TransportState& self) noexcept;

}  // namespace shardrun::plugins
