#include "core/launch/cipher.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "tests/support/catch.h"

using namespace shardrun::launch;

namespace {

std::string hexadecimal(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) {
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

}  // namespace

// Test cases 13 and 14 of the specification of GCM (McGrew and Viega): a key and a nonce of zeros.
TEST_CASE("the first message is sealed as AES-256-GCM is specified", "[launch]") {
  CHECK(hexadecimal(Cipher(Digest{}).seal("", "")) == "530f8afbc74536b9a963b4f1c4cb738b");
  CHECK(hexadecimal(Cipher(Digest{}).seal("", std::string(16, '\0'))) ==
        "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919");
}

TEST_CASE("messages open in the order in which they were sealed, and no two are alike", "[launch]") {
  Cipher one(Digest{1});
  Cipher other(Digest{1});
  const std::string first = one.seal("header", "message");
  const std::string second = one.seal("header", "message");
  CHECK(first != second);
  CHECK(first.find("message") == std::string::npos);
  CHECK(other.open("header", first) == "message");
  CHECK(other.open("header", second) == "message");
}

TEST_CASE("a message that was changed, cut, repeated or moved, or is of another key, does not open", "[launch]") {
  Cipher sealing(Digest{1});
  const std::string first = sealing.seal("header", "message");
  const std::string second = sealing.seal("header", "message");
  const auto opens = [&](const std::string& header, const std::string& sealed, const Digest& key = Digest{1}) {
    return Cipher(key).open(header, sealed).has_value();
  };
  CHECK(opens("header", first));
  CHECK_FALSE(opens("header", second));
  CHECK_FALSE(opens("Header", first));
  CHECK_FALSE(opens("header", first, Digest{2}));
  for (std::size_t bit = 0; bit < 8 * first.size(); ++bit) {
    std::string changed = first;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    CHECK_FALSE(opens("header", changed));
  }
  for (std::size_t size = 0; size < first.size(); ++size) {
    CHECK_FALSE(opens("header", first.substr(0, size)));
  }
  Cipher opening(Digest{1});
  CHECK(opening.open("header", first));
  CHECK_FALSE(opening.open("header", first));
}
