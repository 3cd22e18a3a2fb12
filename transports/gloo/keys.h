#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace shardrun::gloo_transport {

using Key = std::array<std::uint8_t, 32>;

/// HMAC-SHA-256 (RFC 2104). Throws std::runtime_error where OpenSSL cannot.
[[nodiscard]] Key hmac(const Key& key, std::string_view message);
/// From the system's random generator. Throws std::runtime_error.
[[nodiscard]] Key random_key();
/// Compares in constant time.
[[nodiscard]] bool are_equal(const Key& one, const Key& other) noexcept;

/// How the records of an authenticated connection are protected.
enum class Protection : std::uint8_t {
  none,       ///< nothing
  integrity,  ///< each record has a tag: AES-128-GMAC
  encrypt,    ///< each record is encrypted and has a tag: AES-128-GCM
};

[[nodiscard]] constexpr const char* name_of(Protection protection) noexcept {
  return protection == Protection::none ? "none" : protection == Protection::integrity ? "integrity" : "encrypt";
}

/// What both ends of a connection must agree on. It is an input of every proof and every key. Its text contains the
/// length of each field, so no two connections of any run have the same text.
struct ChannelBinding {
  std::string run;              ///< Config::job
  std::string group;            ///< its id, generation and members
  std::uint32_t connector = 0;  ///< member that connects
  std::uint32_t acceptor = 0;   ///< member that accepts
  Protection protection = Protection::none;
  /// Addresses of both ends, the connector's first. Without record protection they keep a relay from passing a
  /// handshake through two connections of its own and then changing the bytes that follow.
  std::string addresses;

  [[nodiscard]] std::string text() const;
};

/// The proofs that the two ends send each other, and the keys of the two directions. Each is derived from the secret,
/// the binding and both nonces. None reveals another.
struct Proofs {
  Key of_connector;
  Key of_acceptor;
  Key to_acceptor;   ///< seals the records that the connector sends
  Key to_connector;  ///< seals those that it receives
};
[[nodiscard]] Proofs prove(const Key& secret, const ChannelBinding& binding, const Key& connector_nonce,
                           const Key& acceptor_nonce);

}  // namespace shardrun::gloo_transport
