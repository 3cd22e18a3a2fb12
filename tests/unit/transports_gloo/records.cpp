#include <openssl/evp.h>

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "tests/support/catch.h"
#include "transports/gloo/gcm.h"
#include "transports/gloo/records.h"

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

TEST_CASE("gloo: AES-GCM and GMAC equal OpenSSL's on every processor", "[transports]") {
  const Key key = {9, 8, 7};
  const Nonce nonce = {5, 4, 3};
  for (const std::size_t size :
       {std::size_t{1}, std::size_t{15}, std::size_t{16}, std::size_t{48}, std::size_t{1000}, std::size_t{131072}}) {
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

namespace {

const Key key = {1, 2, 3};

struct Record {
  Bytes bytes;
  Tag tag = {};
};

Bytes plain_of(std::size_t size) {
  Bytes plain(size);
  std::iota(plain.begin(), plain.end(), std::uint8_t{7});
  return plain;
}

Record sealed(Records& records, const Bytes& plain) {
  Record record{plain, {}};
  Bytes changed = plain;
  record.tag = records.seal(plain.data(), plain.size(), changed.data());
  if (records.protection() == Protection::encrypt) {
    record.bytes = changed;
  }
  return record;
}

bool opens(Records& records, Record& record) {
  return records.open(record.bytes.data(), record.bytes.size(), record.tag);
}

Protection either() { return GENERATE(Protection::integrity, Protection::encrypt); }

}  // namespace

TEST_CASE("gloo: records open in order to what was sealed") {
  const Protection protection = either();
  Records sender(protection, key);
  Records receiver(protection, key);
  for (const std::size_t size : {std::size_t{1}, std::size_t{48}, std::size_t{1000}, record_bytes}) {
    const Bytes plain = plain_of(size);
    Record record = sealed(sender, plain);
    CHECK((record.bytes == plain) == (protection == Protection::integrity));
    CHECK(opens(receiver, record));
    CHECK(record.bytes == plain);
  }
}

TEST_CASE("gloo: a record with any bit altered does not open") {
  const Protection protection = either();
  const Bytes plain = plain_of(100);
  for (std::size_t bit = 0; bit < 8 * (plain.size() + sizeof(Tag)); ++bit) {
    INFO("bit " << bit);
    Records sender(protection, key);
    Records receiver(protection, key);
    Record record = sealed(sender, plain);
    const std::size_t byte = bit / 8;
    (byte < plain.size() ? record.bytes[byte] : record.tag[byte - plain.size()]) ^=
        static_cast<std::uint8_t>(1U << (bit % 8));
    CHECK_FALSE(opens(receiver, record));
  }
}

TEST_CASE("gloo: a record cut short at any byte does not open") {
  const Protection protection = either();
  const Bytes plain = plain_of(100);
  for (std::size_t size = 0; size < plain.size(); ++size) {
    INFO("bytes " << size);
    Records sender(protection, key);
    Records receiver(protection, key);
    Record record = sealed(sender, plain);
    record.bytes.resize(size);
    CHECK_FALSE(opens(receiver, record));
  }
}

TEST_CASE("gloo: a record opens only once, in its place, direction and protection") {
  const Protection protection = either();
  const Protection other = protection == Protection::integrity ? Protection::encrypt : Protection::integrity;
  Records sender(protection, key);
  Record first = sealed(sender, plain_of(100));
  Record second = sealed(sender, plain_of(100));
  CHECK(first.tag != second.tag);
  SECTION("said again") {
    Records receiver(protection, key);
    Record again = first;
    CHECK(opens(receiver, first));
    CHECK_FALSE(opens(receiver, again));
  }
  SECTION("out of order") {
    Records receiver(protection, key);
    CHECK_FALSE(opens(receiver, second));
  }
  SECTION("left out") {
    Records receiver(protection, key);
    CHECK(opens(receiver, first));
    Record third = sealed(sender, plain_of(100));
    CHECK_FALSE(opens(receiver, third));
  }
  SECTION("said back to whom it came from") {
    Key back = key;
    back[0] ^= 1U;
    Records receiver(protection, back);
    CHECK_FALSE(opens(receiver, first));
  }
  SECTION("under the other protection") {
    Records receiver(other, key);
    CHECK_FALSE(opens(receiver, first));
  }
}

TEST_CASE("gloo: the bytes of tags are counted for each record") {
  CHECK(bytes_of_tags(Protection::none, 1000) == 0);
  CHECK(bytes_of_tags(Protection::integrity, 0) == 0);
  CHECK(bytes_of_tags(Protection::integrity, 1) == 16);
  CHECK(bytes_of_tags(Protection::integrity, record_bytes) == 16);
  CHECK(bytes_of_tags(Protection::encrypt, record_bytes + 1) == 32);
}
