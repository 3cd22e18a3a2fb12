#include "core/device/cpu/vec.h"
#include "core/device/cpu/views.h"

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {
namespace {

/// A tensor [O, V, E] whose rows are chosen by an index in V. A shard holds `held` of the V rows, from `first` on.
struct Rows {
  Rows(const KernelCall& call, const TensorView& tensor) {
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

/// tokens: [L]   table: [O, V, E]   y: [O, L, E]; rows of tokens that are not in this shard of the vocabulary are zero
/// This copies bytes, for a table and y of the same type.
void gather_bytes(const KernelCall& call) {
  const std::int32_t* tokens = integers(call.inputs[0]);
  const TensorView& table = call.inputs[1];
  const TensorView& y = call.outputs[0];
  const std::int64_t count = call.inputs[0].elements();
  const Rows rows(call, table);
  const auto bytes = static_cast<std::size_t>(table.address_of(rows.width) - table.address_of(0));
  call.threads.split(rows.outer * count, row_grain(rows.width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t l = begin; l < end; ++l) {
      const std::int64_t row = tokens[l % count] - rows.first;
      std::byte* const to = y.address_of(l * rows.width);
      if (row >= 0 && row < rows.held) {
        __builtin_memcpy(to, table.address_of((l / count * rows.held + row) * rows.width), bytes);
      } else {
        __builtin_memset(to, 0, bytes);
      }
    }
  });
}

/// Does the same for a table and y of different types, float32 and bfloat16.
template <typename Pointer>
void gather_reals(const KernelCall& call) {
  const std::int32_t* tokens = integers(call.inputs[0]);
  const auto table = reals<Pointer>(call.inputs[1]);
  const auto y = reals<Pointer>(call.outputs[0]);
  const std::int64_t count = call.inputs[0].elements();
  const Rows rows(call, call.inputs[1]);
  const std::int64_t width = rows.width;
  call.threads.split(rows.outer * count, row_grain(width), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t l = begin; l < end; ++l) {
      const std::int64_t row = tokens[l % count] - rows.first;
      const auto to = y + l * width;
      if (row >= 0 && row < rows.held) {
        const auto from = table + (l / count * rows.held + row) * width;
        vectors(0, width, [=](auto at) { store(to, at, load(from, at)); });
      } else {
        vectors(0, width, [=](auto at) { store(to, at, vec{}); });
      }
    }
  });
}

void gather(const KernelCall& call) {
  if (call.inputs[1].dtype == call.outputs[0].dtype) {
    gather_bytes(call);
  } else {
    by_type<gather_reals<float*>, gather_reals<Reals>>(call);
  }
}

void clear(const KernelCall& call) {
  float* table = reals<float*>(call.outputs[0]);
  call.threads.split(call.outputs[0].elements(), grain, [=](std::int64_t begin, std::int64_t end) {
    __builtin_memset(table + begin, 0, static_cast<std::size_t>(end - begin) * sizeof(float));
  });
}

/// The least number of columns of a table's gradient for a thread. Threads share columns, not rows, so that each row is
/// summed in the order of the tokens.
std::int64_t column_grain(std::int64_t tokens) { return (row_grain(tokens) + 15) / 16 * 16; }

/// Computes the gradient in float32. Each row of dy is added to the row of its token.
template <typename Pointer>
void sums_in_floats(const KernelCall& call) {
  if (!call.accumulate) {
    clear(call);
  }
  const std::int32_t* tokens = integers(call.inputs[0]);
  const auto dy = reals<Pointer>(call.inputs[1]);
  float* table = reals<float*>(call.outputs[0]);
  const std::int64_t count = call.inputs[0].elements();
  const Rows rows(call, call.outputs[0]);
  const std::int64_t width = rows.width;
  call.threads.split(width, column_grain(rows.outer * count), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t l = 0; l < rows.outer * count; ++l) {
      const std::int64_t row = tokens[l % count] - rows.first;
      if (row < 0 || row >= rows.held) {
        continue;
      }
      const auto from = dy + l * width;
      float* to = table + (l / count * rows.held + row) * width;
      vectors(begin, end, [=](auto at) { store(to, at, load(to, at) + load(from, at)); });
    }
  });
}

