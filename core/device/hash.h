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

/// A tensor's hash is Σ word · weight(place) mod 2^64 over its 32-bit words. Zeros pad the last word.
///  - The hash depends on the bits alone, not on how the sum is divided among threads.
///  - One flipped bit always changes the hash. Two flipped bits within 2^31 words do, too: weights are odd, and differ.
/// The hash does not protect against someone who constructs two tensors with the same hash.
///
/// In 32 bits, weight(place) = (mixed · second) | 1, where mixed = x ^ (x >> shift), and x = (place · first) & mask.
namespace hash_weights {
inline constexpr std::uint32_t first = 0x9E37'79B1;
inline constexpr std::uint32_t mask = 0x7FFF'FFFF;
inline constexpr std::uint32_t shift = 15;
inline constexpr std::uint32_t second = 0x85EB'CA77U << 1U;
}  // namespace hash_weights

/// Returns what these bytes add to their tensor's hash. `place` is the number of their first word in the tensor.
[[nodiscard]] std::uint64_t hash_of(std::span<const std::byte> bytes, std::uint64_t place = 0);

/// Hashes tensors, to compare them with other ranks' copies or with earlier values. Equal bits have equal hashes on
/// every machine and with any number of threads.
class TensorHashes {
 public:
  /// REQUIRES: the tensors' memory outlives this object.
  explicit TensorHashes(const std::vector<TensorView>& tensors);

  // The following functions wait for the queue's work, and let the threads share the hashing. They allocate memory in
  // the first call alone, and only if the host cannot address the device's memory.

  /// Returns the hash of each tensor. The span is valid until the next call.
  [[nodiscard]] std::span<const std::uint64_t> compute(Queue& queue, Threads& threads);
  /// Returns the hash of the tensor with this number.
  [[nodiscard]] std::uint64_t compute(Queue& queue, Threads& threads, std::size_t tensor);

 private:
  /// A block of one tensor.
  struct Block {
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
    std::size_t tensor = 0;
    std::uint64_t place = 0;  ///< the number of the block's first word in the tensor
  };

  void compute_blocks(std::span<const Block> blocks, Queue& queue, Threads& threads);
  void add(const Block& block, const std::byte* contents);
  /// Adds the hashes of the blocks. `copy` has their contents, with each block at a multiple of the full block size. If
  /// `copy` is null, the host reads the blocks where they are.
  void add_all(std::span<const Block> blocks, Threads& threads, const std::byte* copy);
  /// Copies the blocks to the host in groups. While the host hashes one group, the device copies the next.
  void add_read(std::span<const Block> blocks, Queue& queue, Threads& threads);

  std::vector<Block> blocks_;
  std::vector<std::size_t> first_blocks_;  ///< the first block of each tensor, then the number of blocks
  std::vector<std::uint64_t> hashes_;
  std::array<std::vector<std::byte>, 2> copies_;  ///< copies of blocks that the host cannot address
};

}  // namespace shardrun::device
