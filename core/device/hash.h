#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/device/device.h"

namespace shardrun::device {

class Queue;
class Threads;

/// Hashes tensors, to compare them with other ranks' copies. Equal bits have equal hashes on every machine and with any
/// number of threads.
class TensorHashes {
 public:
  /// REQUIRES: the tensors' memory outlives this.
  explicit TensorHashes(const std::vector<TensorView>& tensors);

  /// XXH3 of each tensor's contents after the queue's work, valid until the next call. Threads share the work.
  /// Allocates nothing if the host can address the queue's device, else at the first call.
  [[nodiscard]] std::span<const std::uint64_t> compute(Queue& queue, Threads& threads);

 private:
  /// A block of one tensor. Its number within the tensor seeds its hash. A tensor's hash is the sum of its blocks'
  /// hashes.
  struct Block {
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
    std::size_t tensor = 0;
    std::uint64_t number = 0;
  };

  void add(const Block& block, const std::byte* contents);
  /// `copy`: their contents, a block after the other in whole sizes; null: the host can address them.
  void add_all(std::span<const Block> blocks, Threads& threads, const std::byte* copy);
  /// Reads many blocks at once, and the next of them while the host computes.
  void add_read(Queue& queue, Threads& threads);

  std::vector<Block> blocks_;
  std::vector<std::uint64_t> hashes_;
  std::array<std::vector<std::byte>, 2> copies_;  ///< of blocks that the host cannot address
};

}  // namespace shardrun::device
