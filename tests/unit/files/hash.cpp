#include "core/files/hash.h"

#include <string>

#include "tests/support/catch.h"

using namespace shardrun;

TEST_CASE("a hash equals xxhsum's, and so does the hash of the same bytes in pieces", "[files]") {
  CHECK(to_string(files::hash_of("")) == "99aa06d3014798d86001c324468d497f");
  CHECK(to_string(files::hash_of("a")) == "a96faf705af16834e6c632b61e964e1f");
  std::string text;
  for (int i = 0; i < 1000; ++i) {
    text += static_cast<char>(i * 7);
  }
  files::Hasher hasher;
  for (std::size_t at = 0, count = 1; at < text.size(); at += count, count = count * 3 + 1) {
    hasher.add(std::as_bytes(std::span(text).subspan(at, std::min(count, text.size() - at))));
  }
  CHECK(hasher.hash() == files::hash_of(text));
  CHECK(files::hash_of(text) != files::hash_of(text.substr(1)));
}

TEST_CASE("only 32 small hexadecimal digits are a hash", "[files]") {
  const files::Hash hash{0x0123456789abcdefU, 0xfedcba9876543210U};
  CHECK(to_string(hash) == "0123456789abcdeffedcba9876543210");
  CHECK(files::parse_hash(to_string(hash)) == hash);
  for (const char* wrong :
       {"", "0123456789abcdeffedcba987654321", "0123456789abcdeffedcba98765432100", "0123456789ABCDEFfedcba9876543210",
        "0123456789abcdeffedcba987654321 ", "-123456789abcdeffedcba9876543210", "0x23456789abcdeffedcba9876543210"}) {
    CHECK(!files::parse_hash(wrong));
  }
}
