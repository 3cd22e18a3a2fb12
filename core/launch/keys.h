#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "core/launch/protocol.h"

namespace shardrun::launch {

using Digest = std::array<std::uint8_t, 32>;

/// HMAC-SHA-256 (RFC 2104, FIPS 180-4), by OpenSSL. Throws Error{internal} where OpenSSL cannot.
[[nodiscard]] Digest hmac_sha256(const Digest& key, std::string_view message);

/// A key for one purpose alone: HMAC-SHA-256 of the purpose under the token. Two purposes have independent keys, and
/// none tells the token.
[[nodiscard]] Digest derive_key(const Token& token, std::string_view purpose);

}  // namespace shardrun::launch
