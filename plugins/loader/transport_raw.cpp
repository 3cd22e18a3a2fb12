#include "plugins/loader/transport_raw.h"

#include <fmt/format.h>

#include "plugins/loader/call.h"

namespace shardrun::plugins {
namespace {

ErrorCode code_of(std::int32_t status) noexcept {
  switch (status) {
    case SR_TIMEOUT: return ErrorCode::timeout;
    case SR_ABORTED: return ErrorCode::aborted;
    case SR_PEER_LOST: return ErrorCode::peer_lost;
    default: return ErrorCode::transport;
  }
}

/// "WHAT: TEXT". Omits what `what` ends with where the text begins with it, such as an op that the transport names
/// itself.
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

}  // namespace

sdk::TransportError failure_of(std::int32_t status, const sr_error& error) {
  const std::string text = text_of(error);
  const auto awaited = sdk::TransportError(status, error).awaited();
  return {status, text.empty() ? fmt::format("status {}, and no reason given", status) : text, awaited};
}

void fail(std::string_view what, const sdk::TransportError& failure) {
  throw Error(code_of(failure.status()), joined(what, failure.what()), failure.awaited());
}

}  // namespace shardrun::plugins
