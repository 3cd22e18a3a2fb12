#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/files/descriptor.h"
#include "core/graph/tensor_type.h"

namespace shardrun::data {

struct NpyRecord {
  std::int64_t number = 0;  ///< of the record in its stream, from 1
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;  ///< its elements, of the reader's type
};

/// The most bytes of a record's values.
inline constexpr std::uint64_t most_record_bytes = std::uint64_t{1} << 30U;

/// Called ten times a second while a stream has no bytes, or takes none. False ends the reading or writing.
using Waiting = std::function<bool()>;

/// Reads arrays from a file or pipe that has one .npy after the other, as numpy.save writes them to one open file. It
/// keeps one record in memory.
class NpyReader {
 public:
  /// `name`: of the stream, for messages. `dtype`: what elements become.
  NpyReader(files::FileDescriptor file, std::string name, graph::DType dtype, Waiting waiting);

  /// The next record; nothing at the end. Throws Error{data} for a malformed one, with its
  /// number. The next call then reads the record after it: where its end is not known, the bytes up to the next
  /// "\x93NUMPY" belong to it. Throws Error{io} if the stream cannot be read.
  [[nodiscard]] std::optional<NpyRecord> next();

 private:
  /// Reads until the buffer has so many bytes. Returns how many it has, less only at the end.
  std::size_t fill_to(std::size_t bytes);
  std::size_t fill_header();
  void take(std::size_t bytes) noexcept { begin_ += bytes; }
  /// Reads values past the buffer. Returns how many bytes there were.
  std::size_t read_values(std::span<std::byte> to);
  void find_next();
  [[noreturn]] void refuse_record(const std::string& why) const;

  files::FileDescriptor file_;
  std::string name_;
  graph::DType dtype_;
  Waiting waiting_;
  std::chrono::steady_clock::time_point told_ = std::chrono::steady_clock::now();
  std::vector<std::byte> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  bool is_at_end_ = false;
  bool is_lost_ = false;  ///< the next record is to be looked for
  std::int64_t number_ = 0;
};

/// Writes bytes of arrays one after the other.
class NpyWriter {
 public:
  /// `name`: of the stream, for messages.
  NpyWriter(files::FileDescriptor file, std::string name, Waiting waiting);

  /// Returns when the stream has taken them, or the writing was ended, after which it takes nothing more. Throws
  /// Error{io}.
  void write(std::span<const std::byte> bytes);

 private:
  files::FileDescriptor file_;
  std::string name_;
  Waiting waiting_;
  std::chrono::steady_clock::time_point told_ = std::chrono::steady_clock::now();
  std::size_t most_at_once_;
  bool is_ended_ = false;
};

}  // namespace shardrun::data
