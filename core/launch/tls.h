#pragma once

#include <openssl/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/launch/protocol.h"
#include "core/tls/psk.h"

namespace shardrun::launch {

using Digest = std::array<std::uint8_t, 32>;

/// Derives a key for one purpose: HMAC-SHA-256 (RFC 2104, FIPS 180-4) of the purpose under the token, by OpenSSL. Keys
/// for different purposes are independent, and none reveals the token. Throws Error{internal} if OpenSSL fails.
[[nodiscard]] Digest derive_key(const Token& token, std::string_view purpose);

using TlsContext = tls::Context;

/// Settings for an end of a control connection: TLS 1.3 with a key that is derived from the run's token. The rank is
/// the client, the launcher the server. Throws Error{internal} if OpenSSL fails.
[[nodiscard]] TlsContext tls_context(tls::End end, const Token& token);

/// The TLS state of one connection, without its socket. Only one thread at a time may use it.
class Tls {
 public:
  /// The largest number of bytes that the other end may send before it has proved that it knows the token.
  static constexpr std::size_t most_unproved_bytes = 4096;
  /// Messages after which the key for sending is renewed. AES-GCM allows 2^24 records per key; this many messages are
  /// fewer than 2^19 records.
  static constexpr int messages_per_key = 4096;

  /// Throws Error{internal} if OpenSSL fails.
  explicit Tls(const TlsContext& context);

  /// Takes bytes that came from the other end; no bytes to begin the handshake. Appends the decrypted messages to
  /// `messages`. Throws ProtocolError if the bytes are not as the other end sent them, or if the other end does not
  /// know the token.
  void receive(std::string_view bytes, std::string& messages);
  /// Whether both ends have proved that they know the token.
  [[nodiscard]] bool has_proved() const { return has_proved_; }
  /// Encrypts a message. REQUIRES: has_proved(). Throws Error{internal} if OpenSSL fails.
  void send(std::string_view message);
  /// Removes and returns the bytes that must be sent to the other end.
  [[nodiscard]] std::string take_output();

 private:
  void require_progress(int result) const;

  tls::Connection connection_;
  BIO* incoming_ = nullptr;  ///< owned by `connection_`, like the next
  BIO* outgoing_ = nullptr;
  bool has_proved_ = false;
  std::size_t unproved_bytes_ = 0;
  int messages_of_key_ = 0;  ///< messages sent with the current key
};

}  // namespace shardrun::launch
