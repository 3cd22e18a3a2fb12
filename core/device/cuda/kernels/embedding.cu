#include "core/device/cuda/rows.h"

// Rows of a table that are chosen by index, and the gradient of that.
// tokens: [L]   table, dtable: [O, V, E]   y, dy: [O, L, E]

namespace shardrun::device::cuda {
namespace {

/// A tensor [O, V, E] of rows that are chosen by their index in V. A shard holds `held` of them, from `first` on.
struct Table {
  Table(const KernelCall& call, const TensorView& tensor) {
    const auto dim = static_cast<std::uint32_t>(call.attributes.has("dim") ? call.attributes.integer("dim") : 0);
    outer = extent(tensor, 0, dim);
    held = tensor.shape[dim];
    first = tensor.origin[dim];
    width = extent(tensor, dim + 1, tensor.rank);
  }

  std::int64_t outer;
  std::int64_t held;
  std::int64_t first;
  std::int64_t width;
};

/// y[o, l, :] = table[o, token[l], :], zeros for a row held elsewhere.
struct Gather {
  const std::int32_t* tokens;
  std::int64_t count;
  Reals table;
  Reals y;
  Table rows;

  template <int pack, typename RowTeam>
  SHARDRUN_ON_DEVICE void compute(RowTeam& team, std::int64_t row) const {
    const std::int64_t chosen = tokens[row % count] - rows.first;
    const bool is_held = chosen >= 0 && chosen < rows.held;
    const std::int64_t from = (row / count * rows.held + chosen) * rows.width;
    team.template loop<pack>(rows.width, [&](std::int64_t e) {
      y.set_pack(row * rows.width + e, is_held ? table.get_pack<pack>(from + e) : Pack<pack>{});
    });
  }
};

void gather(const KernelCall& call) {
  const Table rows(call, call.inputs[1]);
  const std::int64_t count = call.inputs[0].elements();
  for_each_row(call, rows.outer * count, rows.width,
               Gather{integers(call.inputs[0]), count, reals(call.inputs[1]), reals(call.outputs[0]), rows});
}

/// Rows of a table that lie side by side. Their tokens are listed together.
constexpr int range_rows = 64;

/// Where the tokens of a range lie in the list of all.
struct Bounds {
  std::int32_t begin;
  std::int32_t end;
};

/// The tokens of this shard's rows, ordered by range, and in each range as they are. In scratch.
struct SortedTokens {
  SortedTokens(std::byte* scratch, std::int64_t count, std::int64_t held)
      : tokens(reinterpret_cast<std::int32_t*>(scratch)),
        places(tokens + count),
        bounds(reinterpret_cast<Bounds*>(places + count)),
        ranges((held + range_rows - 1) / range_rows) {}
  [[nodiscard]] static std::size_t bytes(std::int64_t count, std::int64_t held) {
    const std::int64_t ranges = (held + range_rows - 1) / range_rows;
    return static_cast<std::size_t>(count) * 2 * sizeof(std::int32_t) +
           static_cast<std::size_t>(ranges) * sizeof(Bounds);
  }

  std::int32_t* tokens;  ///< as rows of this shard
  std::int32_t* places;  ///< in the op's operand
  Bounds* bounds;
  std::int64_t ranges;
};

[[nodiscard]] SHARDRUN_ON_DEVICE inline int ones(std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __popc(bits);
#else
  return __builtin_popcount(bits);
#endif
}
[[nodiscard]] SHARDRUN_ON_DEVICE inline int ones_before(std::uint32_t bits, int lane) {
  return ones(bits & ((1U << static_cast<unsigned>(lane)) - 1U));
}

/// A block lists the tokens of one range. Those of ranges before are counted, so that it knows where its list begins.
struct ListRange {
  static constexpr int warps = most_threads / warp_size;

