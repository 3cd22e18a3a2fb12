#include "core/device/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <atomic>

#include "core/device/queue.h"
#include "core/device/threads.h"

namespace shardrun::device {
namespace {

/// Small enough that threads share the work evenly.
constexpr std::size_t block_bytes = std::size_t{256} * 1024;

}  // namespace

TensorHashes::TensorHashes(const std::vector<TensorView>& tensors) : hashes_(tensors.size()) {
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const std::size_t bytes = tensors[t].bytes();
    for (std::size_t at = 0; at < bytes; at += block_bytes) {
      blocks_.push_back({.data = static_cast<const std::byte*>(tensors[t].data) + at,
                         .bytes = std::min(block_bytes, bytes - at),
                         .tensor = t,
                         .number = at / block_bytes});
    }
  }
}

void TensorHashes::add(const Block& block, const std::byte* contents) {
  std::atomic_ref<std::uint64_t>(hashes_[block.tensor])
      .fetch_add(XXH3_64bits_withSeed(contents, block.bytes, block.number), std::memory_order_relaxed);
}

std::span<const std::uint64_t> TensorHashes::compute(Queue& queue, Threads& threads) {
  std::fill(hashes_.begin(), hashes_.end(), 0);
  queue.finish();
  if (!queue.device().is_addressable()) {
    std::vector<std::byte> copy(block_bytes);
    for (const Block& block : blocks_) {
      queue.read(block.data, std::span(copy).first(block.bytes));
      queue.finish();
      add(block, copy.data());
    }
    return hashes_;
  }
  threads.split(static_cast<std::int64_t>(blocks_.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      const Block& block = blocks_[static_cast<std::size_t>(b)];
      add(block, block.data);
    }
  });
  return hashes_;
}

}  // namespace shardrun::device
