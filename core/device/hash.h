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

/// A hash of a tensor's bits: Σ word · weight(place) mod 2^64, over its 32-bit words; the last is padded with zeros.
///  - It depends on the bits alone, not on how the sum is divided among threads.
///  - One flipped bit always changes it, and so do two within 2^31 words: weights are odd, and differ.
/// It does not protect against someone who constructs two tensors with one hash.
///
/// weight(place) = mixed · second | 1, where mixed = x ^ x >> shift, and x is place · first without its highest bit.
namespace hash_weights {
inline constexpr std::uint32_t first = 0x9E37'79B1;
inline constexpr std::uint32_t mask = 0x7FFF'FFFF;
inline constexpr std::uint32_t shift = 15;
inline constexpr std::uint32_t second = 0x85EB'CA77U << 1U;
}  // namespace hash_weights

/// The hash's sum over these bytes, whose first word is at `place`.
[[nodiscard]] std::uint64_t hash_of(std::span<const std::byte> bytes, std::uint64_t place = 0);

/// Hashes tensors, to compare them with other ranks' copies or with earlier values. Equal bits have equal hashes on
/// every machine and with any number of threads.
class TensorHashes {
 public:
  /// REQUIRES: the tensors' memory outlives this object.
  explicit TensorHashes(const std::vector<TensorView>& tensors);

  // In the following functions threads share the work. If the host can address the queue's device they allocate
  // nothing, otherwise only in the first call.

  /// The hash of each tensor after the queue's work, valid until the next call.
  [[nodiscard]] std::span<const std::uint64_t> compute(Queue& queue, Threads& threads);
  /// The hash of one of the tensors.
  [[nodiscard]] std::uint64_t compute(Queue& queue, Threads& threads, std::size_t tensor);

 private:
  /// A block of one tensor.
  struct Block {
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
    std::size_t tensor = 0;
    std::uint64_t place = 0;  ///< the place of its first word
  };

  void compute_blocks(std::span<const Block> blocks, Queue& queue, Threads& threads);
  void add(const Block& block, const std::byte* contents);
  /// Adds the hashes of the blocks. `copy`: their contents, one full-size block after the other; null: the host can
  /// address the blocks.
  void add_all(std::span<const Block> blocks, Threads& threads, const std::byte* copy);
  /// Reads a group of blocks to the host, and reads the next group while the host hashes it.
  void add_read(std::span<const Block> blocks, Queue& queue, Threads& threads);

  std::vector<Block> blocks_;
  std::vector<std::size_t> first_blocks_;  ///< the first block of each tensor, then the number of blocks
  std::vector<std::uint64_t> hashes_;
  std::array<std::vector<std::byte>, 2> copies_;  ///< copies of blocks that the host cannot address
};

}  // namespace shardrun::device
