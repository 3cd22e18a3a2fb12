#include "core/device/cuda/loops.h"
#include "core/device/cuda/rows.h"

// These kernels read the rows of a table that tokens choose, and compute the gradient of that op.
// tokens: [L]   table, dtable: [O, V, E]   y, dy: [O, L, E]

namespace shardrun::device::cuda {
namespace {

/// A tensor [O, V, E] whose rows are chosen by an index in V. A shard holds `held` of the V rows, from `first` on.
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

/// y[o, l, :] = table[o, token[l], :]; zeros if another shard holds the row.
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

/// A range has this many consecutive rows of a table. The tokens of a range are listed together.
constexpr int range_rows = 256;
/// A chunk has this many consecutive entries of the list of places. It is summed on its own if all belong to one row.
constexpr int chunk_places = 64;

/// The begin and the end of a part of a list.
struct alignas(8) Bounds {
  std::int32_t begin;
  std::int32_t end;
};

/// A token, as a row of this shard, and the token's place in the op's operand.
struct alignas(8) Placed {
  std::int32_t row;
  std::int32_t place;
};

/// The scratch holds the places of this shard's tokens, ordered by row and ascending within a row, and the sums of
/// chunks of these places.
struct SortedPlaces {
  /// `others`: the number of table elements that share an index in V.
  SortedPlaces(std::byte* scratch, std::int64_t count, std::int64_t held, std::int64_t others)
      : chunks(count / chunk_places),
        ranges((held + range_rows - 1) / range_rows),
        chunk_sums{reinterpret_cast<unsigned char*>(scratch), false},
        of_rows(reinterpret_cast<Bounds*>(scratch + bytes_of_sums(count, others))),
        of_ranges(of_rows + held),
        by_range(reinterpret_cast<Placed*>(of_ranges + ranges)),
        places(reinterpret_cast<std::int32_t*>(by_range + count)) {}
  [[nodiscard]] static std::size_t bytes(std::int64_t count, std::int64_t held, std::int64_t others) {
    const std::int64_t ranges = (held + range_rows - 1) / range_rows;
    return bytes_of_sums(count, others) + static_cast<std::size_t>(held + ranges) * sizeof(Bounds) +
           static_cast<std::size_t>(count) * (sizeof(Placed) + sizeof(std::int32_t));
  }

  std::int64_t chunks;
  std::int64_t ranges;
  Reals chunk_sums;      ///< [O, chunks, E], for chunks whose places belong to one row
  Bounds* of_rows;       ///< each row's part of `places`
  Bounds* of_ranges;     ///< each range's part of `by_range` and of `places`
  Placed* by_range;      ///< ordered by range, then by place
  std::int32_t* places;  ///< ordered by row, then ascending

 private:
  [[nodiscard]] static std::size_t bytes_of_sums(std::int64_t count, std::int64_t others) {
    return (static_cast<std::size_t>(count / chunk_places * others) * sizeof(float) + 15) / 16 * 16;
  }
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

/// Calls use(i, list[i]) for each i from `begin` to end - 1, in order; a warp takes 32 of them at a time. Lanes past
/// the end get `none`, so that all lanes take part. Several loads are in flight at once.
template <typename T, typename Use>
SHARDRUN_ON_DEVICE inline void for_each_of_warp(const Block& block, const T* list, std::int32_t begin, std::int32_t end,
                                                const T& none, const Use& use) {
  constexpr int ahead = 8;
  for (std::int32_t i = begin + block.lane(); i - block.lane() < end; i += ahead * warp_size) {
    const T* const own = list + i;
    const std::int32_t rest = end - i;
    T found[ahead];
    SHARDRUN_UNROLLED for (int a = 0; a < ahead; ++a) { found[a] = a * warp_size < rest ? own[a * warp_size] : none; }
    SHARDRUN_UNROLLED for (int a = 0; a < ahead; ++a) { use(i + a * warp_size, found[a]); }
  }
}

/// A block lists the tokens of one range. It also counts the tokens of earlier ranges, to know where its list begins.
struct ListRange {
  static constexpr int block_threads = 512;
  static constexpr int warps = block_threads / warp_size;

