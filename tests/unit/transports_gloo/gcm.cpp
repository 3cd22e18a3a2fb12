#include "transports/gloo/gcm.h"

#include <openssl/evp.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "tests/support/catch.h"

using namespace shardrun::gloo_transport;

namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes bytes_of(std::size_t size) {
  Bytes bytes(size);
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{1});
  return bytes;
}

/// By OpenSSL's interface alone, whatever Gcm uses.
Tag openssl_tag(const Key& key, const Nonce& nonce, const Bytes& plain, Bytes* sealed) {
  EVP_CIPHER_CTX* const context = ::EVP_CIPHER_CTX_new();
  int moved = 0;
  Tag tag = {};
  REQUIRE(::EVP_EncryptInit_ex(context, ::EVP_aes_128_gcm(), nullptr, key.data(), nonce.data()) == 1);
  REQUIRE(::EVP_EncryptUpdate(context, sealed == nullptr ? nullptr : sealed->data(), &moved, plain.data(),
                              static_cast<int>(plain.size())) == 1);
  REQUIRE(::EVP_EncryptFinal_ex(context, tag.data(), &moved) == 1);
  REQUIRE(::EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, sizeof(tag), tag.data()) == 1);
  ::EVP_CIPHER_CTX_free(context);
  return tag;
}

}  // namespace

TEST_CASE("gloo: AES-GCM gives the published values", "[transports]") {
  // NIST's validation of GCM, test case 2 of McGrew and Viega: a key, a nonce and a block of zeros.
  Gcm gcm(Key{});
  Bytes block(16);
  const Tag tag = gcm.seal(Nonce{}, block.data(), block.size(), block.data());
  CHECK(block == Bytes{0x03, 0x88, 0xda, 0xce, 0x60, 0xb6, 0xa3, 0x92, 0xf3, 0x28, 0xc2, 0xb9, 0x71, 0xb2, 0xfe, 0x78});
  CHECK(tag == Tag{0xab, 0x6e, 0x47, 0xd4, 0x2c, 0xec, 0x13, 0xbd, 0xf5, 0x3a, 0x67, 0xb2, 0x12, 0x57, 0xbd, 0xdf});
}

TEST_CASE("gloo: AES-GCM and GMAC are OpenSSL's, whatever computes them", "[transports]") {
  const Key key = {9, 8, 7};
  const Nonce nonce = {5, 4, 3};
  for (const std::size_t size : {std::size_t{1}, std::size_t{15}, std::size_t{16}, std::size_t{48}, std::size_t{1000},
                                 std::size_t{131072}}) {
    CAPTURE(size);
    const Bytes plain = bytes_of(size);
    Gcm gcm(key);
    CHECK(gcm.seal(nonce, plain.data(), size, nullptr) == openssl_tag(key, nonce, plain, nullptr));
    Bytes sealed(size);
    Bytes expected(size);
    const Tag tag = gcm.seal(nonce, plain.data(), size, sealed.data());
    CHECK(tag == openssl_tag(key, nonce, plain, &expected));
    CHECK(sealed == expected);
    CHECK(gcm.open(nonce, sealed.data(), size, true, tag));
    CHECK(sealed == plain);
    Tag wrong = tag;
    wrong[15] ^= 1U;
    CHECK_FALSE(gcm.open(nonce, expected.data(), size, true, wrong));
    CHECK_FALSE(gcm.open(nonce, sealed.data(), size, false, tag));
  }
}
