#pragma once

#include <string>
#include <string_view>

#include "core/launch/keys.h"
#include "core/launch/protocol.h"

namespace shardrun::launch {

// How a rank and its launcher prove to each other that they know the run's token, which is never sent.
//
//   rank      greeting   hello_magic and the rank's nonce
//   launcher  challenge  the launcher's nonce and its proof
//   rank      hello      who it is (see Hello): sealed, as every frame of both sides from here on
//
// The proof and the keys of the two directions are HMAC-SHA-256 of a label of their own, the protocol's version and
// both nonces, under a key that is derived from the token for the store alone. The launcher's proof is checked before
// the rank says who it is. A hello that opens is the rank's proof. Nonces are fresh for each connection, so nothing
// that was recorded is of use in another.

using Nonce = Digest;

/// What both ends of one connection know, and nobody else.
struct SessionKeys {
  Digest proof;  ///< of the launcher
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
/// These throw ProtocolError.
[[nodiscard]] Nonce decode_greeting(std::string_view payload);
[[nodiscard]] Challenge decode_challenge(std::string_view payload);

}  // namespace shardrun::launch