/// Lists the positions of each row's token, in ascending order: heads[row], then next[position], until `last_position`.
struct Positions {
  std::int32_t* heads;
  std::int32_t* next;
};
constexpr std::int32_t last_position = -1;

Positions positions_of_rows(const KernelCall& call, const Rows& rows) {
  const std::int32_t* tokens = integers(call.inputs[0]);
  const std::int64_t held = rows.held;
  auto* heads = reinterpret_cast<std::int32_t*>(call.scratch.data());
  auto* next = heads + held;
  for (std::int64_t row = 0; row < held; ++row) {
    heads[row] = last_position;
  }
  for (std::int64_t l = call.inputs[0].elements(); l-- > 0;) {
    const std::int64_t row = tokens[l] - rows.first;
    next[l] = last_position;
    if (row >= 0 && row < held) {
      next[l] = heads[row];
      heads[row] = static_cast<std::int32_t>(l);
    }
  }
  return {heads, next};
}

/// Computes the gradient in bfloat16. All terms of a row are summed in float32 before the sum is rounded.
void sums_in_bfloats(const KernelCall& call) {
  const Rows rows(call, call.outputs[0]);
  const Positions positions = positions_of_rows(call, rows);
  const auto dy = reals<Reals>(call.inputs[1]);
  const auto table = reals<Reals>(call.outputs[0]);
  const std::int64_t count = call.inputs[0].elements();
  const std::int64_t width = rows.width;
  const bool accumulate = call.accumulate;
  call.threads.split(width, column_grain(rows.outer * count), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = 0; row < rows.outer * rows.held; ++row) {
      const std::int32_t head = positions.heads[row % rows.held];
      const auto first = dy + row / rows.held * count * width;
      if (accumulate && head == last_position) {
        continue;
      }
      const auto to = table + row * width;
      vectors(begin, end, [=](auto at) {
        vec total = accumulate ? load(to, at) : vec{};
        for (std::int64_t l = head; l != last_position; l = positions.next[l]) {
          total += load(first + l * width, at);
        }
        store(to, at, total);
      });
    }
  });
}

/// tokens: [L]   dy: [O, L, E]   dtable: [O, V, E] (+)= the rows of dy, each at its token's row
void scatter_add(const KernelCall& call) {
  if (call.outputs[0].dtype == graph::DType::bf16) {
    sums_in_bfloats(call);
  } else {
    by_type<sums_in_floats<float*>, sums_in_floats<Reals>>(call);
  }
}

std::size_t positions_scratch(const graph::OpShape& shape, int) {
  if (shape.outputs[0].dtype != graph::DType::bf16) {
    return 0;
  }
  const std::size_t dim = shape.attributes.has("dim") ? static_cast<std::size_t>(shape.attributes.integer("dim")) : 0;
  const std::int64_t positions = shape.outputs[0].shape.data()[dim] + graph::element_count(shape.inputs[0].shape);
  return static_cast<std::size_t>(positions) * sizeof(std::int32_t);
}

/// x: [B, T, E]   y: [B, E] = x[:, position, :]
template <typename Pointer>
void take_position(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const std::int64_t width = x.shape[2];
  for (std::int64_t b = 0; b < x.shape[0]; ++b) {
    const auto from = reals<Pointer>(x) + (b * x.shape[1] + call.scalars.position) * width;
    const auto to = reals<Pointer>(call.outputs[0]) + b * width;
    vectors(0, width, [=](auto at) { store(to, at, load(from, at)); });
  }
}

}  // namespace
}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT

SHARDRUN_KERNELS(embedding, {"embedding", {.run = gather}}, {"gather", {.run = gather}},
                 {"embedding_gradient", {scatter_add, positions_scratch}},
                 {"scatter_add", {scatter_add, positions_scratch}},
                 {"take_position", {.run = by_type<take_position<float*>, take_position<Reals>>}})
