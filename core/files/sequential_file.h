#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "core/files/descriptor.h"
#include "core/files/hash.h"

namespace shardrun::files {

/// A new file that is written from its first byte to its last in large blocks, and hashed meanwhile. If the file system
/// supports direct writes, the bytes bypass the page cache, so that they neither displace other pages nor wait in
/// memory for the sync. Only one thread may use it.
class SequentialFile {
 public:
  /// Memory addresses and file offsets of direct writes must be multiples of this.
  static constexpr std::size_t alignment = 4096;

  /// Creates the file, which must not exist, and reserves room for `bytes`. Throws Error{io}.
  SequentialFile(std::filesystem::path path, std::uint64_t bytes);
  SequentialFile(const SequentialFile&) = delete;
  SequentialFile& operator=(const SequentialFile&) = delete;
  ~SequentialFile();

  /// Appends. Bytes at an aligned address are written without a copy as long as the file's length is aligned, too.
  /// Throws Error{io}.
  void write(std::span<const std::byte> bytes);
  /// Makes the file durable. Returns the hash of its bytes. Throws Error{io}; Error{internal} if it has another number
  /// of bytes than announced.
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
  std::uint64_t length_ = 0;  ///< bytes given to write() so far
  std::unique_ptr<Block> block_;
  std::size_t filled_ = 0;  ///< bytes in the block, not written yet
  Hasher hasher_;
};

}  // namespace shardrun::files
