#include <fmt/format.h>
#include <shardrun/sdk/plugin.hpp>

#include <algorithm>
#include <exception>

#include "plugins/loader/transport_state.h"

namespace shardrun::plugins {
namespace {

std::int32_t status_of(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::timeout: return SR_TIMEOUT;
    case ErrorCode::aborted: return SR_ABORTED;
    case ErrorCode::peer_lost: return SR_PEER_LOST;
    default: return SR_INTERNAL;
  }
}

TransportState& state_of(void* self) noexcept { return *static_cast<TransportState*>(self); }

/// Runs one of the host's functions for a plugin.
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

std::uint32_t aborted(void* self) { return state_of(self).host->aborted() ? 1 : 0; }

std::int32_t store_set(void* self, const char* key, const void* value, std::uint64_t bytes, sr_error* error) {
  return serve(error, [&] {
    state_of(self).host->store_set(key, std::string(static_cast<const char*>(value), bytes));
    return SR_OK;
  });
}

std::int32_t store_get(void* self, const char* key, void* value, std::uint64_t* bytes, std::int64_t deadline,
                       sr_error* error) {
  return serve(error, [&] {
    const std::string found = state_of(self).host->store_get(key, deadline);
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
    TransportState& wrapper = state_of(self);
    wrapper.wrapped.push_back(Plugin::open(wrapper.directories, PluginKind::transport, name, wrapper.log));
    *plugin = &wrapper.wrapped.back().table();
    return SR_OK;
  });
}

}  // namespace

sr_transport_host raw_host(TransportState& self) noexcept {
  return {sizeof(sr_transport_host), 0, &self, now, aborted, store_set, store_get, open_transport};
}

}  // namespace shardrun::plugins
