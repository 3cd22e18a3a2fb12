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

/// dtable[o, v, :] = sum of dy[o, l, :] over the l with token[l] == v, in ascending order of l. A block makes one row:
/// its warps look for the token in parts of L and list where it is; then each thread adds up its columns. No atomic
/// additions, so the bits are always the same; a row is rounded once.
struct ScatterAdd {
  static constexpr int of_warp = 256;  ///< tokens that a warp looks at before the columns are added
  static constexpr int warps = most_threads / warp_size;
  static constexpr int of_thread = 8;  ///< columns at a time

  const std::int32_t* tokens;
  std::int64_t count;
  Reals dy;
  Reals table;
  Table rows;
  bool accumulate;

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const std::int64_t from = block.index() / rows.held * count * rows.width;
    const std::int64_t token = rows.first + block.index() % rows.held;
    const Shared<std::int32_t> places = block.shared<std::int32_t>(warps * of_warp);
    const Shared<std::int32_t> found = block.shared<std::int32_t>(warps);
    const std::int64_t columns = std::int64_t{of_thread} * most_threads;
    for (std::int64_t column = block.thread(); column - block.thread() < rows.width; column += columns) {
      float sums[of_thread] = {};
      for (std::int64_t begin = 0; begin < count; begin += warps * of_warp) {
        const int own = list(block, begin + block.warp() * of_warp, token, places);
        if (block.lane() == 0) {
          found[block.warp()] = own;
        }
        block.sync();
        for (int warp = 0; warp < warps; ++warp) {
          for (int place = 0; place < found[warp]; ++place) {
            add(sums, from + (begin + places[warp * of_warp + place]) * rows.width, column);
          }
        }
        block.sync();
      }
      for (int k = 0; k < of_thread; ++k) {
        const std::int64_t e = column + k * most_threads;
        if (e < rows.width) {
          table.put(block.index() * rows.width + e, sums[k], accumulate);
        }
      }
    }
  }

 private:
  /// Lists the places of the token among the warp's tokens, from the block's first on. Returns their number.
  SHARDRUN_ON_DEVICE int list(Block& block, std::int64_t begin, std::int64_t token,
                              const Shared<std::int32_t>& places) const {
    int number = 0;
    for (int i = 0; i < of_warp && begin + i < count; i += warp_size) {
      const std::int64_t l = begin + i + block.lane();
      const bool is_here = l < count && tokens[l] == token;
      const std::uint32_t lanes = block.ballot(is_here);
      if (is_here) {
        const std::uint32_t before = lanes & ((1U << static_cast<unsigned>(block.lane())) - 1U);
        places[block.warp() * of_warp + number + ones(before)] =
            static_cast<std::int32_t>(block.warp() * of_warp + i + block.lane());
      }
      number += ones(lanes);
    }
    return number;
  }
  SHARDRUN_ON_DEVICE static int ones(std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
    return __popc(bits);
#else
    return __builtin_popcount(bits);
#endif
  }
  SHARDRUN_ON_DEVICE void add(float (&sums)[of_thread], std::int64_t row, std::int64_t column) const {
    for (int k = 0; k < of_thread; ++k) {
      const std::int64_t e = column + k * most_threads;
      sums[k] += e < rows.width ? dy.get(row + e) : 0.0F;
    }
  }
};

void scatter_add(const KernelCall& call) {
  const Table rows(call, call.outputs[0]);
  launch(call, rows.width == 0 ? 0 : rows.outer * rows.held, most_threads,
         shared_bytes<std::int32_t>(ScatterAdd::warps * ScatterAdd::of_warp) +
             shared_bytes<std::int32_t>(ScatterAdd::warps),
         ScatterAdd{integers(call.inputs[0]), call.inputs[0].elements(), reals(call.inputs[1]), reals(call.outputs[0]),
                    rows, call.accumulate});
}

const AddKernels tables({{"embedding", {.run = gather}},
                         {"gather", {.run = gather}},
                         {"embedding_gradient", {.run = scatter_add}},
                         {"scatter_add", {.run = scatter_add}}});

}  // namespace
}  // namespace shardrun::device::cuda
