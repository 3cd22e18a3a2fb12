#pragma once

#include <openssl/types.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "core/launch/protocol.h"
#include "core/tls/psk.h"

namespace shardrun::launch {

/// The ends of a control connection. A rank is TLS's client.
enum class TlsEnd { rank, launcher };

using TlsContext = tls::Context;

/// How an end of control connections speaks TLS 1.3: by a key derived from the run's token. Throws Error{internal} if
/// OpenSSL fails.
[[nodiscard]] TlsContext tls_context(TlsEnd end, const Token& token);

/// TLS of one connection, apart from its socket. Only one thread at a time may use it.
class Tls {
 public:
  /// The most bytes that the other end may send before it has proved that it knows the token.
  static constexpr std::size_t most_unproved_bytes = 4096;
  /// The key of what this end sends is renewed after so many messages. AES-GCM allows 2^24 records for a key; that many
  /// messages are fewer than 2^19 records.
  static constexpr int messages_per_key = 4096;

  /// Throws Error{internal} if OpenSSL fails.
  explicit Tls(const TlsContext& context);

  /// Takes bytes that came from the other end, none to begin the handshake. Appends to `messages` what they say. Throws
  /// ProtocolError if they are not as the other end sent them, or if it does not know the token.
  void receive(std::string_view bytes, std::string& messages);
  /// Whether both ends have proved that they know the token.
  [[nodiscard]] bool has_proved() const { return has_proved_; }
  /// REQUIRES: has_proved(). Throws Error{internal} if OpenSSL fails.
  void send(std::string_view message);
  /// The bytes for the other end that no call has returned yet.
  [[nodiscard]] std::string take_output();

 private:
  void require_progress(int result) const;

  tls::Connection connection_;
  BIO* incoming_ = nullptr;  ///< these two are `connection_`'s
  BIO* outgoing_ = nullptr;
  bool has_proved_ = false;
  std::size_t unproved_bytes_ = 0;
  int messages_of_key_ = 0;  ///< sent with the current key
};

}  // namespace shardrun::launch
