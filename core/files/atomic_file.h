#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "core/files/descriptor.h"

namespace shardrun::files {

/// A file that appears whole or not at all: written as `.NAME.tmp` in the same folder, renamed by `commit`. Until then
/// the path holds what it held before, whatever happens in between, the loss of power included.
/// The temporary file goes when this goes; one that a killed process left is taken over by the path's next writer.
class AtomicFile {
 public:
  /// Throws Error{io}; also when another process is writing the same path at this moment.
  explicit AtomicFile(std::filesystem::path path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  /// Takes room for so many bytes, which read as zeros. Throws Error{io}: where there is no room, before any is used.
  void reserve(std::uint64_t bytes);
  /// After the bytes written before. Throws Error{io}.
  void write(std::span<const std::byte> bytes);
  /// At an offset, from which later `write`s go on. What no one wrote reads as zeros. Throws Error{io}.
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Makes the bytes durable, then visible, then the name durable. Nothing may be written after it.
  /// Throws Error{io}; the path then still holds what it held, unless it is the last step, on the folder, that failed.
  void commit();

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  FileDescriptor file_;
};

/// A file that another process's AtomicFile writes to at this moment, and commits later: for parts of it.
class UnfinishedFile {
 public:
  /// `path`: that AtomicFile's; `bytes`: what it has reserved. Throws Error{io}; Error{internal} where its size is
  /// another.
  UnfinishedFile(std::filesystem::path path, std::uint64_t bytes);

  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Makes durable what was written here. Throws Error{io}.
  void sync();

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
};

/// Replaces the file at `path` by one that holds `text`. Throws Error{io}.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

}  // namespace shardrun::files
