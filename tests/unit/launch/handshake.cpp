#include "core/launch/handshake.h"

#include <string>

#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace shardrun::launch;
using shardrun::test::error_of;

namespace {

constexpr std::size_t before_payload = frame_header_bytes + 2;

}  // namespace

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
