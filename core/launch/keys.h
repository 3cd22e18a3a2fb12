#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "core/launch/protocol.h"

namespace shardrun::launch {

using Digest = std::array<std::uint8_t, 32>;

/// HMAC-SHA-256 (RFC 2104, FIPS 180-4), by OpenSSL. Throws Error{internal} if OpenSSL fails.
[[nodiscard]] Digest hmac_sha256(const Digest& key, std::string_view message);

/// A key for one purpose: HMAC-SHA-256 of the purpose under the token. Keys for different purposes are independent, and
/// none reveals the token.
[[nodiscard]] Digest derive_key(const Token& token, std::string_view purpose);

}  // namespace shardrun::launch