  const std::int32_t* tokens;
  std::int64_t count;
  Table rows;
  SortedTokens sorted;

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const Shared<std::int32_t> before = block.shared<std::int32_t>(warps);
    const Shared<std::int32_t> own = block.shared<std::int32_t>(warps);
    const std::int64_t first = block.index() * range_rows;
    const std::int64_t begin = count * block.warp() / warps;
    const std::int64_t end = count * (block.warp() + 1) / warps;
    int lane_before = 0;
    int lane_own = 0;
    for (std::int64_t i = begin + block.lane(); i < end; i += warp_size) {
      const std::int64_t row = tokens[i] - rows.first;
      lane_before += row >= 0 && row < first ? 1 : 0;
      lane_own += is_own(first, row) ? 1 : 0;
    }
    const int warp_before = warp_sum(block, lane_before);
    const int warp_own = warp_sum(block, lane_own);
    if (block.lane() == 0) {
      before[block.warp()] = warp_before;
      own[block.warp()] = warp_own;
    }
    block.sync();
    std::int32_t list = 0;
    std::int32_t list_end = 0;
    std::int32_t place = 0;
    for (int warp = 0; warp < warps; ++warp) {
      list += before[warp];
      list_end += before[warp] + own[warp];
      place += before[warp] + (warp < block.warp() ? own[warp] : 0);
    }
    if (block.thread() == 0) {
      sorted.bounds[block.index()] = {list, list_end};
    }
    for (std::int64_t i = begin; i < end; i += warp_size) {
      const std::int64_t l = i + block.lane();
      const std::int64_t row = l < end ? tokens[l] - rows.first : -1;
      const std::uint32_t lanes = block.ballot(is_own(first, row));
      if (is_own(first, row)) {
        const std::int32_t to = place + ones_before(lanes, block.lane());
        sorted.tokens[to] = static_cast<std::int32_t>(row);
        sorted.places[to] = static_cast<std::int32_t>(l);
      }
      place += ones(lanes);
    }
  }

 private:
  [[nodiscard]] SHARDRUN_ON_DEVICE bool is_own(std::int64_t first, std::int64_t row) const {
    return row >= first && row < first + range_rows && row < rows.held;
  }
};

/// dtable[o, v, :] = sum of dy[o, l, :] over the l with token[l] == v, in ascending order of l. A block makes one row:
/// its warps look for the token in the list of the row's range; then each thread adds up its columns. No atomic
/// additions, so the bits are always the same; a row is rounded once.
template <int pack>
struct AddRows {
  static constexpr int block_threads = 128;
  static constexpr int warps = block_threads / warp_size;
  static constexpr int of_warp = 256;  ///< tokens that a warp looks at before the columns are added
  static constexpr int ahead = 4;      ///< rows that are read at once

  Reals dy;
  Reals table;
  std::int64_t count;
  Table rows;
  SortedTokens sorted;
  bool accumulate;

  [[nodiscard]] static std::size_t shared() {
    return shared_bytes<std::int32_t>(warps * of_warp) + shared_bytes<std::int32_t>(warps);
  }

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const std::int64_t from = block.index() / rows.held * count * rows.width;
    const auto row = static_cast<std::int32_t>(block.index() % rows.held);
    const Bounds bounds = sorted.bounds[row / range_rows];
    if (accumulate && bounds.begin == bounds.end) {
      return;
    }
    const Shared<std::int32_t> places = block.shared<std::int32_t>(warps * of_warp);
    const Shared<std::int32_t> found = block.shared<std::int32_t>(warps);
    const std::int64_t columns = std::int64_t{pack} * block_threads;
    for (std::int64_t column = std::int64_t{pack} * block.thread(); column - pack * block.thread() < rows.width;
         column += columns) {
      Pack<pack> sums = {};
      for (std::int32_t begin = bounds.begin; begin < bounds.end; begin += warps * of_warp) {
        const int own = list(block, begin + block.warp() * of_warp, bounds.end, row, places);
        if (block.lane() == 0) {
          found[block.warp()] = own;
        }
        block.sync();
        for (int warp = 0; warp < warps; ++warp) {
          add(sums, from + column, places, warp * of_warp, column < rows.width ? found[warp] : 0);
        }
        block.sync();
      }
      if (column < rows.width) {
        put(block.index() * rows.width + column, sums);
      }
    }
  }

