#include "core/launch/tls.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>

#include <array>

#include "core/base/error.h"

namespace shardrun::launch {
namespace {

void require(bool succeeded) {
  if (!succeeded) {
    throw Error(ErrorCode::internal, "OpenSSL does not go on with a control connection");
  }
}

}  // namespace

Digest derive_key(const Token& token, std::string_view purpose) {
  Digest digest = {};
  unsigned int size = 0;
  const auto* const bytes = reinterpret_cast<const unsigned char*>(purpose.data());
  if (::HMAC(::EVP_sha256(), token.data(), static_cast<int>(token.size()), bytes, purpose.size(), digest.data(),
             &size) == nullptr ||
      size != digest.size()) {
    throw Error(ErrorCode::internal, "OpenSSL computed no HMAC-SHA-256");
  }
  return digest;
}

TlsContext tls_context(tls::End end, const Token& token) {
  return tls::psk_context(end, derive_key(token, "TLS of control connections"));
}

Tls::Tls(const TlsContext& context) : connection_(tls::psk_connection(context)) {
  incoming_ = ::BIO_new(::BIO_s_mem());
  outgoing_ = ::BIO_new(::BIO_s_mem());
  ::SSL_set_bio(connection_.get(), incoming_, outgoing_);
  require(incoming_ != nullptr && outgoing_ != nullptr);
}

void Tls::require_progress(int result) const {
  if (result > 0 || ::SSL_get_error(connection_.get(), result) == SSL_ERROR_WANT_READ) {
    return;
  }
  throw ProtocolError("TLS failed: " + tls::reason());
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
    if (!tls::has_proved_key(connection_)) {
      throw ProtocolError("TLS succeeded without the key, by a certificate");
    }
    has_proved_ = true;
  }
  ::ERR_clear_error();                              // because SSL_get_error() looks at the error queue
  std::array<char, std::size_t{16} * 1024> record;  // as long as a TLS record can be
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
