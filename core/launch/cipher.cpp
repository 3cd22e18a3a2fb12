#include "core/launch/cipher.h"

#include <openssl/evp.h>

#include <array>
#include <utility>

#include "core/base/error.h"

namespace shardrun::launch {
namespace {

void require(bool succeeded) {
  if (!succeeded) {
    throw Error(ErrorCode::internal, "OpenSSL cannot encrypt with AES-256-GCM");
  }
}

const unsigned char* bytes_of(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }

unsigned char* bytes_of(std::string& text) { return reinterpret_cast<unsigned char*>(text.data()); }

}  // namespace

void Cipher::FreeContext::operator()(evp_cipher_ctx_st* context) const noexcept { ::EVP_CIPHER_CTX_free(context); }

Cipher::Cipher(const Digest& key) : context_(::EVP_CIPHER_CTX_new()), key_(key) { require(context_ != nullptr); }

void Cipher::begin_message(std::string_view header, int encrypt) {
  std::array<unsigned char, 12> nonce = {};
  for (std::size_t byte = 0; byte < sizeof number_; ++byte) {
    nonce[byte] = static_cast<unsigned char>((number_ >> (8 * byte)) & 0xFFU);
  }
  ++number_;
  int written = 0;
  require(::EVP_CipherInit_ex(context_.get(), ::EVP_aes_256_gcm(), nullptr, key_.data(), nonce.data(), encrypt) == 1 &&
          ::EVP_CipherUpdate(context_.get(), nullptr, &written, bytes_of(header), static_cast<int>(header.size())) ==
              1);
}

std::string Cipher::seal(std::string_view header, std::string_view message) {
  begin_message(header, 1);
  std::string sealed(message.size() + tag_bytes, '\0');
  int written = 0;
  int rest = 0;
  require(::EVP_CipherUpdate(context_.get(), bytes_of(sealed), &written, bytes_of(message),
                             static_cast<int>(message.size())) == 1 &&
          ::EVP_CipherFinal_ex(context_.get(), bytes_of(sealed) + written, &rest) == 1 &&
          ::EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, static_cast<int>(tag_bytes),
                                bytes_of(sealed) + message.size()) == 1);
  return sealed;
}

std::optional<std::string> Cipher::open(std::string_view header, std::string_view sealed) {
  if (sealed.size() < tag_bytes) {
    return std::nullopt;
  }
  begin_message(header, 0);
  std::string tag(sealed.substr(sealed.size() - tag_bytes));
  const std::string_view encrypted = sealed.substr(0, sealed.size() - tag_bytes);
  std::string message(encrypted.size(), '\0');
  int written = 0;
  int rest = 0;
  const bool is_intact =
      ::EVP_CipherUpdate(context_.get(), bytes_of(message), &written, bytes_of(encrypted),
                         static_cast<int>(encrypted.size())) == 1 &&
      ::EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, static_cast<int>(tag_bytes), tag.data()) == 1 &&
      ::EVP_CipherFinal_ex(context_.get(), bytes_of(message) + written, &rest) == 1;
  return is_intact ? std::optional(std::move(message)) : std::nullopt;
}

}  // namespace shardrun::launch
