#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/device/device.h"

namespace shardrun::device {

class Threads;

/// Hashes what tensors hold, to compare it with what other ranks hold: equal bits have equal hashes on every machine
/// and with any number of threads.
class TensorHashes {
 public:
  /// The tensors' memory outlives this.
  TensorHashes(const Device& device, const std::vector<TensorView>& tensors);

  /// XXH3 of what each tensor holds now, valid until the next call; threads share the work. Allocates nothing.
  [[nodiscard]] std::span<const std::uint64_t> compute(Threads& threads);

 private:
  /// Of one tensor. Its number within the tensor is the seed of its hash, and a tensor's hash is the sum of its
  /// blocks'.
  struct Block {
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
    std::size_t tensor = 0;
    std::uint64_t number = 0;
  };

  std::vector<Block> blocks_;
  std::vector<std::uint64_t> hashes_;
};

}  // namespace shardrun::device
