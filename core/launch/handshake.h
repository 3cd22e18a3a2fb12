#pragma once

#include <string>
#include <string_view>

#include "core/launch/keys.h"
#include "core/launch/protocol.h"

namespace shardrun::launch {

// A rank and its launcher prove to each other that they know the run's token. The token itself is never sent.
//
//   rank      greeting   hello_magic and the rank's nonce
//   launcher  challenge  the launcher's nonce and its proof
//   rank      hello      its identity (see Hello); from here on both sides encrypt every frame
//
// The proof and the keys of the two directions are each an HMAC-SHA-256 of a label of its own, the protocol's version
// and both nonces. The HMAC's key is derived from the token for the store alone. The rank checks the launcher's proof
// before it sends its identity. A hello that decrypts is the rank's proof. Nonces are fresh for each connection, so a
// recording is of no use in another one.

using Nonce = Digest;

/// Secrets of one connection that only its two ends know.
struct SessionKeys {
  Digest proof;  ///< the launcher's
  Digest to_launcher;
  Digest to_rank;
};

[[nodiscard]] SessionKeys session_keys(const Token& token, const Nonce& of_rank, const Nonce& of_launcher);

struct Challenge {
  Nonce nonce = {};
  Digest proof = {};
};

[[nodiscard]] std::string encode_greeting(const Nonce& nonce);
[[nodiscard]] std::string encode(const Challenge& challenge);
/// Both throw ProtocolError.
[[nodiscard]] Nonce decode_greeting(std::string_view payload);
[[nodiscard]] Challenge decode_challenge(std::string_view payload);

}  // namespace shardrun::launch
