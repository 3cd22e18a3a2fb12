#include "core/launch/protocol.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace shardrun::launch {
namespace {

constexpr std::size_t max_host_bytes = 64;

template <typename Number>
void append_number(std::string& to, Number value) {
  for (std::size_t byte = 0; byte < sizeof value; ++byte) {
    to += static_cast<char>((value >> (8 * byte)) & 0xFFU);
  }
}

template <typename Number>
Number number_of(std::string_view bytes) noexcept {
  Number value = 0;
  for (std::size_t byte = 0; byte < sizeof value; ++byte) {
    value |= static_cast<Number>(static_cast<unsigned char>(bytes[byte])) << (8 * byte);
  }
  return value;
}

}  // namespace

Token random_token() {
  Token token = {};
  std::size_t filled = 0;
  while (filled < token.size()) {
    const ssize_t got = ::getrandom(token.data() + filled, token.size() - filled, 0);
    if (got < 0 && errno != EINTR) {
      throw Error(ErrorCode::io, fmt::format("cannot draw random bytes: {}", std::generic_category().message(errno)));
    }
    filled += got > 0 ? static_cast<std::size_t>(got) : 0;
  }
  return token;
}

FrameWriter::FrameWriter(FrameType type) : frame_(frame_header_bytes, '\0') {
  frame_ += static_cast<char>(protocol_version);
  frame_ += static_cast<char>(type);
}

FrameWriter& FrameWriter::u32(std::uint32_t value) {
  append_number(frame_, value);
  return *this;
}

FrameWriter& FrameWriter::u64(std::uint64_t value) {
  append_number(frame_, value);
  return *this;
}

FrameWriter& FrameWriter::raw(std::string_view bytes) {
  if (bytes.size() > max_frame_bytes) {
    throw Error(ErrorCode::io, fmt::format("cannot send {} bytes over the control connection: at most {} fit into one "
                                           "message",
                                           bytes.size(), max_frame_bytes));
  }
  frame_ += bytes;
  return *this;
}

FrameWriter& FrameWriter::bytes(std::string_view value) {
  append_number(frame_, static_cast<std::uint32_t>(value.size()));
  return raw(value);
}

std::string FrameWriter::finish() {
  const std::size_t length = frame_.size() - frame_header_bytes;
  if (length > max_frame_bytes) {
    throw Error(ErrorCode::io, fmt::format("cannot send {} bytes over the control connection: at most {} fit into one "
                                           "message",
                                           length, max_frame_bytes));
  }
  std::string header;
  append_number(header, static_cast<std::uint32_t>(length));
  frame_.replace(0, frame_header_bytes, header);
  return std::move(frame_);
}

std::string_view PayloadReader::raw(std::size_t size) {
  if (size > rest_.size()) {
    throw ProtocolError(fmt::format("a frame ends early: {} bytes where {} were announced", rest_.size(), size));
  }
  const std::string_view taken = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return taken;
}

std::uint32_t PayloadReader::u32() { return number_of<std::uint32_t>(raw(sizeof(std::uint32_t))); }

std::uint64_t PayloadReader::u64() { return number_of<std::uint64_t>(raw(sizeof(std::uint64_t))); }

std::string_view PayloadReader::bytes() { return raw(u32()); }

void PayloadReader::expect_end() const {
  if (!rest_.empty()) {
    throw ProtocolError(fmt::format("a frame is {} bytes too long", rest_.size()));
  }
}

std::uint32_t read_u32(std::string_view four_bytes) noexcept { return number_of<std::uint32_t>(four_bytes); }

std::string encode_hello(const Hello& hello) {
  return FrameWriter(FrameType::hello)
      .u32(hello.rank)
      .u32(hello.world_size)
      .u32(hello.pid)
      .u64(hello.job_hash)
      .bytes(std::string_view(hello.host).substr(0, max_host_bytes))
      .finish();
}

Hello decode_hello(std::string_view payload) {
  PayloadReader reader(payload);
  Hello hello;
  hello.rank = reader.u32();
  hello.world_size = reader.u32();
  hello.pid = reader.u32();
  hello.job_hash = reader.u64();
  hello.host = reader.bytes();
  reader.expect_end();
  return hello;
}

}  // namespace shardrun::launch
