#include <openssl/evp.h>

#include <stdexcept>

#include "transports/gloo/gcm.h"

namespace shardrun::gloo_transport {
namespace {

void require(bool succeeded) {
  if (!succeeded) {
    throw std::runtime_error("OpenSSL refuses AES-128-GCM");
  }
}

struct Free {
  void operator()(EVP_CIPHER_CTX* context) const noexcept { ::EVP_CIPHER_CTX_free(context); }
};

}  // namespace

struct Gcm::State {
  std::unique_ptr<EVP_CIPHER_CTX, Free> context{::EVP_CIPHER_CTX_new()};

  void begin(const Nonce& nonce, bool seals) {
    require(::EVP_CipherInit_ex(context.get(), nullptr, nullptr, nullptr, nonce.data(), seals ? 1 : 0) == 1);
  }

  /// With a null `to`, OpenSSL only authenticates the bytes.
  void update(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) {
    int moved = 0;
    require(::EVP_CipherUpdate(context.get(), to, &moved, from, static_cast<int>(bytes)) == 1);
  }
};

Gcm::Gcm(const Key& key) : state_(std::make_unique<State>()) {
  require(state_->context != nullptr &&
          ::EVP_CipherInit_ex(state_->context.get(), ::EVP_aes_128_gcm(), nullptr, key.data(), nullptr, 1) == 1);
}

Gcm::~Gcm() = default;

Tag Gcm::seal(const Nonce& nonce, const std::uint8_t* plain, std::size_t bytes, std::uint8_t* sealed) {
  state_->begin(nonce, true);
  state_->update(sealed, plain, bytes);
  Tag tag = {};
  int moved = 0;
  require(::EVP_CipherFinal_ex(state_->context.get(), tag.data(), &moved) == 1);
  require(::EVP_CIPHER_CTX_ctrl(state_->context.get(), EVP_CTRL_AEAD_GET_TAG, sizeof(tag), tag.data()) == 1);
  return tag;
}

bool Gcm::open(const Nonce& nonce, std::uint8_t* data, std::size_t bytes, bool decrypts, const Tag& tag) {
  state_->begin(nonce, false);
  state_->update(decrypts ? data : nullptr, data, bytes);
  Tag expected = tag;
  Tag nothing = {};
  int moved = 0;
  require(::EVP_CIPHER_CTX_ctrl(state_->context.get(), EVP_CTRL_AEAD_SET_TAG, sizeof(expected), expected.data()) == 1);
  return ::EVP_CipherFinal_ex(state_->context.get(), nothing.data(), &moved) == 1;
}

}  // namespace shardrun::gloo_transport
