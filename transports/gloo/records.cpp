#include "transports/gloo/records.h"

#include <openssl/evp.h>

#include <stdexcept>

namespace shardrun::gloo_transport {
namespace {

void require(bool succeeded) {
  if (!succeeded) {
    throw std::runtime_error("OpenSSL refuses AES-128-GCM");
  }
}

}  // namespace

void Records::Free::operator()(EVP_CIPHER_CTX* context) const noexcept { ::EVP_CIPHER_CTX_free(context); }

/// The cipher takes the first half of the key: AES-128 is a third faster than AES-256.
Records::Records(Protection protection, const Key& key) : protection_(protection), context_(::EVP_CIPHER_CTX_new()) {
  require(context_ != nullptr &&
          ::EVP_CipherInit_ex(context_.get(), ::EVP_aes_128_gcm(), nullptr, key.data(), nullptr, 1) == 1);
}

/// The key is that of one direction of one connection, so that its records may be counted for nonces.
void Records::begin(bool seals) {
  std::array<std::uint8_t, 12> nonce = {};
  for (std::size_t i = 0; i < sizeof(count_); ++i) {
    nonce[4 + i] = static_cast<std::uint8_t>(count_ >> (8 * i));
  }
  ++count_;
  require(::EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr, nonce.data(), seals ? 1 : 0) == 1);
}

Tag Records::seal(const std::uint8_t* plain, std::size_t bytes, std::uint8_t* sealed) {
  begin(true);
  int moved = 0;
  Tag tag = {};
  // Without a place for its output, OpenSSL takes bytes as those that are to be authenticated alone.
  std::uint8_t* const to = protection_ == Protection::encrypt ? sealed : nullptr;
  require(::EVP_CipherUpdate(context_.get(), to, &moved, plain, static_cast<int>(bytes)) == 1);
  require(::EVP_CipherFinal_ex(context_.get(), tag.data(), &moved) == 1);
  require(::EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, sizeof(tag), tag.data()) == 1);
  return tag;
}

bool Records::open(std::uint8_t* data, std::size_t bytes, Tag tag) {
  begin(false);
  int moved = 0;
  std::uint8_t* const to = protection_ == Protection::encrypt ? data : nullptr;
  Tag nothing = {};
  require(::EVP_CipherUpdate(context_.get(), to, &moved, data, static_cast<int>(bytes)) == 1);
  require(::EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, sizeof(tag), tag.data()) == 1);
  return ::EVP_CipherFinal_ex(context_.get(), nothing.data(), &moved) == 1;
}

}  // namespace shardrun::gloo_transport
