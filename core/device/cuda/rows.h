#pragma once

#include <cstdint>
#include <utility>

#include "core/device/cuda/launch.h"
#include "core/device/cuda/values.h"

namespace shardrun::device::cuda {

template <bool is_block, int pack, typename Load>
class HeldRow;

/// The threads that compute a row together: a whole block, or one warp.
template <bool is_block>
struct Team {
  Block& block;

  /// A row that is read several times.
  template <int pack, typename Load>
  [[nodiscard]] SHARDRUN_ON_DEVICE HeldRow<is_block, pack, Load> held(std::int64_t width, const Load& load) const {
    return {*this, width, load};
  }
  [[nodiscard]] SHARDRUN_ON_DEVICE int member() const { return is_block ? block.thread() : block.lane(); }
  [[nodiscard]] SHARDRUN_ON_DEVICE int size() const { return is_block ? block.threads() : warp_size; }
  template <typename T, typename Join>
  [[nodiscard]] SHARDRUN_ON_DEVICE T join(T value, const Join& join) {
    if constexpr (is_block) {
      return block_join(block, value, join);
    } else {
      return warp_join(block, value, join);
    }
  }
  [[nodiscard]] SHARDRUN_ON_DEVICE float sum(float value) { return join(value, Plus{}); }
  [[nodiscard]] SHARDRUN_ON_DEVICE float max(float value) { return join(value, Larger{}); }

  /// Calls body(e) for this thread's part of [0, width), in steps of `pack` elements.
  template <int pack, typename Body>
  SHARDRUN_ON_DEVICE void loop(std::int64_t width, const Body& body) const {
    for (std::int64_t e = std::int64_t{pack} * member(); e < width; e += std::int64_t{pack} * size()) {
      body(e);
    }
  }
  /// Calls use(e, load(e)) for the same steps, in the same order. `ahead` loads are in flight at once, also at the end
  /// of the row, where steps past the end repeat an earlier load and ignore its result.
  template <int pack, int ahead, typename Load, typename Use>
  SHARDRUN_ON_DEVICE void loop(std::int64_t width, const Load& load, const Use& use) const {
    const std::int64_t step = std::int64_t{pack} * size();
    std::int64_t e = std::int64_t{pack} * member();
    decltype(load(e)) found[ahead];
    for (; e + (ahead - 1) * step < width; e += ahead * step) {  // without branches, behind which loads would wait
      SHARDRUN_UNROLLED for (int i = 0; i < ahead; ++i) { found[i] = load(e + i * step); }
      SHARDRUN_UNROLLED for (int i = 0; i < ahead; ++i) { use(e + i * step, found[i]); }
    }
    if (e < width) {
      SHARDRUN_UNROLLED for (int i = 0; i < ahead; ++i) { found[i] = load(e + i * step < width ? e + i * step : e); }
      SHARDRUN_UNROLLED for (int i = 0; i < ahead; ++i) {
        if (e + i * step < width) {
          use(e + i * step, found[i]);
        }
      }
    }
  }
};

/// The widest row, in elements, that a warp computes. A block computes wider ones.
inline constexpr std::int64_t widest_of_warp = 1024;

/// A thread's part of a row that is read several times. It is kept in registers if a warp reads the row in packs, and
/// loaded again each time otherwise. REQUIRES: what load(e) reads does not change in between.
template <bool is_block, int pack, typename Load>
class HeldRow {
 public:
  SHARDRUN_ON_DEVICE HeldRow(const Team<is_block>& team, std::int64_t width, const Load& load)
      : team_(team), width_(width), load_(load) {
    if constexpr (is_held) {
      const std::int64_t first = std::int64_t{pack} * team.member();
      if (first < width) {
        SHARDRUN_UNROLLED for (int i = 0; i < steps; ++i) {
          const std::int64_t e = first + i * step;
          held_[i] = load(e < width ? e : first);
        }
      }
    }
  }

  /// Calls use(e, load(e)) for this thread's steps of `pack` elements, in order.
  template <typename Use>
  SHARDRUN_ON_DEVICE void each(const Use& use) const {
    if constexpr (is_held) {
      SHARDRUN_UNROLLED for (int i = 0; i < steps; ++i) {
        const std::int64_t e = std::int64_t{pack} * team_.member() + i * step;
        if (e < width_) {
          use(e, held_[i]);
        }
      }
    } else {
      team_.template loop<pack, 2>(width_, load_, use);
    }
  }

 private:
  using Loaded = decltype(std::declval<Load>()(std::int64_t{}));
  static constexpr std::int64_t step = std::int64_t{pack} * warp_size;
  static constexpr bool is_held = !is_block && widest_of_warp <= 4 * step;
  static constexpr int steps = is_held ? static_cast<int>(widest_of_warp / step) : 1;

  const Team<is_block>& team_;
  std::int64_t width_;
  const Load& load_;
  Loaded held_[steps];
};

template <bool is_block, int pack, typename Function>
struct ForEachRow {
  std::int64_t rows;
  Function function;

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    Team<is_block> team{block};
    const std::int64_t row = is_block ? block.index() : block.index() * block.warps() + block.warp();
    if (row < rows) {
      function.template compute<pack>(team, row);
    }
  }
};

template <int pack, typename Function>
void for_each_row_in_packs(const KernelCall& call, std::int64_t rows, std::int64_t width, const Function& function) {
  if (width > widest_of_warp) {
    launch(call, rows, most_threads, 0, ForEachRow<true, pack, Function>{rows, function});
  } else {
    constexpr int warps = 4;
    launch(call, (rows + warps - 1) / warps, warps * warp_size, 0, ForEachRow<false, pack, Function>{rows, function});
  }
}

/// Calls function.compute<pack>(team, row) for each row of `width` elements. `pack` is pack_size if it divides `width`
/// and all tensors of the call are aligned, else 1. REQUIRES: tensors that are read in packs have rows of this width.
template <typename Function>
void for_each_row(const KernelCall& call, std::int64_t rows, std::int64_t width, const Function& function) {
  if (width % pack_size == 0 && are_aligned(call)) {
    for_each_row_in_packs<pack_size>(call, rows, width, function);
  } else {
    for_each_row_in_packs<1>(call, rows, width, function);
  }
}

}  // namespace shardrun::device::cuda
