#include "core/launch/handshake.h"

#include <fmt/format.h>

namespace shardrun::launch {
namespace {

Digest bound_key(const Digest& store_key, std::string_view label, const Nonce& of_rank, const Nonce& of_launcher) {
  std::string message = fmt::format("{}, version {}:", label, protocol_version);
  message += text_of(of_rank);
  message += text_of(of_launcher);
  return hmac_sha256(store_key, message);
}

}  // namespace

SessionKeys session_keys(const Token& token, const Nonce& of_rank, const Nonce& of_launcher) {
  const Digest store_key = derive_key(token, "store");
  return {.proof = bound_key(store_key, "proof of the launcher", of_rank, of_launcher),
          .to_launcher = bound_key(store_key, "frames to the launcher", of_rank, of_launcher),
          .to_rank = bound_key(store_key, "frames to the rank", of_rank, of_launcher)};
}

std::string encode_greeting(const Nonce& nonce) {
  return FrameWriter(FrameType::greeting).u32(hello_magic).raw(text_of(nonce)).finish();
}

Nonce decode_greeting(std::string_view payload) {
  PayloadReader reader(payload);
  if (const std::uint32_t magic = reader.u32(); magic != hello_magic) {
    throw ProtocolError(fmt::format("a greeting begins with {:#010x}, not with {:#010x}", magic, hello_magic));
  }
  const Nonce nonce = reader.block();
  reader.expect_end();
  return nonce;
}

std::string encode(const Challenge& challenge) {
  return FrameWriter(FrameType::challenge).raw(text_of(challenge.nonce)).raw(text_of(challenge.proof)).finish();
}

Challenge decode_challenge(std::string_view payload) {
  PayloadReader reader(payload);
  Challenge challenge;
  challenge.nonce = reader.block();
  challenge.proof = reader.block();
  reader.expect_end();
  return challenge;
}

}  // namespace shardrun::launch
