#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/error.h"

namespace shardrun::launch {

// The messages between a rank and the launcher over the rank's control connection.
//
// A frame is: length of the rest (u32), version (u8), type (u8), payload. Numbers are little-endian. Texts and bytes in
// a payload are preceded by their length (u32). Frames are sent over TLS (tls.h), and only once both ends have proved
// that they know the token. The first frame is the rank's hello.

inline constexpr std::uint8_t protocol_version = 4;
inline constexpr std::size_t frame_header_bytes = 4;
inline constexpr std::size_t max_frame_bytes = std::size_t{1024} * 1024;  ///< the longest frame, without its header

enum class FrameType : std::uint8_t {
  // Sent by a rank.
  hello = 1,        ///< see Hello
  heartbeat = 2,    ///< empty; a launcher that is itself a rank answers with one
  set = 3,          ///< key, value
  get = 4,          ///< request (u64), key
  cancel_get = 5,   ///< request
  message = 6,      ///< kind, bytes
  failure = 7,      ///< FailureKind (u32), the rank for which it waited (u32, or none_awaited), text
  goodbye = 8,      ///< empty
  abort_heard = 9,  ///< empty; a later failure of this rank may be a consequence of the abort
  paused = 10,      ///< empty; this rank waits for `resume`, with no operation in progress
  // Sent by the launcher.
  welcome = 64,        ///< empty
  refused = 65,        ///< reason, although the token is right; the launcher's job text if the jobs differ, else ""
  value = 66,          ///< request, value
  failure_noted = 67,  ///< empty
  abort = 68,          ///< reason
  stop = 69,           ///< signal (u32)
  farewell = 70,       ///< empty; the goodbye and everything before it have been read
  pause = 71,          ///< empty
  resume = 72,         ///< empty
};

/// Why a rank failed.
enum class FailureKind {
  own,          ///< by itself
  consequence,  ///< because of another rank's failure: a lost peer, an abort
  permanent,    ///< by itself, and it would fail again: a loss that is NaN, damaged data
};

/// The peer sent something invalid.
struct ProtocolError : Error {
  explicit ProtocolError(std::string message) : Error(ErrorCode::io, std::move(message)) {}
};

inline constexpr std::uint32_t none_awaited = 0xffff'ffff;

/// A secret of the launcher and its ranks. Any process that has it may join the job.
using Token = std::array<std::uint8_t, 32>;

/// Throws Error{io}.
[[nodiscard]] Token random_token();

/// The bytes of a token as a string; not hexadecimal digits.
[[nodiscard]] inline std::string_view text_of(const Token& token) {
  return {reinterpret_cast<const char*>(token.data()), token.size()};
}

/// Builds a frame. Throws Error{io} if the frame would be longer than max_frame_bytes.
class FrameWriter {
 public:
  explicit FrameWriter(FrameType type);

  FrameWriter& u32(std::uint32_t value);
  FrameWriter& u64(std::uint64_t value);
  FrameWriter& raw(std::string_view bytes);    ///< adds the bytes without their length
  FrameWriter& bytes(std::string_view value);  ///< adds the length, then the bytes

  /// Returns the whole frame, ready to be sent. Call it last.
  [[nodiscard]] std::string finish();

 private:
  std::string frame_;
};

/// Reads a payload field by field. Every function throws ProtocolError if the payload is too short.
class PayloadReader {
 public:
  explicit PayloadReader(std::string_view payload) : rest_(payload) {}

  [[nodiscard]] std::uint32_t u32();
  [[nodiscard]] std::uint64_t u64();
  [[nodiscard]] std::string_view raw(std::size_t size);
  [[nodiscard]] std::string_view bytes();
  void expect_end() const;

 private:
  std::string_view rest_;
};

[[nodiscard]] std::uint32_t read_u32(std::string_view four_bytes) noexcept;

/// The identity that a rank sends.
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

}  // namespace shardrun::launch
