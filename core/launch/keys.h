#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "core/launch/protocol.h"

namespace shardrun::launch {

using Digest = std::array<std::uint8_t, 32>;

/// Derives a key for one purpose: HMAC-SHA-256 (RFC 2104, FIPS 180-4) of the purpose under the token, by OpenSSL. Keys
/// for different purposes are independent, and none reveals the token. Throws Error{internal} if OpenSSL fails.
[[nodiscard]] Digest derive_key(const Token& token, std::string_view purpose);

}  // namespace shardrun::launch
