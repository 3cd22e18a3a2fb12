#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "core/files/descriptor.h"
#include "core/files/hash.h"

namespace shardrun::files {

/// A new file that is written from first byte to last in large blocks, and hashed at the same time. If the file system
/// supports direct writes, the bytes bypass the page cache: they displace no other pages, and the sync at the end has
/// little to do. Only one thread may use it.
class SequentialFile {
 public:
  /// Memory addresses and file offsets of direct writes must be multiples of this.
  static constexpr std::size_t alignment = 4096;

  /// Creates the file, which must not exist, and reserves room for `bytes`. Throws Error{io}.
  SequentialFile(std::filesystem::path path, std::uint64_t bytes);
  SequentialFile(const SequentialFile&) = delete;
  SequentialFile& operator=(const SequentialFile&) = delete;
  ~SequentialFile();

  /// Appends bytes. They are not copied if their address and the file's present length are multiples of `alignment`.
  /// Throws Error{io}.
  void write(std::span<const std::byte> bytes);
  /// Makes the file durable, and returns the hash of its bytes. Throws Error{io}; Error{internal} if the file does not
  /// have the size that the constructor was given.
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
  std::uint64_t length_ = 0;  ///< bytes given to write()
  std::unique_ptr<Block> block_;
  std::size_t filled_ = 0;  ///< bytes in block_ that are not written yet
  Hasher hasher_;
};

}  // namespace shardrun::files
