#include "core/device/hash.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/device/machine_level.h"
#include "core/device/queue.h"
#include "core/device/threads.h"

namespace shardrun::device {
namespace {

/// Blocks are so small that threads share the work evenly.
constexpr std::size_t block_bytes = std::size_t{256} * 1024;
/// The number of blocks that are read from a device together, which is 4 MiB.
constexpr std::size_t blocks_of_read = 16;

using Sum = std::uint64_t (*)(const std::byte* words, std::size_t count, std::uint32_t place);

/// Compilers vectorize this loop. Each of the functions below inlines it for another instruction set.
[[gnu::always_inline]] inline std::uint64_t sum_of(const std::byte* words, std::size_t count, std::uint32_t place) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t word = 0;
    std::memcpy(&word, words + i * sizeof(word), sizeof(word));
    std::uint32_t mixed = ((place + static_cast<std::uint32_t>(i)) * hash_weights::first) & hash_weights::mask;
    mixed ^= mixed >> hash_weights::shift;
    sum += std::uint64_t{word} * (mixed * hash_weights::second | 1U);
  }
  return sum;
}

std::uint64_t sum_baseline(const std::byte* words, std::size_t count, std::uint32_t place) {
  return sum_of(words, count, place);
}
#if defined(SHARDRUN_KERNEL_X86_LEVELS)
[[gnu::target("avx2")]] std::uint64_t sum_v3(const std::byte* words, std::size_t count, std::uint32_t place) {
  return sum_of(words, count, place);
}
[[gnu::target("avx2,avx512f,avx512bw,avx512dq,avx512vl")]] std::uint64_t sum_v4(const std::byte* words,
                                                                                std::size_t count,
                                                                                std::uint32_t place) {
  return sum_of(words, count, place);
}
#endif

Sum best_sum() noexcept {
#if defined(SHARDRUN_KERNEL_X86_LEVELS)
  return machine_level() == 4 ? sum_v4 : machine_level() == 3 ? sum_v3 : sum_baseline;
#else
  return sum_baseline;
#endif
}

}  // namespace

std::uint64_t hash_of(std::span<const std::byte> bytes, std::uint64_t place) {
  static const Sum sum = best_sum();
  const std::size_t words = bytes.size() / sizeof(std::uint32_t);
  std::uint64_t hash = sum(bytes.data(), words, static_cast<std::uint32_t>(place));
  if (const std::span<const std::byte> rest = bytes.subspan(words * sizeof(std::uint32_t)); !rest.empty()) {
    std::array<std::byte, sizeof(std::uint32_t)> last = {};
    std::ranges::copy(rest, last.begin());
    hash += sum_baseline(last.data(), 1, static_cast<std::uint32_t>(place + words));
  }
  return hash;
}

TensorHashes::TensorHashes(const std::vector<TensorView>& tensors) : hashes_(tensors.size()) {
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    first_blocks_.push_back(blocks_.size());
    const std::size_t bytes = tensors[t].bytes();
    for (std::size_t at = 0; at < bytes; at += block_bytes) {
      blocks_.push_back({.data = static_cast<const std::byte*>(tensors[t].data) + at,
                         .bytes = std::min(block_bytes, bytes - at),
                         .tensor = t,
                         .place = at / sizeof(std::uint32_t)});
    }
  }
  first_blocks_.push_back(blocks_.size());
}

void TensorHashes::add(const Block& block, const std::byte* contents) {
  std::atomic_ref<std::uint64_t>(hashes_[block.tensor])
      .fetch_add(hash_of({contents, block.bytes}, block.place), std::memory_order_relaxed);
}

void TensorHashes::add_all(std::span<const Block> blocks, Threads& threads, const std::byte* copy) {
  threads.split(static_cast<std::int64_t>(blocks.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto b = static_cast<std::size_t>(begin); b < static_cast<std::size_t>(end); ++b) {
      add(blocks[b], copy == nullptr ? blocks[b].data : copy + b * block_bytes);
    }
  });
}

void TensorHashes::add_read(std::span<const Block> all, Queue& queue, Threads& threads) {
  for (std::vector<std::byte>& copy : copies_) {
    copy.resize(std::min(blocks_.size(), blocks_of_read) * block_bytes);
  }
  const auto blocks_at = [&](std::size_t first) {
    return all.subspan(first, std::min(blocks_of_read, all.size() - first));
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
  Event done = all.empty() ? Event{} : read(0);
  for (std::size_t first = 0; first < all.size(); first += blocks_of_read) {
    const Event reading = done;
    if (first + blocks_of_read < all.size()) {
      done = read(first + blocks_of_read);  // runs while the host computes
    }
    queue.finish(reading);
    add_all(blocks_at(first), threads, copies_[first / blocks_of_read % copies_.size()].data());
  }
}

void TensorHashes::compute_blocks(std::span<const Block> blocks, Queue& queue, Threads& threads) {
  queue.finish();
  if (queue.device().is_addressable()) {
    add_all(blocks, threads, nullptr);
  } else {
    add_read(blocks, queue, threads);
  }
}

std::span<const std::uint64_t> TensorHashes::compute(Queue& queue, Threads& threads) {
  std::ranges::fill(hashes_, 0);
  compute_blocks(blocks_, queue, threads);
  return hashes_;
}

std::uint64_t TensorHashes::compute(Queue& queue, Threads& threads, std::size_t tensor) {
  hashes_[tensor] = 0;
  const std::size_t first = first_blocks_[tensor];
  compute_blocks(std::span(blocks_).subspan(first, first_blocks_[tensor + 1] - first), queue, threads);
  return hashes_[tensor];
}

}  // namespace shardrun::device
