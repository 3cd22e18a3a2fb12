#include <fmt/format.h>
#include <shardrun/sdk/plugin.hpp>

#include <algorithm>
#include <exception>

#include "plugins/loader/call.h"
#include "plugins/loader/transport_state.h"

namespace shardrun::plugins {
namespace {

std::int32_t status_of(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::timeout: return SR_TIMEOUT;
    case ErrorCode::aborted: return SR_ABORTED;
    case ErrorCode::peer_lost: return SR_PEER_LOST;
    case ErrorCode::job: return SR_INVALID;
    default: return SR_INTERNAL;
  }
}

ErrorCode code_of(std::int32_t status) noexcept {
  switch (status) {
    case SR_TIMEOUT: return ErrorCode::timeout;
    case SR_ABORTED: return ErrorCode::aborted;
    case SR_PEER_LOST: return ErrorCode::peer_lost;
    default: return ErrorCode::transport;
  }
}

/// Returns "WHAT: TEXT". If `text` begins with the last words of `what`, as when both name the op, these words appear
/// only once.
std::string joined(std::string_view what, std::string_view text) {
  constexpr std::string_view between = ", ";
  for (std::size_t at = what.find(between); at != std::string_view::npos; at = what.find(between, at + 1)) {
    const std::string_view end = what.substr(at + between.size());
    const std::string_view rest = text.starts_with(end) ? text.substr(end.size()) : std::string_view();
    if (rest.starts_with(':') || rest.starts_with(' ')) {
      return fmt::format("{}{}", what, rest);
    }
  }
  return fmt::format("{}: {}", what, text);
}

TransportState& state_of(void* self) noexcept { return *static_cast<TransportState*>(self); }

/// Runs one of the host's functions for a plugin. Returns a status.
template <class Act>
std::int32_t serve(sr_error* error, Act act) noexcept {
  try {
    return act();
  } catch (const Error& failure) {
    sdk::detail::write_error(error, failure.message());
    return status_of(failure.code());
  } catch (const std::exception& failure) {
    sdk::detail::write_error(error, failure.what());
    return SR_INTERNAL;
  }
}

std::int64_t now(void* /*self*/) { return transport_clock(); }

std::uint32_t aborted(void* self) {
  const TransportHost* host = state_of(self).host;
  return host != nullptr && host->aborted() ? 1 : 0;
}

TransportHost& opened_host(void* self) {
  TransportHost* host = state_of(self).host;
  if (host == nullptr) {
    throw Error(ErrorCode::internal, "the store is there when the transport is opened, and not before");
  }
  return *host;
}

std::int32_t store_set(void* self, const char* key, const void* value, std::uint64_t bytes, sr_error* error) {
  return serve(error, [&] {
    opened_host(self).store_set(key, std::string(static_cast<const char*>(value), bytes));
    return SR_OK;
  });
}

std::int32_t store_get(void* self, const char* key, void* value, std::uint64_t* bytes, std::int64_t deadline,
                       sr_error* error) {
  return serve(error, [&] {
    const std::string found = opened_host(self).store_get(key, deadline);
    if (found.size() > *bytes) {
      sdk::detail::write_error(
          error, fmt::format("key '{}' holds {} bytes, more than the {} there is room for", key, found.size(), *bytes));
      return SR_INVALID;
    }
    std::copy(found.begin(), found.end(), static_cast<char*>(value));
    *bytes = found.size();
    return SR_OK;
  });
}

std::int32_t open_transport(void* self, const char* name, const sr_plugin** plugin, sr_error* error) {
  return serve(error, [&] {
    *plugin = &state_of(self).wrap(name);
    return SR_OK;
  });
}

std::int32_t transport_options(void* self, const char* name, const sr_option_value** options,
                               std::uint32_t* option_count, std::uint32_t* option_stride, sr_error* error) {
  return serve(error, [&] {
    for (const WrappedTransport& each : state_of(self).wrapped) {
      if (each.plugin.manifest().name == name) {
        *options = each.options.data();
        *option_count = static_cast<std::uint32_t>(each.options.size());
        *option_stride = sizeof(sr_option_value);
        return SR_OK;
      }
    }
    sdk::detail::write_error(error, fmt::format("transport '{}' was not opened by this one", name));
    return SR_INVALID;
  });
}

}  // namespace

sdk::TransportError failure_of(std::int32_t status, const sr_error& error) {
  const std::string text = text_of(error);
  const auto awaited = sdk::TransportError(status, error).awaited();
  return {status, text.empty() ? fmt::format("status {}, and no reason given", status) : text, awaited};
}

void fail(std::string_view what, const sdk::TransportError& failure) {
  throw Error(code_of(failure.status()), joined(what, failure.what()), failure.awaited());
}

sr_transport_host raw_host(TransportState& self) noexcept {
  return {sizeof(sr_transport_host), 0, &self, now, aborted, store_set, store_get, open_transport, transport_options};
}

}  // namespace shardrun::plugins
