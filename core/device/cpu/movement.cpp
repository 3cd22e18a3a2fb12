#include "core/device/cpu/vec.h"
#include "core/device/cpu/views.h"
#include "core/device/overlap.h"

// Ops that copy boxes of elements. Integers are copied bit by bit, as if they were float32.

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {
namespace {

/// A box of elements in two tensors. Dimensions that are consecutive in both are merged.
struct Box {
  /// Adds a dimension around the others.
  void add_outer(std::int64_t size, std::int64_t from_stride, std::int64_t to_stride) {
    if (size == 1) {
      return;
    }
    if (count > 0 && from_stride == from_strides[count - 1] * sizes[count - 1] &&
        to_stride == to_strides[count - 1] * sizes[count - 1]) {
      sizes[count - 1] *= size;
      return;
    }
    sizes[count] = size;
    from_strides[count] = from_stride;
    to_strides[count] = to_stride;
    ++count;
  }

  int count = 0;
  std::int64_t sizes[max_rank] = {};  ///< innermost first
  std::int64_t from_strides[max_rank] = {};
  std::int64_t to_strides[max_rank] = {};
};

SHARDRUN_INLINE void copy_row(Reals from, std::int64_t from_stride, Reals to, std::int64_t to_stride,
                              std::int64_t count) {
  if (from_stride == 1 && to_stride == 1) {
    vectors(0, count, [=](auto at) { store(to, at, load(from, at)); });
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    put(to, i * to_stride, get(from, i * from_stride));
  }
}

/// The elements at which row `row` of a box begins. All dimensions except the innermost and `skipped` number the rows.
struct Places {
  std::int64_t from;
  std::int64_t to;
};
Places place_of(const Box& box, std::int64_t row, int skipped) {
  Places places = {0, 0};
  for (int d = 1; d < box.count; ++d) {
    if (d != skipped) {
      places.from += row % box.sizes[d] * box.from_strides[d];
      places.to += row % box.sizes[d] * box.to_strides[d];
      row /= box.sizes[d];
    }
  }
  return places;
}

constexpr std::int64_t tile = 16;

/// to[j][i] = from[i][j] for i in [0, rows) and j in [0, columns). Elements of a row are consecutive in both.
template <typename Bits>
void transpose_tile(const Bits* from, std::int64_t from_stride, Bits* to, std::int64_t to_stride, std::int64_t rows,
                    std::int64_t columns) {
  if (rows < tile || columns < tile) {
    for (std::int64_t j = 0; j < columns; ++j) {
      for (std::int64_t i = 0; i < rows; ++i) {
        to[j * to_stride + i] = from[i * from_stride + j];
      }
    }
    return;
  }
  Bits held[tile][tile];
  for (std::int64_t i = 0; i < tile; ++i) {
    __builtin_memcpy(held[i], from + i * from_stride, sizeof(held[i]));
  }
  for (std::int64_t j = 0; j < tile; ++j) {
    Bits row[tile];
    for (std::int64_t i = 0; i < tile; ++i) {
      row[i] = held[i][j];
    }
    __builtin_memcpy(to + j * to_stride, row, sizeof(row));
  }
}

/// Transposes a box in square tiles. The innermost dimension of `from` is dimension `turned` of `to`. Threads share
/// strips of tiles.
template <typename Bits>
void transpose_box(const KernelCall& call, const Box& box, int turned, const Bits* from, Bits* to) {
  std::int64_t matrices = 1;
  for (int d = 1; d < box.count; ++d) {
    matrices *= d == turned ? 1 : box.sizes[d];
  }
  const std::int64_t columns = box.sizes[turned];
  const std::int64_t strips = (columns + tile - 1) / tile;
  call.threads.split(matrices * strips, row_grain(tile * box.sizes[0]), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t s = begin; s < end; ++s) {
      const Places places = place_of(box, s / strips, turned);
      const std::int64_t column = s % strips * tile;
      const std::int64_t width = columns - column < tile ? columns - column : tile;
      for (std::int64_t row = 0; row < box.sizes[0]; row += tile) {
        const std::int64_t height = box.sizes[0] - row < tile ? box.sizes[0] - row : tile;
        transpose_tile(from + places.from + row * box.from_strides[0] + column, box.from_strides[0],
                       to + places.to + column * box.to_strides[turned] + row, box.to_strides[turned], height, width);
      }
    }
  });
}

/// The dimension whose elements are consecutive in `from`, if the innermost one is consecutive only in `to`; else 0.
int turned_dimension(const Box& box) {
  for (int d = 1; d < box.count; ++d) {
    if (box.to_strides[0] == 1 && box.from_strides[0] != 1 && box.from_strides[d] == 1) {
      return d;
    }
  }
  return 0;
}

