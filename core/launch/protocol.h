#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/error.h"

namespace shardrun::launch {

// What a rank and the launcher say to each other over the rank's control connection.
//
// A frame is: length of what follows (u32), version (u8), type (u8), payload. Numbers are little-endian, texts and
// bytes inside a payload are preceded by their length (u32). After the handshake (handshake.h) what follows the length
// is sealed: encrypted, with a tag behind it. The launcher tells a stranger nothing but its nonce and its proof.

inline constexpr std::uint8_t protocol_version = 3;
inline constexpr std::size_t frame_header_bytes = 4;
inline constexpr std::size_t max_hello_bytes = 256;  ///< of a frame's length until its sender is known
inline constexpr std::size_t max_frame_bytes = std::size_t{1024} * 1024;  ///< of a frame's length afterwards
inline constexpr std::uint32_t hello_magic = 0x6472'6873;                 ///< "shrd"

enum class FrameType : std::uint8_t {
  // From a rank.
  greeting = 11,    ///< magic (u32), nonce
  hello = 1,        ///< see Hello; sealed, as all that follows
  heartbeat = 2,    ///< nothing; from a launcher that is itself a rank too, in answer
  set = 3,          ///< key, value
  get = 4,          ///< request (u64), key
  cancel_get = 5,   ///< request
  message = 6,      ///< kind, bytes
  failure = 7,      ///< FailureKind (u32), the rank that was waited for (u32, or none_awaited), text
  goodbye = 8,      ///< nothing
  abort_heard = 9,  ///< nothing: what this rank does from here on may be a consequence of the abort
  paused = 10,      ///< nothing: this rank waits for `resume`, in the middle of nothing
  // From the launcher.
  challenge = 73,      ///< nonce, proof
  welcome = 64,        ///< nothing
  refused = 65,        ///< why, though the token is right; the job's text where the job is another, else ""
  value = 66,          ///< request, value
  failure_noted = 67,  ///< nothing
  abort = 68,          ///< reason
  stop = 69,           ///< signal (u32)
  farewell = 70,       ///< nothing: the goodbye and all before it were read
  pause = 71,          ///< nothing
  resume = 72,         ///< nothing
};

/// What the other side sent makes no sense.
struct ProtocolError : Error {
  explicit ProtocolError(std::string message) : Error(ErrorCode::io, std::move(message)) {}
};

inline constexpr std::uint32_t none_awaited = 0xffff'ffff;

/// Known to the launcher and its ranks alone; whoever has it may join the job.
using Token = std::array<std::uint8_t, 32>;

/// Throws Error{io}.
[[nodiscard]] Token random_token();

/// Its bytes as they are.
[[nodiscard]] inline std::string_view text_of(const Token& token) {
  return {reinterpret_cast<const char*>(token.data()), token.size()};
}

/// Without telling by its duration where they differ.
[[nodiscard]] bool equal_in_constant_time(const Token& one, const Token& other) noexcept;

/// Puts a payload together. Throws Error{io} where a frame would be longer than max_frame_bytes.
class FrameWriter {
 public:
  explicit FrameWriter(FrameType type);

  FrameWriter& u32(std::uint32_t value);
  FrameWriter& u64(std::uint64_t value);
  FrameWriter& raw(std::string_view bytes);    ///< as they are
  FrameWriter& bytes(std::string_view value);  ///< with their length before them

  /// The whole frame, ready to be sent; the last thing to be called.
  [[nodiscard]] std::string finish();

 private:
  std::string frame_;
};

/// Takes a payload apart. Every function throws ProtocolError where the payload is shorter than what is asked for.
class PayloadReader {
 public:
  explicit PayloadReader(std::string_view payload) : rest_(payload) {}

  [[nodiscard]] std::uint32_t u32();
  [[nodiscard]] std::uint64_t u64();
  [[nodiscard]] std::string_view raw(std::size_t size);
  [[nodiscard]] std::string_view bytes();
  [[nodiscard]] Token block();  ///< 32 bytes: a token, a nonce or a digest
  void expect_end() const;

 private:
  std::string_view rest_;
};

/// The first bytes of a frame: the length of the rest.
[[nodiscard]] std::string frame_header(std::size_t length);
[[nodiscard]] std::uint32_t read_u32(std::string_view four_bytes) noexcept;

/// Who a rank says it is.
struct Hello {
  std::uint32_t rank = 0;
  std::uint32_t world_size = 0;
  std::uint32_t pid = 0;
  std::uint64_t job_hash = 0;
  std::string host;  ///< at most 64 bytes of it are sent
};

[[nodiscard]] std::string encode_hello(const Hello& hello);
/// Throws ProtocolError.
[[nodiscard]] Hello decode_hello(std::string_view payload);

/// This machine's name, for messages.
[[nodiscard]] std::string host_name();

}  // namespace shardrun::launch