  const std::int32_t* tokens;
  std::int64_t count;
  Table rows;
  SortedPlaces sorted;

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const Shared<std::int32_t> before = block.shared<std::int32_t>(warps);
    const Shared<std::int32_t> own = block.shared<std::int32_t>(warps);
    const auto begin = static_cast<std::int32_t>(count * block.warp() / warps);
    const auto end = static_cast<std::int32_t>(count * (block.warp() + 1) / warps);
    const auto first = static_cast<std::uint32_t>(block.index() * range_rows);
    const std::uint32_t held = static_cast<std::uint32_t>(rows.held) - first;
    const std::uint32_t size = held < range_rows ? held : range_rows;
    int lane_before = 0;
    int lane_own = 0;
    for_each_of_warp(block, tokens, begin, end, -1, [&](std::int32_t, std::int32_t token) {
      const std::uint32_t row = row_of(token);
      lane_before += row < first ? 1 : 0;
      lane_own += row - first < size ? 1 : 0;
    });
    const int warp_before = warp_sum(block, lane_before);
    const int warp_own = warp_sum(block, lane_own);
    if (block.lane() == 0) {
      before[block.warp()] = warp_before;
      own[block.warp()] = warp_own;
    }
    block.sync();
    std::int32_t list = 0;
    std::int32_t list_end = 0;
    std::int32_t to = 0;
    for (int warp = 0; warp < warps; ++warp) {
      list += before[warp];
      list_end += before[warp] + own[warp];
      to += before[warp] + (warp < block.warp() ? own[warp] : 0);
    }
    if (block.thread() == 0) {
      sorted.of_ranges[block.index()] = {list, list_end};
    }
    for_each_of_warp(block, tokens, begin, end, -1, [&](std::int32_t place, std::int32_t token) {
      const std::uint32_t row = row_of(token);
      const bool is_own = row - first < size;
      const std::uint32_t lanes = block.ballot(is_own);
      if (is_own) {
        const std::int32_t at = to + ones_before(lanes, block.lane());
        sorted.by_range[at] = {static_cast<std::int32_t>(row), place};
      }
      to += ones(lanes);
    });
  }

 private:
  /// The token's row in this shard; more than 2^31 for a token below the shard's first.
  [[nodiscard]] SHARDRUN_ON_DEVICE std::uint32_t row_of(std::int32_t token) const {
    return static_cast<std::uint32_t>(token) - static_cast<std::uint32_t>(rows.first);
  }
};

/// A warp lists the places of one row, taken from the list of the row's range.
struct ListRow {
  std::int64_t held;
  SortedPlaces sorted;

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const std::int64_t number = block.index() * block.warps() + block.warp();
    if (number >= held) {
      return;
    }
    const auto row = static_cast<std::int32_t>(number);
    const Bounds bounds = sorted.of_ranges[row / range_rows];
    constexpr Placed none = {-1, -1};
    int before = 0;
    int own = 0;
    for_each_of_warp(block, sorted.by_range, bounds.begin, bounds.end, none, [&](std::int32_t, const Placed& token) {
      before += static_cast<std::uint32_t>(token.row) < static_cast<std::uint32_t>(row) ? 1 : 0;
      own += token.row == row ? 1 : 0;
    });
    own = warp_sum(block, own);
    std::int32_t to = bounds.begin + warp_sum(block, before);
    if (block.lane() == 0) {
      sorted.of_rows[row] = {to, to + own};
    }
    if (own == 0) {
      return;
    }
    for_each_of_warp(block, sorted.by_range, bounds.begin, bounds.end, none, [&](std::int32_t, const Placed& token) {
      const std::uint32_t lanes = block.ballot(token.row == row);
      if (token.row == row) {
        sorted.places[to + ones_before(lanes, block.lane())] = token.place;
      }
      to += ones(lanes);
    });
  }
};

/// Sums rows of dy, in one thread, for `pack` columns of the result.
template <int pack>
struct RowSum {
  Reals dy;
  const std::int32_t* tokens;
  std::int64_t count;
  Table rows;
  SortedPlaces sorted;

