#include "core/launch/keys.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "core/base/error.h"

namespace shardrun::launch {

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

}  // namespace shardrun::launch
