#include "core/launch/keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>

#include "tests/support/catch.h"

namespace {

using namespace shardrun::launch;

std::string hexadecimal(const Digest& digest) { return fmt::format("{:02x}", fmt::join(digest, "")); }

// RFC 4231, test cases 1 and 2; a key shorter than the block is padded with zeros, so these keys may be.
TEST_CASE("HMAC-SHA-256 gives the published values") {
  Digest key = {};
  std::fill_n(key.begin(), 20, std::uint8_t{0x0b});
  CHECK(hexadecimal(hmac_sha256(key, "Hi There")) ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  key = {'J', 'e', 'f', 'e'};
  CHECK(hexadecimal(hmac_sha256(key, "what do ya want for nothing?")) ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST_CASE("Keys of two purposes and of two tokens differ") {
  const Token token = {1};
  CHECK(derive_key(token, "store") != derive_key(token, "transport"));
  CHECK(derive_key(token, "store") != derive_key(Token{2}, "store"));
  CHECK(derive_key(token, "store") == derive_key(token, "store"));
}

}  // namespace
