#include "transports/gloo/keys.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <stdexcept>

namespace shardrun::gloo_transport {

Key hmac(const Key& key, std::string_view message) {
  Key digest = {};
  unsigned int bytes = 0;
  if (::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()),
             reinterpret_cast<const unsigned char*>(message.data()), message.size(), digest.data(),
             &bytes) == nullptr ||
      bytes != digest.size()) {
    throw std::runtime_error("OpenSSL computed no HMAC-SHA-256");
  }
  return digest;
}

Key random_key() {
  Key key = {};
  if (::RAND_bytes(key.data(), static_cast<int>(key.size())) != 1) {
    throw std::runtime_error("OpenSSL has no random bytes");
  }
  return key;
}

bool are_equal(const Key& one, const Key& other) noexcept {
  return ::CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

std::string ChannelBinding::text() const {
  std::string text;
  for (const std::string& field :
       {run, group, std::to_string(connector), std::to_string(acceptor), std::string(name_of(protection)), addresses}) {
    text += std::to_string(field.size()) + ":" + field + ",";
  }
  return text;
}

Proofs prove(const Key& secret, const ChannelBinding& binding, const Key& connector_nonce, const Key& acceptor_nonce) {
  std::string transcript = "shardrun gloo 1\n";
  transcript.append(connector_nonce.begin(), connector_nonce.end());
  transcript.append(acceptor_nonce.begin(), acceptor_nonce.end());
  transcript += binding.text();
  const Key session = hmac(secret, transcript);
  return {.of_connector = hmac(session, "proof of the connector"),
          .of_acceptor = hmac(session, "proof of the acceptor"),
          .to_acceptor = hmac(session, "key to the acceptor"),
          .to_connector = hmac(session, "key to the connector")};
}

}  // namespace shardrun::gloo_transport
