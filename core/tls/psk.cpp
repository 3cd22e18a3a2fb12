#include "core/tls/psk.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <cstddef>
#include <utility>

#include "core/base/error.h"

namespace shardrun::tls {
namespace {

constexpr std::string_view common_identity = "shardrun";

void require(bool succeeded) {
  if (!succeeded) {
    throw Error(ErrorCode::internal, "OpenSSL cannot speak TLS 1.3 with TLS_AES_256_GCM_SHA384 and a pre-shared key");
  }
}

/// The index of the key in a context's extra data.
int key_index() {
  static const int index = ::SSL_CTX_get_ex_new_index(
      0, nullptr, nullptr, nullptr,
      [](void*, void* key, CRYPTO_EX_DATA*, int, long, void*) { delete static_cast<Key*>(key); });
  return index;
}

/// The index of the identity in a connection's extra data.
int identity_index() {
  static const int index = ::SSL_get_ex_new_index(
      0, nullptr, nullptr, nullptr,
      [](void*, void* identity, CRYPTO_EX_DATA*, int, long, void*) { delete static_cast<Identity*>(identity); });
  return index;
}

/// Null if the connection has no identity of its own.
const Identity* identity_of(const SSL* connection) {
  return static_cast<const Identity*>(::SSL_get_ex_data(connection, identity_index()));
}

/// The pre-shared key in OpenSSL's form. It is made anew for each handshake, because it expires. Null if OpenSSL fails.
SSL_SESSION* new_session(SSL* connection) {
  const auto& key = *static_cast<const Key*>(::SSL_CTX_get_ex_data(::SSL_get_SSL_CTX(connection), key_index()));
  constexpr std::array<unsigned char, 2> aes_256_gcm_sha384 = {0x13, 0x02};
  std::unique_ptr<SSL_SESSION, decltype(&::SSL_SESSION_free)> session(::SSL_SESSION_new(), ::SSL_SESSION_free);
  const bool made =
      session != nullptr && ::SSL_SESSION_set1_master_key(session.get(), key.data(), key.size()) == 1 &&
      ::SSL_SESSION_set_cipher(session.get(), ::SSL_CIPHER_find(connection, aes_256_gcm_sha384.data())) == 1 &&
      ::SSL_SESSION_set_protocol_version(session.get(), TLS1_3_VERSION) == 1;
  return made ? session.release() : nullptr;
}

int offer_key(SSL* connection, const EVP_MD*, const unsigned char** name, std::size_t* size, SSL_SESSION** session) {
  const Identity* const identity = identity_of(connection);
  const std::string_view offered = identity != nullptr ? identity->offered : common_identity;
  *name = reinterpret_cast<const unsigned char*>(offered.data());
  *size = offered.size();
  *session = new_session(connection);
  return *session != nullptr ? 1 : 0;
}

int find_key(SSL* connection, const unsigned char* name, std::size_t size, SSL_SESSION** session) {
  const std::string_view offered(reinterpret_cast<const char*>(name), size);
  const Identity* const identity = identity_of(connection);
  const bool is_meant = identity != nullptr ? identity->meant(offered) : offered == common_identity;
  *session = is_meant ? new_session(connection) : nullptr;
  return !is_meant || *session != nullptr ? 1 : 0;
}

}  // namespace

void Free::operator()(SSL_CTX* context) const noexcept { ::SSL_CTX_free(context); }

void Free::operator()(SSL* connection) const noexcept { ::SSL_free(connection); }

Context psk_context(End end, const Key& key) {
  // OpenSSL must not clean up when the process exits, because threads with connections may still use it.
  require(::OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, nullptr) == 1);
  Context context(::SSL_CTX_new(end == End::client ? ::TLS_client_method() : ::TLS_server_method()));
  require(context != nullptr);
  auto own_key = std::make_unique<Key>(key);
  require(::SSL_CTX_set_ex_data(context.get(), key_index(), own_key.get()) == 1);
  static_cast<void>(own_key.release());  // the context owns it now
  require(::SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION) == 1 &&
          ::SSL_CTX_set_max_proto_version(context.get(), TLS1_3_VERSION) == 1 &&
          ::SSL_CTX_set_ciphersuites(context.get(), "TLS_AES_256_GCM_SHA384") == 1 &&
          ::SSL_CTX_set_num_tickets(context.get(), 0) == 1);
  ::SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  ::SSL_CTX_set_options(context.get(), SSL_OP_NO_TICKET);
  ::SSL_CTX_clear_options(context.get(), SSL_OP_ENABLE_MIDDLEBOX_COMPAT | SSL_OP_ALLOW_NO_DHE_KEX);
  if (end == End::client) {
    ::SSL_CTX_set_psk_use_session_callback(context.get(), offer_key);
  } else {
    ::SSL_CTX_set_psk_find_session_callback(context.get(), find_key);
  }
  return context;
}

Connection psk_connection(const Context& context) {
  Connection connection(::SSL_new(context.get()));
  require(connection != nullptr);
  ::SSL_is_server(connection.get()) == 1 ? ::SSL_set_accept_state(connection.get())
                                         : ::SSL_set_connect_state(connection.get());
  return connection;
}

Connection psk_connection(const Context& context, Identity identity) {
  Connection connection = psk_connection(context);
  auto own = std::make_unique<Identity>(std::move(identity));
  require(::SSL_set_ex_data(connection.get(), identity_index(), own.get()) == 1);
  static_cast<void>(own.release());  // the connection owns it now
  return connection;
}

bool has_proved_key(const Connection& connection) { return ::SSL_session_reused(connection.get()) == 1; }

std::string reason() {
  const char* const text = ::ERR_reason_error_string(::ERR_peek_error());
  return text != nullptr ? text : "no reason given";
}

}  // namespace shardrun::tls
