#pragma once

#include <openssl/types.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace shardrun::tls {

enum class End { client, server };

struct Free {
  void operator()(SSL_CTX* context) const noexcept;
  void operator()(SSL* connection) const noexcept;
};
using Context = std::unique_ptr<SSL_CTX, Free>;
using Connection = std::unique_ptr<SSL, Free>;

using Key = std::array<std::uint8_t, 32>;

/// Settings with which an end speaks TLS 1.3. Its only credential is a pre-shared key. Each connection adds a
/// Diffie-Hellman exchange (psk_dhe_ke), so whoever learns the key later cannot read a recording. There are no
/// certificates, no tickets and no early data. A context serves only one end, so what a client sends cannot be replayed
/// as an answer to a client. Throws Error{internal} if OpenSSL fails.
[[nodiscard]] Context psk_context(End end, const Key& key);

/// The name of the key that a client sends. It is sent in the clear; the handshake proves that nobody has altered it.
struct Identity {
  std::string offered;                                  ///< sent by a client
  std::function<bool(std::string_view offered)> meant;  ///< whether a server accepts a client that sends this
};

/// Makes a connection, without a BIO yet. Connections without an identity of their own share a fixed one. Throws
/// Error{internal} if OpenSSL fails.
[[nodiscard]] Connection psk_connection(const Context& context);
[[nodiscard]] Connection psk_connection(const Context& context, Identity identity);

/// Whether a completed handshake used the key. A certificate, which any stranger can make, is no proof.
[[nodiscard]] bool has_proved_key(const Connection& connection);

/// OpenSSL's text for the first error of this thread.
[[nodiscard]] std::string reason();

}  // namespace shardrun::tls
