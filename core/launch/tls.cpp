#include "core/launch/tls.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <array>

#include "core/base/error.h"
#include "core/launch/keys.h"

namespace shardrun::launch {
namespace {

/// Names the key to the other end, in the clear. It tells nothing of the run.
constexpr std::string_view identity = "shardrun";

void require(bool succeeded) {
  if (!succeeded) {
    throw Error(ErrorCode::internal, "OpenSSL cannot speak TLS 1.3 with TLS_AES_256_GCM_SHA384 and a pre-shared key");
  }
}

/// The index of the key in a context's extra data.
int key_index() {
  static const int index = ::SSL_CTX_get_ex_new_index(
      0, nullptr, nullptr, nullptr,
      [](void*, void* key, CRYPTO_EX_DATA*, int, long, void*) { delete static_cast<Digest*>(key); });
  return index;
}

/// The pre-shared key as OpenSSL wants it. A new one for each handshake, because it expires. Null if OpenSSL fails.
SSL_SESSION* new_session(SSL* tls) {
  const auto& key = *static_cast<const Digest*>(::SSL_CTX_get_ex_data(::SSL_get_SSL_CTX(tls), key_index()));
  constexpr std::array<unsigned char, 2> aes_256_gcm_sha384 = {0x13, 0x02};
  std::unique_ptr<SSL_SESSION, decltype(&::SSL_SESSION_free)> session(::SSL_SESSION_new(), ::SSL_SESSION_free);
  const bool made = session != nullptr && ::SSL_SESSION_set1_master_key(session.get(), key.data(), key.size()) == 1 &&
                    ::SSL_SESSION_set_cipher(session.get(), ::SSL_CIPHER_find(tls, aes_256_gcm_sha384.data())) == 1 &&
                    ::SSL_SESSION_set_protocol_version(session.get(), TLS1_3_VERSION) == 1;
  return made ? session.release() : nullptr;
}

int offer_key(SSL* tls, const EVP_MD*, const unsigned char** name, std::size_t* size, SSL_SESSION** session) {
  *name = reinterpret_cast<const unsigned char*>(identity.data());
  *size = identity.size();
  *session = new_session(tls);
  return *session != nullptr ? 1 : 0;
}

int find_key(SSL* tls, const unsigned char* name, std::size_t size, SSL_SESSION** session) {
  const bool is_known = std::string_view(reinterpret_cast<const char*>(name), size) == identity;
  *session = is_known ? new_session(tls) : nullptr;
  return !is_known || *session != nullptr ? 1 : 0;
}

}  // namespace

void FreeTls::operator()(SSL_CTX* context) const noexcept { ::SSL_CTX_free(context); }

void FreeTls::operator()(SSL* connection) const noexcept { ::SSL_free(connection); }

TlsContext tls_context(TlsEnd end, const Token& token) {
  // OpenSSL is not to take itself apart when the process exits: threads of control connections may still use it.
  require(::OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, nullptr) == 1);
  TlsContext context(::SSL_CTX_new(end == TlsEnd::rank ? ::TLS_client_method() : ::TLS_server_method()));
  require(context != nullptr);
  auto key = std::make_unique<Digest>(derive_key(token, "TLS of control connections"));
  require(::SSL_CTX_set_ex_data(context.get(), key_index(), key.get()) == 1);
  static_cast<void>(key.release());  // the context's
  require(::SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION) == 1 &&
          ::SSL_CTX_set_max_proto_version(context.get(), TLS1_3_VERSION) == 1 &&
          ::SSL_CTX_set_ciphersuites(context.get(), "TLS_AES_256_GCM_SHA384") == 1 &&
          ::SSL_CTX_set_num_tickets(context.get(), 0) == 1);
  ::SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  ::SSL_CTX_set_options(context.get(), SSL_OP_NO_TICKET);
  ::SSL_CTX_clear_options(context.get(), SSL_OP_ENABLE_MIDDLEBOX_COMPAT | SSL_OP_ALLOW_NO_DHE_KEX);
  if (end == TlsEnd::rank) {
    ::SSL_CTX_set_psk_use_session_callback(context.get(), offer_key);
  } else {
    ::SSL_CTX_set_psk_find_session_callback(context.get(), find_key);
  }
  return context;
}

Tls::Tls(const TlsContext& context) : connection_(::SSL_new(context.get())) {
  require(connection_ != nullptr);
  incoming_ = ::BIO_new(::BIO_s_mem());
  outgoing_ = ::BIO_new(::BIO_s_mem());
  ::SSL_set_bio(connection_.get(), incoming_, outgoing_);
  require(incoming_ != nullptr && outgoing_ != nullptr);
  ::SSL_is_server(connection_.get()) == 1 ? ::SSL_set_accept_state(connection_.get())
                                          : ::SSL_set_connect_state(connection_.get());
}

void Tls::require_progress(int result) const {
  if (result > 0 || ::SSL_get_error(connection_.get(), result) == SSL_ERROR_WANT_READ) {
    return;
  }
  const char* const reason = ::ERR_reason_error_string(::ERR_peek_error());
  throw ProtocolError(fmt::format("TLS failed: {}", reason != nullptr ? reason : "no reason given"));
}

void Tls::receive(std::string_view bytes, std::string& messages) {
  unproved_bytes_ += has_proved_ ? 0 : bytes.size();
  if (unproved_bytes_ > most_unproved_bytes) {
    throw ProtocolError(fmt::format("it sent more than {} bytes without a proof", most_unproved_bytes));
  }
  ::ERR_clear_error();
  require(::BIO_write(incoming_, bytes.data(), static_cast<int>(bytes.size())) == static_cast<int>(bytes.size()));
  if (!has_proved_) {
    const int result = ::SSL_do_handshake(connection_.get());
    require_progress(result);
    if (result != 1) {
      return;
    }
    if (::SSL_session_reused(connection_.get()) != 1) {
      throw ProtocolError("TLS succeeded without the key, by a certificate");
    }
    has_proved_ = true;
  }
  ::ERR_clear_error();                              // SSL_get_error() looks at it
  std::array<char, std::size_t{16} * 1024> record;  // as long as TLS makes them
  int got = 0;
  while ((got = ::SSL_read(connection_.get(), record.data(), static_cast<int>(record.size()))) > 0) {
    messages.append(record.data(), static_cast<std::size_t>(got));
  }
  require_progress(got);
}

void Tls::send(std::string_view message) {
  ::ERR_clear_error();
  if (++messages_of_key_ == messages_per_key) {
    require(::SSL_key_update(connection_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1);
    messages_of_key_ = 0;
  }
  require(::SSL_write(connection_.get(), message.data(), static_cast<int>(message.size())) ==
          static_cast<int>(message.size()));
}

std::string Tls::take_output() {
  std::string bytes(::BIO_ctrl_pending(outgoing_), '\0');
  static_cast<void>(::BIO_read(outgoing_, bytes.data(), static_cast<int>(bytes.size())));
  return bytes;
}

}  // namespace shardrun::launch