  /// A thread's number, decomposed into indices of [O, many, E / pack].
  struct Index {
    std::int64_t outer;
    std::int64_t middle;
    std::int64_t column;
  };
  [[nodiscard]] SHARDRUN_ON_DEVICE Index index(std::int64_t number, std::int64_t many) const {
    const std::int64_t packs = rows.width / pack;
    const std::int64_t row = quotient(number, packs);
    const std::int64_t outer = quotient(row, many);
    return {outer, row - outer * many, (number - row * packs) * pack};
  }
  /// Adds the rows of dy at places [begin, end) of the list to `sums`.
  SHARDRUN_ON_DEVICE void add_places(Pack<pack>& sums, const Index& at, std::int32_t begin, std::int32_t end) const {
    const std::int64_t from = at.outer * count * rows.width + at.column;
    add(sums, dy, begin, end, [&](std::int32_t i) { return from + sorted.places[i] * rows.width; });
  }
  SHARDRUN_ON_DEVICE void add_chunks(Pack<pack>& sums, const Index& at, std::int32_t begin, std::int32_t end) const {
    add(sums, sorted.chunk_sums, begin, end, [&](std::int32_t chunk) { return chunk_sum(at, chunk); });
  }
  /// Where the sum of a chunk is stored.
  [[nodiscard]] SHARDRUN_ON_DEVICE std::int64_t chunk_sum(const Index& at, std::int64_t chunk) const {
    return (at.outer * sorted.chunks + chunk) * rows.width + at.column;
  }

 private:
  /// Adds the elements at where(begin), …, where(end - 1), in this order. Several loads are in flight at once.
  template <typename Where>
  SHARDRUN_ON_DEVICE void add(Pack<pack>& sums, const Reals& x, std::int32_t begin, std::int32_t end,
                              const Where& where) const {
    constexpr int ahead = 4;
    for (; begin < end; begin += ahead) {
      std::int64_t from[ahead];
      SHARDRUN_UNROLLED for (int a = 0; a < ahead; ++a) { from[a] = where(begin + a < end ? begin + a : begin); }
      Pack<pack> next[ahead];
      SHARDRUN_UNROLLED for (int a = 0; a < ahead; ++a) { next[a] = x.get_pack<pack>(from[a]); }
      SHARDRUN_UNROLLED for (int a = 0; a < ahead; ++a) {
        SHARDRUN_UNROLLED for (int k = 0; k < pack; ++k) { sums[k] += begin + a < end ? next[a][k] : 0.0F; }
      }
    }
  }
};

/// Sums each chunk whose places belong to one row. A thread computes `pack` columns of a chunk.
template <int pack>
struct AddChunks {
  RowSum<pack> row;

  SHARDRUN_ON_DEVICE void operator()(std::int64_t number) const {
    const SortedPlaces& sorted = row.sorted;
    const typename RowSum<pack>::Index at = row.index(number, sorted.chunks);
    const auto begin = static_cast<std::int32_t>(at.middle * chunk_places);
    const std::int32_t end = begin + chunk_places;
    if (end > sorted.of_ranges[sorted.ranges - 1].end ||
        row.tokens[sorted.places[begin]] != row.tokens[sorted.places[end - 1]]) {
      return;
    }
    Pack<pack> sums = {};
    row.add_places(sums, at, begin, end);
    sorted.chunk_sums.set_pack(row.chunk_sum(at, at.middle), sums);
  }
};

/// dtable[o, v, :] = sum of dy[o, l, :] over the l with token[l] == v, in ascending order of l. Chunks within the row's
/// list are summed already, so that no thread adds thousands of rows of dy alone. A thread computes `pack` columns of a
/// row. There are no atomic additions, and chunks depend on the tokens alone, so the bits are always the same. A row is
/// rounded once.
template <int pack>
struct AddRows {
  RowSum<pack> row;
  Reals table;
  bool accumulate;

