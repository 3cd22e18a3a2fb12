#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace shardrun::gloo_transport {

using Key = std::array<std::uint8_t, 32>;

/// HMAC-SHA-256 (RFC 2104). Throws std::runtime_error where OpenSSL cannot.
[[nodiscard]] Key hmac(const Key& key, std::string_view message);
/// From the system's generator. Throws std::runtime_error.
[[nodiscard]] Key random_key();
/// In a time that does not tell where they differ.
[[nodiscard]] bool are_equal(const Key& one, const Key& other) noexcept;

/// What is done to the bytes of a connection whose ends have proved themselves.
enum class Protection : std::uint8_t {
  none,       ///< nothing
  integrity,  ///< each record has a tag: AES-128-GMAC
  encrypt,    ///< each record is encrypted and has a tag: AES-128-GCM
};

[[nodiscard]] constexpr const char* name_of(Protection protection) noexcept {
  return protection == Protection::none ? "none" : protection == Protection::integrity ? "integrity" : "encrypt";
}

/// What both ends of a connection have to mean. It is part of every proof and of every key. Its text tells each field's
/// length, so that no two connections of any run have the same text.
struct Subject {
  std::string run;              ///< Config::job
  std::string group;            ///< its id, its generation and its members
  std::uint32_t connector = 0;  ///< member that connects
  std::uint32_t acceptor = 0;   ///< member that listens
  Protection protection = Protection::none;
  /// Of both ends, the connector's first: where the records are not protected, somebody who passes on the bytes of a
  /// handshake between two connections of his own could change all that follows.
  std::string addresses;

  [[nodiscard]] std::string text() const;
};

/// The proofs that the two ends of a connection send each other, and the keys of its two directions. Each is derived
/// from the secret, the subject and both nonces. None reveals another.
struct Proofs {
  Key of_connector;
  Key of_acceptor;
  Key to_acceptor;   ///< of the records that the connector sends
  Key to_connector;  ///< of those that it receives
};
[[nodiscard]] Proofs prove(const Key& secret, const Subject& subject, const Key& connector_nonce,
                           const Key& acceptor_nonce);

}  // namespace shardrun::gloo_transport
