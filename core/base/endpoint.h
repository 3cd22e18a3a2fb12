#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace shardrun {

/// Where a server listens.
struct Endpoint {
  std::string host = "127.0.0.1";  ///< a name or an address
  std::uint16_t port = 0;          ///< 0: any free one
};

/// Reads PORT, HOST:PORT or [ADDRESS]:PORT, as in "9100" and "[::1]:9100". Nothing if the text has no such form.
[[nodiscard]] std::optional<Endpoint> endpoint_of(std::string_view text);

/// HOST:PORT, or [ADDRESS]:PORT for an address with colons.
[[nodiscard]] std::string to_string(const Endpoint& endpoint);

}  // namespace shardrun
