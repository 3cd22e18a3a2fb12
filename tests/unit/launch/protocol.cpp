#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/launch/cipher.h"
#include "core/launch/handshake.h"
#include "core/launch/keys.h"
#include "core/launch/protocol.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/unit/launch/attacks.h"

using namespace shardrun::launch;
using shardrun::test::before_payload;
using shardrun::test::error_of;

namespace {

std::string hexadecimal(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) {
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

std::string hexadecimal(const Digest& digest) { return fmt::format("{:02x}", fmt::join(digest, "")); }

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

TEST_CASE("the keys of a session differ by purpose, token and nonces", "[launch]") {
  const Token token = {1};
  const SessionKeys keys = session_keys(token, Nonce{1}, Nonce{2});
  CHECK(session_keys(token, Nonce{1}, Nonce{2}).proof == keys.proof);
  CHECK(keys.proof != keys.to_launcher);
  CHECK(keys.proof != keys.to_rank);
  CHECK(keys.to_launcher != keys.to_rank);
  for (const SessionKeys& other : {session_keys(Token{2}, Nonce{1}, Nonce{2}), session_keys(token, Nonce{3}, Nonce{2}),
                                   session_keys(token, Nonce{1}, Nonce{3}), session_keys(token, Nonce{2}, Nonce{1})}) {
    CHECK(other.proof != keys.proof);
    CHECK(other.to_launcher != keys.to_launcher);
    CHECK(other.to_rank != keys.to_rank);
  }
}

TEST_CASE("a greeting and a challenge are read as they were written, and refused where they were cut", "[launch]") {
  const Nonce nonce = random_token();
  const std::string greeting = encode_greeting(nonce);
  const std::string_view greeted = std::string_view(greeting).substr(before_payload);
  CHECK(decode_greeting(greeted) == nonce);
  CHECK(greeting.size() <= max_hello_bytes);
  const Challenge challenge{.nonce = random_token(), .proof = random_token()};
  const std::string frame = encode(challenge);
  const std::string_view payload = std::string_view(frame).substr(before_payload);
  CHECK(decode_challenge(payload).nonce == challenge.nonce);
  CHECK(decode_challenge(payload).proof == challenge.proof);
  CHECK(frame.size() <= max_hello_bytes);
  for (std::size_t size = 0; size < greeted.size(); ++size) {
    CHECK(error_of([&] { (void)decode_greeting(greeted.substr(0, size)); }).starts_with("1: a frame ends early"));
  }
  for (std::size_t size = 0; size < payload.size(); ++size) {
    CHECK(error_of([&] { (void)decode_challenge(payload.substr(0, size)); }).starts_with("1: a frame ends early"));
  }
  CHECK(error_of([&] { (void)decode_greeting("x" + std::string(greeted)); }).starts_with("1: a greeting begins with"));
  CHECK(error_of([&] { (void)decode_challenge(std::string(payload) + "x"); }) == "1: a frame is 1 bytes too long");
}

TEST_CASE("a frame begins with its length, version and type", "[launch]") {
  const std::string frame = FrameWriter(FrameType::get).u64(7).bytes("key").finish();
  CHECK(frame == std::string("\x11\x00\x00\x00\x03\x04\x07\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00key", 21));
  PayloadReader reader(std::string_view(frame).substr(before_payload));
  CHECK(reader.u64() == 7);
  CHECK(reader.bytes() == "key");
  CHECK(error_of([&] { reader.expect_end(); }) == "nothing");
}

TEST_CASE("a hello says who comes, and fits into what an unknown sender may send", "[launch]") {
  const Hello hello{.rank = 3, .world_size = 5, .pid = 4711, .job_hash = 0x0123456789abcdef, .host = "node-7"};
  const std::string frame = encode_hello(hello);
  const Hello read = decode_hello(std::string_view(frame).substr(before_payload));
  CHECK(read.rank == 3);
  CHECK(read.world_size == 5);
  CHECK(read.pid == 4711);
  CHECK(read.job_hash == hello.job_hash);
  CHECK(read.host == "node-7");
  CHECK(encode_hello({.host = std::string(500, 'h')}).size() <= max_hello_bytes + frame_header_bytes);
}

TEST_CASE("a payload that ends early is refused wherever it was cut", "[launch]") {
  const std::string frame = encode_hello({.host = "host"});
  const std::string_view payload = std::string_view(frame).substr(before_payload);
  for (std::size_t size = 0; size < payload.size(); ++size) {
    CHECK(error_of([&] { (void)decode_hello(payload.substr(0, size)); }).starts_with("1: a frame ends early"));
  }
  CHECK(error_of([&] { (void)decode_hello(std::string(payload) + "x"); }) == "1: a frame is 1 bytes too long");
}

TEST_CASE("more than a frame can hold is not sent", "[launch]") {
  const std::string much(max_frame_bytes, 'x');
  CHECK(error_of([&] { (void)FrameWriter(FrameType::message).bytes(much).finish(); }).find("at most 1048576") !=
        std::string::npos);
}

TEST_CASE("tokens differ by one bit or not at all", "[launch]") {
  const Token token = random_token();
  CHECK_FALSE(equal_in_constant_time(token, random_token()));
  for (std::size_t i = 0; i < token.size(); ++i) {
    Token other = token;
    CHECK(equal_in_constant_time(token, other));
    other[i] ^= 0x80U;
    CHECK_FALSE(equal_in_constant_time(token, other));
  }
}
