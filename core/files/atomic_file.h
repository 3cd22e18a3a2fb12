#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "core/files/descriptor.h"

namespace shardrun::files {

/// A file that appears completely or not at all. It is written as `.NAME.tmp` in the same folder, and commit() renames
/// it. Until then the path has its earlier content, even after a power failure. The destructor removes the temporary
/// file; the path's next writer takes over one that a killed process has left.
class AtomicFile {
 public:
  /// Creates the temporary file. Throws Error{io}, also if another process is writing the same path now.
  explicit AtomicFile(std::filesystem::path path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  /// Reserves disk space for `bytes` bytes of zeros, if the file system can. Throws Error{io}, also if space is short.
  void reserve(std::uint64_t bytes);
  /// Appends all bytes after those of the last write() or write_at(), or none. Throws Error{io}.
  void write(std::span<const std::byte> bytes);
  /// Writes at an offset, after which write() continues. Bytes that are never written are zeros. Throws Error{io}.
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Drops what was written after the first `bytes` bytes. Throws Error{io}.
  void cut(std::uint64_t bytes);
  /// Makes the bytes durable, renames the file, and makes the new name durable: the last call. Throws Error{io}; the
  /// path then has its earlier content, unless only the last step failed.
  void commit();

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  FileDescriptor file_;
};

/// Writes parts of the file of an AtomicFile in another process, which commits it later.
class UnfinishedFile {
 public:
  /// Opens the other process's temporary file. `path`: the path of the AtomicFile; `bytes`: the size it has reserved.
  /// Throws Error{io}; Error{internal} if the file has another size.
  UnfinishedFile(std::filesystem::path path, std::uint64_t bytes);

  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Makes the writes of this object durable. Throws Error{io}.
  void sync();

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
};

/// Throws Error{usage} if `target` is one of the files in `read`, also under another name, because writing would
/// destroy it. Call this before anything is opened for writing.
void require_not_read(const std::filesystem::path& target, std::span<const std::filesystem::path> read);

/// Replaces the file at `path` by one that contains `text`. Throws Error{io}.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

}  // namespace shardrun::files
