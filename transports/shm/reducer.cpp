#include "reducer.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace shm {
namespace {

/// Reductions of more than two sources go tile by tile, so that the partial result stays in the L1 cache.
constexpr std::size_t tile_bytes = 8192;

}  // namespace

Reducer::Reducer(std::uint32_t dtype, std::uint32_t reduction, std::uint64_t element_bytes) noexcept
    : into_one_(shardrun::sdk::find_reduction<1>(dtype, reduction)),
      into_two_(shardrun::sdk::find_reduction<2>(dtype, reduction)),
      element_bytes_(element_bytes) {}

void Reducer::run(std::span<const std::byte* const> sources, std::span<std::byte* const> targets,
                  std::uint64_t count) const noexcept {
  const std::uint64_t tile = sources.size() == 2 && targets.size() <= 2 ? count : tile_bytes / element_bytes_;
  for (std::uint64_t done = 0; done < count; done += tile) {
    run_tile(sources, targets, done * element_bytes_, std::min(tile, count - done));
  }
}

/// Reads each source before it writes a target that may be the same memory.
void Reducer::run_tile(std::span<const std::byte* const> sources, std::span<std::byte* const> targets,
                       std::uint64_t offset, std::uint64_t count) const noexcept {
  alignas(64) std::array<std::byte, tile_bytes> sum;
  const std::byte* so_far = sources[0] + offset;
  for (std::size_t i = 1; i + 1 < sources.size(); ++i) {
    void* const to = sum.data();
    into_one_(&to, so_far, sources[i] + offset, count);
    so_far = sum.data();
  }
  std::array<void*, 2> first = {targets[0] + offset, targets[targets.size() > 1 ? 1 : 0] + offset};
  (targets.size() > 1 ? into_two_ : into_one_)(first.data(), so_far, sources.back() + offset, count);
  for (std::size_t i = 2; i < targets.size(); ++i) {
    std::memcpy(targets[i] + offset, first[0], count * element_bytes_);
  }
}

}  // namespace shm
