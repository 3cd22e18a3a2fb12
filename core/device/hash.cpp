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
/// Read of a device at once: 4 MiB.
constexpr std::size_t blocks_of_read = 16;

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

void TensorHashes::add_all(std::span<const Block> blocks, Threads& threads, const std::byte* copy) {
  threads.split(static_cast<std::int64_t>(blocks.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto b = static_cast<std::size_t>(begin); b < static_cast<std::size_t>(end); ++b) {
      add(blocks[b], copy == nullptr ? blocks[b].data : copy + b * block_bytes);
    }
  });
}

void TensorHashes::add_read(Queue& queue, Threads& threads) {
  for (std::vector<std::byte>& copy : copies_) {
    copy.resize(std::min(blocks_.size(), blocks_of_read) * block_bytes);
  }
  const auto blocks_at = [&](std::size_t first) {
    return std::span(blocks_).subspan(first, std::min(blocks_of_read, blocks_.size() - first));
  };
  const auto read = [&](std::size_t first) {
    std::byte* to = copies_[first / blocks_of_read % copies_.size()].data();
    const std::span<const Block> blocks = blocks_at(first);
    for (std::size_t b = 0; b < blocks.size();) {
      const std::size_t begin = b;
      for (; b < blocks.size() && blocks[b].tensor == blocks[begin].tensor; ++b) {
      }
      const std::byte* const end = blocks[b - 1].data + blocks[b - 1].bytes;
      queue.read(blocks[begin].data, {to + begin * block_bytes, static_cast<std::size_t>(end - blocks[begin].data)});
    }
    return queue.record();
  };
  Event done = blocks_.empty() ? Event{} : read(0);
  for (std::size_t first = 0; first < blocks_.size(); first += blocks_of_read) {
    const Event reading = done;
    if (first + blocks_of_read < blocks_.size()) {
      done = read(first + blocks_of_read);  // while the host computes
    }
    queue.finish(reading);
    add_all(blocks_at(first), threads, copies_[first / blocks_of_read % copies_.size()].data());
  }
}

std::span<const std::uint64_t> TensorHashes::compute(Queue& queue, Threads& threads) {
  std::fill(hashes_.begin(), hashes_.end(), 0);
  queue.finish();
  if (queue.device().is_addressable()) {
    add_all(blocks_, threads, nullptr);
  } else {
    add_read(queue, threads);
  }
  return hashes_;
}

}  // namespace shardrun::device
