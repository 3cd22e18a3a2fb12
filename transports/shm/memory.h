#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "descriptor.h"

namespace shm {

/// A file without a name (memfd) mapped into this process.
class Mapping {
 public:
  /// Fresh memory of zeros, given page by page as it is touched. Throws TransportError.
  [[nodiscard]] static std::unique_ptr<Mapping> create(std::size_t bytes);
  /// What process `pid` has open as `descriptor`, all of it. Throws TransportError where that process is gone, is not
  /// this user's, or has another file (`inode`) there by now.
  [[nodiscard]] static std::unique_ptr<Mapping> open(pid_t pid, int descriptor, std::uint64_t inode);

  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  /// Nobody else can find the memory any more.
  void close_descriptor() noexcept { descriptor_ = Descriptor(); }
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] int descriptor() const noexcept { return descriptor_.number(); }
  [[nodiscard]] std::uint64_t inode() const noexcept { return inode_; }

 private:
  Mapping(Descriptor descriptor, std::size_t bytes);

  Descriptor descriptor_;
  std::byte* data_ = nullptr;
  std::size_t bytes_;
  std::uint64_t inode_ = 0;
};

/// Memory of some process, in words that another can follow.
struct MemoryRef {
  std::int32_t pid = 0;
  std::int32_t descriptor = -1;
  std::uint64_t inode = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;  ///< last: a letter has them elsewhere
};

/// Other processes' memory, each file mapped once for all who use it at one time. Any thread.
class Peers {
 public:
  /// Mapped as long as what is returned. Nothing where there are no bytes. Throws TransportError.
  [[nodiscard]] std::shared_ptr<std::byte> resolve(const MemoryRef& ref);

 private:
  using Key = std::tuple<std::int32_t, std::int32_t, std::uint64_t>;  ///< process, descriptor, inode

  [[nodiscard]] std::shared_ptr<Mapping> mapping_of(const MemoryRef& ref);

  std::mutex mutex_;
  std::map<Key, std::weak_ptr<Mapping>> mappings_;
};

}  // namespace shm
