#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "core/launch/tls.h"
#include "core/launch/protocol.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/unit/launch/attacks.h"

using namespace shardrun::launch;
using shardrun::test::before_payload;
using shardrun::test::error_of;

namespace {

std::string hexadecimal(const Digest& digest) { return fmt::format("{:02x}", fmt::join(digest, "")); }

}  // namespace

// RFC 4231, test cases 1 and 2; a key shorter than the block is padded with zeros, so these keys may be.
TEST_CASE("keys are HMAC-SHA-256, which gives the published values") {
  Digest key = {};
  std::fill_n(key.begin(), 20, std::uint8_t{0x0b});
  CHECK(hexadecimal(derive_key(key, "Hi There")) == "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  key = {'J', 'e', 'f', 'e'};
  CHECK(hexadecimal(derive_key(key, "what do ya want for nothing?")) ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST_CASE("Keys of two purposes and of two tokens differ") {
  const Token token = {1};
  CHECK(derive_key(token, "store") != derive_key(token, "transport"));
  CHECK(derive_key(token, "store") != derive_key(Token{2}, "store"));
  CHECK(derive_key(token, "store") == derive_key(token, "store"));
}

TEST_CASE("a frame begins with its length, version and type", "[launch]") {
  const std::string frame = FrameWriter(FrameType::get).u64(7).bytes("key").finish();
  CHECK(frame == std::string("\x11\x00\x00\x00\x04\x04\x07\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00key", 21));
  PayloadReader reader(std::string_view(frame).substr(before_payload));
  CHECK(reader.u64() == 7);
  CHECK(reader.bytes() == "key");
  CHECK(error_of([&] { reader.expect_end(); }) == "nothing");
}

TEST_CASE("a hello names rank and host, and cuts a long host name", "[launch]") {
  const Hello hello{.rank = 3, .world_size = 5, .pid = 4711, .job_hash = 0x0123456789abcdef, .host = "node-7"};
  const std::string frame = encode_hello(hello);
  const Hello read = decode_hello(std::string_view(frame).substr(before_payload));
  CHECK(read.rank == 3);
  CHECK(read.world_size == 5);
  CHECK(read.pid == 4711);
  CHECK(read.job_hash == hello.job_hash);
  CHECK(read.host == "node-7");
  CHECK(encode_hello({.host = std::string(500, 'h')}) == encode_hello({.host = std::string(64, 'h')}));
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