 private:
  /// Lists the places of the row's token among the warp's part of the list. Returns their number.
  SHARDRUN_ON_DEVICE int list(Block& block, std::int32_t begin, std::int32_t end, std::int32_t row,
                              const Shared<std::int32_t>& places) const {
    int number = 0;
    for (int i = 0; i < of_warp && begin + i < end; i += warp_size) {
      const std::int32_t at = begin + i + block.lane();
      const bool is_here = at < end && sorted.tokens[at] == row;
      const std::uint32_t lanes = block.ballot(is_here);
      if (is_here) {
        places[block.warp() * of_warp + number + ones_before(lanes, block.lane())] = sorted.places[at];
      }
      number += ones(lanes);
    }
    return number;
  }
  SHARDRUN_ON_DEVICE void add(Pack<pack>& sums, std::int64_t from, const Shared<std::int32_t>& places, int begin,
                              int number) const {
    const int end = begin + number;
    int i = begin;
    for (; i + ahead <= end; i += ahead) {
      Pack<pack> next[ahead];
      SHARDRUN_UNROLLED for (int a = 0; a < ahead; ++a) {
        next[a] = dy.get_pack<pack>(from + places[i + a] * rows.width);
      }
      SHARDRUN_UNROLLED for (int a = 0; a < ahead; ++a) {
        SHARDRUN_UNROLLED for (int k = 0; k < pack; ++k) { sums[k] += next[a][k]; }
      }
    }
    for (; i < end; ++i) {
      const Pack<pack> next = dy.get_pack<pack>(from + places[i] * rows.width);
      SHARDRUN_UNROLLED for (int k = 0; k < pack; ++k) { sums[k] += next[k]; }
    }
  }
  SHARDRUN_ON_DEVICE void put(std::int64_t at, Pack<pack> sums) const {
    if (accumulate) {
      const Pack<pack> old = table.get_pack<pack>(at);
      SHARDRUN_UNROLLED for (int k = 0; k < pack; ++k) { sums[k] += old[k]; }
    }
    table.set_pack(at, sums);
  }
};

template <int pack>
void add_rows(const KernelCall& call, const Table& rows, const SortedTokens& sorted) {
  launch(call, rows.outer * rows.held, AddRows<pack>::block_threads, AddRows<pack>::shared(),
         AddRows<pack>{reals(call.inputs[1]), reals(call.outputs[0]), call.inputs[0].elements(), rows, sorted,
                       call.accumulate});
}

void scatter_add(const KernelCall& call) {
  const Table rows(call, call.outputs[0]);
  if (rows.width == 0 || rows.outer * rows.held == 0) {
    return;
  }
  const std::int64_t count = call.inputs[0].elements();
  const SortedTokens sorted(call.scratch.data(), count, rows.held);
  launch(call, sorted.ranges, most_threads, 2 * shared_bytes<std::int32_t>(ListRange::warps),
         ListRange{integers(call.inputs[0]), count, rows, sorted});
  const bool in_packs = rows.width % pack_size == 0 && is_aligned(call.inputs[1]) && is_aligned(call.outputs[0]);
  in_packs ? add_rows<pack_size>(call, rows, sorted) : add_rows<1>(call, rows, sorted);
}

std::size_t scatter_add_scratch(const graph::OpShape& shape, int) {
  const auto dim =
      static_cast<std::size_t>(shape.attributes.has("dim") ? shape.attributes.integer("dim") : std::int64_t{0});
  return SortedTokens::bytes(graph::element_count(shape.inputs[0]), shape.outputs[0].shape[dim]);
}

const AddKernels tables({{"embedding", {.run = gather}},
                         {"gather", {.run = gather}},
                         {"embedding_gradient", {.run = scatter_add, .scratch_bytes = scatter_add_scratch}},
                         {"scatter_add", {.run = scatter_add, .scratch_bytes = scatter_add_scratch}}});

}  // namespace
}  // namespace shardrun::device::cuda
