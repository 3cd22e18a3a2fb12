#include "core/launch/keys.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "core/base/error.h"

namespace shardrun::launch {

Digest hmac_sha256(const Digest& key, std::string_view message) {
  Digest digest = {};
  unsigned int size = 0;
  const auto* const bytes = reinterpret_cast<const unsigned char*>(message.data());
  if (::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes, message.size(), digest.data(), &size) ==
          nullptr ||
      size != digest.size()) {
    throw Error(ErrorCode::internal, "OpenSSL computed no HMAC-SHA-256");
  }
  return digest;
}

Digest derive_key(const Token& token, std::string_view purpose) { return hmac_sha256(token, purpose); }

}  // namespace shardrun::launch