void copy_box(const KernelCall& call, const Box& box, Reals from, Reals to) {
  const int turned = turned_dimension(box);
  if (turned > 0 && from.bfloat && to.bfloat) {
    transpose_box(call, box, turned, from.bfloats().data, to.bfloats().data);
    return;
  }
  if (turned > 0 && !from.bfloat && !to.bfloat) {
    transpose_box(call, box, turned, from.floats(), to.floats());
    return;
  }
  const std::int64_t row = box.count == 0 ? 1 : box.sizes[0];
  if (box.count <= 1) {
    call.threads.split(row, grain, [=](std::int64_t begin, std::int64_t end) {
      copy_row(from + begin * box.from_strides[0], box.from_strides[0], to + begin * box.to_strides[0],
               box.to_strides[0], end - begin);
    });
    return;
  }
  std::int64_t rows = 1;
  for (int d = 1; d < box.count; ++d) {
    rows *= box.sizes[d];
  }
  call.threads.split(rows, row_grain(row), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const Places places = place_of(box, r, 0);
      copy_row(from + places.from, box.from_strides[0], to + places.to, box.to_strides[0], row);
    }
  });
}

/// y is x with its dimensions in another order: dimension d of y is dimension `order[d]` of x.
void transpose(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const std::int64_t* order = call.attributes.integers("order").data();
  Box box;
  std::int64_t to_stride = 1;
  for (std::uint32_t d = x.rank; d-- > 0;) {
    const auto from = static_cast<std::uint32_t>(order[d]);
    box.add_outer(x.shape[from], extent(x, from + 1, x.rank), to_stride);
    to_stride *= x.shape[from];
  }
  copy_box(call, box, reals<Reals>(x), reals<Reals>(call.outputs[0]));
}

void copy_overlap(const KernelCall& call, const TensorView& from, const TensorView& to, const Overlap& overlap) {
  Box box;
  std::int64_t strides[2] = {1, 1};
  std::int64_t first[2] = {0, 0};
  std::int64_t count = 1;
  for (std::uint32_t d = overlap.rank; d-- > 0;) {
    box.add_outer(overlap.sizes[d], strides[0], strides[1]);
    first[0] += overlap.from_first[d] * strides[0];
    first[1] += overlap.to_first[d] * strides[1];
    strides[0] *= overlap.from_shape[d];
    strides[1] *= overlap.to_shape[d];
    count *= overlap.sizes[d];
  }
  if (count > 0) {
    copy_box(call, box, reals<Reals>(from) + first[0], reals<Reals>(to) + first[1]);
  }
}

std::uint32_t changed_dimension(const KernelCall& call) {
  return static_cast<std::uint32_t>(call.attributes.integer("dim"));
}

void reshape(const KernelCall& call) {
  const Overlap all = reshaped_overlap(call.inputs[0], call.outputs[0]);
  all.require_all();
  copy_overlap(call, call.inputs[0], call.outputs[0], all);
}

void slice(const KernelCall& call) {
  const Overlap all =
      shifted_overlap(call.inputs[0], call.outputs[0], changed_dimension(call), call.attributes.integer("begin"));
  all.require_all();
  copy_overlap(call, call.inputs[0], call.outputs[0], all);
}

void concatenate(const KernelCall& call) {
  const std::uint32_t dim = changed_dimension(call);
  std::int64_t place = 0;
  for (const TensorView& x : call.inputs) {
    copy_overlap(call, x, call.outputs[0], shifted_overlap(x, call.outputs[0], dim, -place));
    place += x.global[dim];
  }
}

void pad(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const TensorView& y = call.outputs[0];
  const vec value = splat(static_cast<float>(call.attributes.real("value")));
  const auto to = reals<Reals>(y);
  call.threads.split(y.elements(), grain, [=](std::int64_t begin, std::int64_t end) {
    vectors(begin, end, [=](auto at) { store(to, at, value); });
  });
  copy_overlap(call, x, y, shifted_overlap(x, y, changed_dimension(call), -call.attributes.integer("low")));
}

/// index: [L]   y: [L, V] = 1 in the column of the row's index, else 0
void one_hot(const KernelCall& call) {
  const std::int32_t* index = integers(call.inputs[0]);
  const auto y = reals<Reals>(call.outputs[0]);
  const std::int64_t width = columns(call.outputs[0]);
  const std::int64_t first = call.outputs[0].origin[call.outputs[0].rank - 1];
  call.threads.split(call.inputs[0].elements(), row_grain(width), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t l = begin; l < end; ++l) {
      const Reals row = y + l * width;
      vectors(0, width, [=](auto at) { store(row, at, vec{}); });
      const std::int64_t chosen = index[l] - first;
      if (chosen >= 0 && chosen < width) {
        put(row, chosen, 1);
      }
    }
  });
}

/// y: [N] = 0, 1, …
void iota(const KernelCall& call) {
  const TensorView& y = call.outputs[0];
  const std::int64_t first = y.origin[0];
  if (y.dtype == graph::DType::i32) {
    for (std::int64_t i = 0; i < y.shape[0]; ++i) {
      integers(y)[i] = static_cast<std::int32_t>(first + i);
    }
    return;
  }
  for (std::int64_t i = 0; i < y.shape[0]; ++i) {
    put(reals<Reals>(y), i, static_cast<float>(first + i));
  }
}

}  // namespace
}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT

SHARDRUN_KERNELS(movement, {"transpose", {.run = transpose}}, {"reshape", {.run = reshape}}, {"slice", {.run = slice}},
                 {"concatenate", {.run = concatenate}}, {"pad", {.run = pad}}, {"one_hot", {.run = one_hot}},
                 {"iota", {.run = iota}})
