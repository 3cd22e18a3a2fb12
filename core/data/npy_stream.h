#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/files/descriptor.h"
#include "core/graph/tensor_type.h"

namespace shardrun::data {

struct NpyRecord {
  std::int64_t number = 0;  ///< the record's number in its stream, counted from 1
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;  ///< its elements, converted to the type that the reader was given
};

/// The largest size of a record's values, in bytes.
inline constexpr std::uint64_t most_record_bytes = std::uint64_t{1} << 30U;

/// A function that a stream calls about ten times a second while it waits for bytes to read, or to accept bytes. If the
/// function returns false, reading or writing ends.
using Waiting = std::function<bool()>;

/// A file or pipe that is read in the order of its bytes.
class InputStream {
 public:
  /// `name`: the stream's name, for messages.
  InputStream(files::FileDescriptor file, std::string name, Waiting waiting)
      : file_(std::move(file)), name_(std::move(name)), waiting_(std::move(waiting)) {}

  [[nodiscard]] const std::string& name() const noexcept { return name_; }

  /// Reads until `bytes` bytes wait to be taken. Returns how many wait. There are fewer only at the end of the stream,
  /// or after Waiting has returned false. Throws Error{io}.
  std::size_t fill_to(std::size_t bytes);
  /// The bytes that wait to be taken; valid until the next call of a function that is not const.
  [[nodiscard]] std::span<const std::byte> waiting() const noexcept {
    return std::span(buffer_).subspan(begin_, end_ - begin_);
  }
  void take(std::size_t bytes) noexcept { begin_ += bytes; }
  /// Reads the bytes that have arrived, without waiting. Returns whether there were any.
  bool fill_with_what_is_there();
  [[nodiscard]] bool is_at_end() const noexcept { return is_at_end_; }

 private:
  /// Reads once. REQUIRES: the stream has bytes, or is at its end.
  void read_once();

  files::FileDescriptor file_;
  std::string name_;
  Waiting waiting_;
  std::chrono::steady_clock::time_point told_ = std::chrono::steady_clock::now();
  std::vector<std::byte> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  bool is_at_end_ = false;
};

/// Reads a text line by line. Keeps one line in memory.
class LineReader {
 public:
  /// `most`: the largest number of bytes that a line can have.
  LineReader(InputStream stream, std::size_t most) : stream_(std::move(stream)), most_(most) {}

  /// The next line that is not blank, without its end; nothing at the end of the stream. Throws Error{data} if the line
  /// is too long; the next call then returns the line after it. Throws Error{io} if the stream cannot be read.
  [[nodiscard]] std::optional<std::string> next();
  /// Whether next() would return without waiting. Reads the bytes that have arrived.
  [[nodiscard]] bool has_next();
  /// The place of the line that next() has returned, such as "prompts.jsonl:3".
  [[nodiscard]] std::string place() const;
  /// The number of that line, counted from 1.
  [[nodiscard]] std::int64_t number() const noexcept { return number_; }

 private:
  InputStream stream_;
  std::size_t most_;
  std::int64_t number_ = 0;
  bool skips_ = false;  ///< whether next() must skip the rest of a line that is too long
};

/// Reads arrays from a file or pipe with one .npy after the other, as numpy.save writes them to one open file. Keeps
/// one record in memory.
class NpyReader {
 public:
  /// `dtype`: the type to which elements are converted.
  NpyReader(InputStream stream, graph::DType dtype) : stream_(std::move(stream)), dtype_(dtype) {}

  /// The next record; nothing at the end of the stream. Throws Error{data}, with the record's number, for a malformed
  /// record. The next call then continues after that record, or at the next "\x93NUMPY" if the record's end is unknown.
  /// Throws Error{io} if the stream cannot be read.
  [[nodiscard]] std::optional<NpyRecord> next();

 private:
  std::size_t fill_header();
  /// Reads values. Returns the number of bytes read.
  std::size_t read_values(std::span<std::byte> to);
  void find_next();
  [[noreturn]] void refuse_record(const std::string& why) const;

  InputStream stream_;
  graph::DType dtype_;
  bool is_lost_ = false;  ///< whether the beginning of the next record must be searched for
  std::int64_t number_ = 0;
};

/// Writes bytes of .npy files to a file or pipe.
class NpyWriter {
 public:
  /// `name`: the stream's name, for messages.
  NpyWriter(files::FileDescriptor file, std::string name, Waiting waiting);

  /// Returns when the stream has accepted all bytes, or when `waiting` has returned false. In the second case, later
  /// calls do nothing. Throws Error{io}.
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
