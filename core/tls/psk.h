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

/// How an end speaks TLS 1.3. Its only credential is a pre-shared key. Each connection adds a Diffie-Hellman exchange
/// (psk_dhe_ke), so whoever learns the key later cannot read a recording. There are no certificates, no tickets and no
/// early data. A context serves one end only: what a client sends is no answer to a client. Throws Error{internal} if
/// OpenSSL fails.
[[nodiscard]] Context psk_context(End end, const Key& key);

/// What a client calls the key. It is sent in the clear, and the handshake proves that nobody has altered it.
struct Identity {
  std::string offered;                                  ///< by a client
  std::function<bool(std::string_view offered)> meant;  ///< whether a server goes on with a client that offers this
};

/// A connection of the context, without a BIO yet. Connections without an identity of their own share one that tells
/// nothing. Throws Error{internal} if OpenSSL fails.
[[nodiscard]] Connection psk_connection(const Context& context);
[[nodiscard]] Connection psk_connection(const Context& context, Identity identity);

/// Whether a handshake that has succeeded did so by the key. A certificate, which any stranger can make, is no proof.
[[nodiscard]] bool has_proved_key(const Connection& connection);

/// What OpenSSL gives as the reason of this thread's first error.
[[nodiscard]] std::string reason();

}  // namespace shardrun::tls