  SHARDRUN_ON_DEVICE void operator()(std::int64_t number) const {
    const typename RowSum<pack>::Index at = row.index(number, row.rows.held);
    const Bounds bounds = row.sorted.of_rows[at.middle];
    if (accumulate && bounds.begin == bounds.end) {
      return;
    }
    const std::int64_t to = number * pack;
    const std::int32_t first = (bounds.begin + chunk_places - 1) / chunk_places;
    const std::int32_t last = bounds.end / chunk_places;
    Pack<pack> sums = {};
    if (first < last) {
      row.add_places(sums, at, bounds.begin, first * chunk_places);
      row.add_chunks(sums, at, first, last);
      row.add_places(sums, at, last * chunk_places, bounds.end);
    } else {
      row.add_places(sums, at, bounds.begin, bounds.end);
    }
    if (accumulate) {
      const Pack<pack> old = table.get_pack<pack>(to);
      SHARDRUN_UNROLLED for (int k = 0; k < pack; ++k) { sums[k] += old[k]; }
    }
    table.set_pack(to, sums);
  }
};

template <int pack>
void add_rows(const KernelCall& call, const Table& rows, const SortedPlaces& sorted) {
  const RowSum<pack> row = {reals(call.inputs[1]), integers(call.inputs[0]), call.inputs[0].elements(), rows, sorted};
  const std::int64_t columns = rows.outer * rows.width / pack;
  for_each(call, columns * sorted.chunks, AddChunks<pack>{row});
  for_each(call, columns * rows.held, AddRows<pack>{row, reals(call.outputs[0]), call.accumulate});
}

/// Four kernels: sort the tokens by range of rows, sort them by row, sum the chunks of long lists, sum the rows.
void scatter_add(const KernelCall& call) {
  const Table rows(call, call.outputs[0]);
  if (rows.width == 0 || rows.outer * rows.held == 0) {
    return;
  }
  const std::int64_t count = call.inputs[0].elements();
  const SortedPlaces sorted(call.scratch.data(), count, rows.held, rows.outer * rows.width);
  launch(call, sorted.ranges, ListRange::block_threads, 2 * shared_bytes<std::int32_t>(ListRange::warps),
         ListRange{integers(call.inputs[0]), count, rows, sorted});
  constexpr int warps = 8;
  launch(call, (rows.held + warps - 1) / warps, warps * warp_size, 0, ListRow{rows.held, sorted});
  const bool in_packs = rows.width % pack_size == 0 && is_aligned(call.inputs[1]) && is_aligned(call.outputs[0]);
  in_packs ? add_rows<pack_size>(call, rows, sorted) : add_rows<1>(call, rows, sorted);
}

std::size_t scatter_add_scratch(const graph::OpShape& shape, int) {
  const auto dim =
      static_cast<std::size_t>(shape.attributes.has("dim") ? shape.attributes.integer("dim") : std::int64_t{0});
  std::int64_t others = 1;
  for (std::size_t d = 0; d < shape.outputs[0].shape.size(); ++d) {
    others *= d == dim ? 1 : shape.outputs[0].shape[d];
  }
  return SortedPlaces::bytes(graph::element_count(shape.inputs[0]), shape.outputs[0].shape[dim], others);
}

const AddKernels tables({{"embedding", {.run = gather}},
                         {"gather", {.run = gather}},
                         {"embedding_gradient", {.run = scatter_add, .scratch_bytes = scatter_add_scratch}},
                         {"scatter_add", {.run = scatter_add, .scratch_bytes = scatter_add_scratch}}});

}  // namespace
}  // namespace shardrun::device::cuda
