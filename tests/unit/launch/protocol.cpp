#include "core/launch/protocol.h"

#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace shardrun::launch;
using shardrun::test::error_of;

namespace {

constexpr std::size_t before_payload = frame_header_bytes + 2;

}  // namespace

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
