#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "core/files/descriptor.h"
#include "core/files/hash.h"

namespace shardrun::files {

/// A new file that is written from its first byte to its last in large blocks, and hashed meanwhile. The bytes go past
/// the page cache where the file system can do that, so that they neither push other pages out nor wait in memory for
/// the sync. One thread.
class SequentialFile {
 public:
  /// Addresses and file offsets of direct writes are multiples of this.
  static constexpr std::size_t alignment = 4096;

  /// Creates the file, which must not exist, and takes room for `bytes`. Throws Error{io}.
  SequentialFile(std::filesystem::path path, std::uint64_t bytes);
  SequentialFile(const SequentialFile&) = delete;
  SequentialFile& operator=(const SequentialFile&) = delete;
  ~SequentialFile();

  /// Appends. Bytes at an aligned address are not copied first while the file's length is aligned, too. Throws
  /// Error{io}.
  void write(std::span<const std::byte> bytes);
  /// Makes the file durable. Returns the hash of its bytes. Throws Error{io}; Error{internal} if it does not have as
  /// many bytes as announced.
  [[nodiscard]] Hash finish();

 private:
  struct Block;

  void put(std::span<const std::byte> bytes);
  void flush();
  void stop_direct();

  const std::filesystem::path path_;
  const std::uint64_t bytes_;
  FileDescriptor file_;
  bool direct_ = true;
  std::uint64_t length_ = 0;  ///< of what write() got
  std::unique_ptr<Block> block_;
  std::size_t filled_ = 0;  ///< bytes in the block, which lie at the file's end
  Hasher hasher_;
};

}  // namespace shardrun::files
