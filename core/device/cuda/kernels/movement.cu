#include "core/device/cuda/copies.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/device/cuda/elementwise.h"
#include "core/device/cuda/loops.h"
#include "core/device/overlap.h"

// Ops that copy elements, and ops whose results depend only on positions. i32 elements are copied as if they were
// float32: loading and storing keeps their bits.

namespace shardrun::device::cuda {
namespace {

/// y[to] = x[from] for each iteration of the loops.
struct Move {
  Reals x;
  Reals y;
  Loops<2> loops;

  SHARDRUN_ON_DEVICE void operator()(std::int64_t i) const {
    const Loops<2>::Offsets at = loops.offsets(i);
    y.set(at.of[1], x.get(at.of[0]));
  }
};

void move(const KernelCall& call, const Reals& x, const Reals& y, const Loops<2>& loops, std::int64_t count) {
  for_each(call, count, Move{x, y, loops});
}

Reals shifted(const TensorView& tensor, std::int64_t element) {
  Reals of = reals(tensor);
  of.data += element * (of.is_bfloat ? 2 : 4);
  return of;
}

/// y[a, b] = x[b, a] in tiles of 32 by 32, so that reads and writes are both consecutive. Dimension a is consecutive in
/// x, dimension b in y.
struct TransposeTiles {
  static constexpr int tile = warp_size;
  Reals x;
  Reals y;
  std::int64_t a_size;
  std::int64_t b_size;
  std::int64_t b_stride;  ///< in x
  std::int64_t a_stride;  ///< in y
  Loops<2> others;

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const std::int64_t tiles_b = (b_size + tile - 1) / tile;
    const std::int64_t tiles_a = (a_size + tile - 1) / tile;
    const std::int64_t b0 = block.index() % tiles_b * tile;
    const std::int64_t a0 = block.index() / tiles_b % tiles_a * tile;
    const Loops<2>::Offsets at = others.offsets(block.index() / tiles_b / tiles_a);
    const Shared<float> values = block.shared<float>(tile * (tile + 1));  // + 1: a column is spread over all banks
    for (int r = block.warp(); r < tile; r += block.warps()) {
      const std::int64_t a = a0 + block.lane();
      if (a < a_size && b0 + r < b_size) {
        values[r * (tile + 1) + block.lane()] = x.get(at.of[0] + (b0 + r) * b_stride + a);
      }
    }
    block.sync();
    for (int r = block.warp(); r < tile; r += block.warps()) {
      const std::int64_t b = b0 + block.lane();
      if (a0 + r < a_size && b < b_size) {
        y.set(at.of[1] + (a0 + r) * a_stride + b, values[block.lane() * (tile + 1) + r]);
      }
    }
  }
};

/// Dimension d of y is dimension `order[d]` of x.
void transpose(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const std::vector<std::int64_t>& order = call.attributes.integers("order");
  Loops<2> loops;
  std::int64_t y_stride = 1;
  for (std::size_t d = order.size(); d-- > 0;) {
    const auto from = static_cast<std::uint32_t>(order[d]);
    loops.add_outer(x.shape[from], extent(x, from + 1, x.rank), y_stride);
    y_stride *= x.shape[from];
  }
  const std::int64_t count = call.outputs[0].elements();
  int a = -1;
  for (int i = 1; i < loops.count; ++i) {
    a = loops.strides[0][i] == 1 ? i : a;
  }
  if (a < 0 || count == 0) {
    move(call, reals(x), reals(call.outputs[0]), loops, count);
    return;
  }
  TransposeTiles tiles = {.x = reals(x),
                          .y = reals(call.outputs[0]),
                          .a_size = loops.sizes[a],
                          .b_size = loops.sizes[0],
                          .b_stride = loops.strides[0][0],
                          .a_stride = loops.strides[1][a],
                          .others = {}};
  for (int i = 1; i < loops.count; ++i) {
    if (i != a) {
      tiles.others.add_outer(loops.sizes[i], loops.strides[0][i], loops.strides[1][i]);
    }
  }
  constexpr int tile = TransposeTiles::tile;
  const std::int64_t blocks =
      ((tiles.a_size + tile - 1) / tile) * ((tiles.b_size + tile - 1) / tile) * tiles.others.total();
  launch(call, blocks, most_threads, shared_bytes<float>(tile * (tile + 1)), tiles);
}

void copy_overlap(const KernelCall& call, const TensorView& x, const TensorView& y, const Overlap& overlap) {
  Loops<2> loops;
  std::int64_t from_first = 0;
  std::int64_t to_first = 0;
  std::int64_t from_stride = 1;
  std::int64_t to_stride = 1;
  for (std::uint32_t d = overlap.rank; d-- > 0;) {
    loops.add_outer(overlap.sizes[d], from_stride, to_stride);
    from_first += overlap.from_first[d] * from_stride;
    to_first += overlap.to_first[d] * to_stride;
    from_stride *= overlap.from_shape[d];
    to_stride *= overlap.to_shape[d];
  }
  move(call, shifted(x, from_first), shifted(y, to_first), loops, overlap.elements());
}

void reshape(const KernelCall& call) {
  const Overlap all = reshaped_overlap(call.inputs[0], call.outputs[0]);
  all.require_all();
  copy_overlap(call, call.inputs[0], call.outputs[0], all);
}

std::uint32_t changed_dimension(const KernelCall& call) {
  return static_cast<std::uint32_t>(call.attributes.integer("dim"));
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

struct Fill {
  Reals y;
  float value;
  SHARDRUN_ON_DEVICE void operator()(std::int64_t i) const { y.set(i, value); }
};

void fill(const KernelCall& call, double value) {
  for_each(call, call.outputs[0].elements(), Fill{reals(call.outputs[0]), static_cast<float>(value)});
}

void pad(const KernelCall& call) {
  fill(call, call.attributes.real("value"));
  copy_overlap(
      call, call.inputs[0], call.outputs[0],
      shifted_overlap(call.inputs[0], call.outputs[0], changed_dimension(call), -call.attributes.integer("low")));
}

void constant(const KernelCall& call) { fill(call, call.attributes.real("value")); }

/// y[l, v] = 1 if index[l] is v, else 0. A shard's v begins at its origin.
struct OneHot {
  const std::int32_t* index;
  Reals y;
  std::int64_t width;
  std::int64_t first;
  SHARDRUN_ON_DEVICE void operator()(std::int64_t i) const {
    y.set(i, index[i / width] == first + i % width ? 1.0F : 0.0F);
  }
};

void one_hot(const KernelCall& call) {
  const TensorView& y = call.outputs[0];
  for_each(call, y.elements(), OneHot{integers(call.inputs[0]), reals(y), columns(y), y.origin[y.rank - 1]});
}

/// y[i] = i
struct Count {
  Reals y;
  std::int32_t* integers;  ///< written instead of y; null: y is written
  std::int64_t first;
  SHARDRUN_ON_DEVICE void operator()(std::int64_t i) const {
    if (integers != nullptr) {
      integers[i] = static_cast<std::int32_t>(first + i);
    } else {
      y.set(i, static_cast<float>(first + i));
    }
  }
};

void iota(const KernelCall& call) {
  const TensorView& y = call.outputs[0];
  for_each(call, y.shape[0], Count{reals(y), graph::is_real(y.dtype) ? nullptr : integers(y), y.origin[0]});
}

/// y[i] = x[i + offset] along one dimension, as the device `reference` defines it.
struct Shift {
  Reals x;
  Reals y;
  std::int64_t inner;
  std::int64_t x_size;  ///< the dimension's size in the operand's part
  std::int64_t y_size;
  std::int64_t first;   ///< the index in the whole tensor that the result's index 0 reads
  std::int64_t origin;  ///< where the operand's part begins
  std::int64_t size;    ///< the dimension's size in the whole tensor
  bool periodic;
  float outside;

  SHARDRUN_ON_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t wanted = first + i / inner % y_size;
    if (!periodic && (wanted < 0 || wanted >= size)) {
      y.set(i, outside);
      return;
    }
    const std::int64_t local = periodic ? modulo(wanted - origin) : wanted - origin;
    if (local >= 0 && local < x_size) {
      y.set(i, x.get((i / (inner * y_size) * x_size + local) * inner + i % inner));
    }
  }

 private:
  SHARDRUN_ON_DEVICE std::int64_t modulo(std::int64_t value) const { return (value % size + size) % size; }
};

/// Throws Error{internal} if the operand's part lacks an element, unless an exchange brings it (attribute `missing`).
void require_held(const KernelCall& call, const Shift& shift) {
  for (std::int64_t i = 0; i < shift.y_size; ++i) {
    const std::int64_t wanted = shift.first + i;
    const bool outside = !shift.periodic && (wanted < 0 || wanted >= shift.size);
    const std::int64_t from = wanted - shift.origin;
    const std::int64_t local = shift.periodic ? (from % shift.size + shift.size) % shift.size : from;
    if (!outside && (local < 0 || local >= shift.x_size) && !call.attributes.has("missing")) {
      throw Error(ErrorCode::internal, "shift: the operand's shard does not hold an element that the result needs");
    }
  }
}

void shift(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const TensorView& y = call.outputs[0];
  const auto dim = static_cast<std::uint32_t>(call.attributes.integer("dim"));
  const Shift shift = {.x = reals(x),
                       .y = reals(y),
                       .inner = extent(x, dim + 1, x.rank),
                       .x_size = x.shape[dim],
                       .y_size = y.shape[dim],
                       .first = y.origin[dim] + call.attributes.integer("offset"),
                       .origin = x.origin[dim],
                       .size = x.global[dim],
                       .periodic = call.attributes.text("boundary") == "periodic",
                       .outside = static_cast<float>(call.attributes.real("value"))};
  require_held(call, shift);
  for_each(call, y.elements(), shift);
}

/// y[b, :] = x[b, position, :].   x: [B, T, E]   y: [B, E]
void take_position(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  Loops<2> loops;
  loops.add_outer(x.shape[2], std::int64_t{1}, std::int64_t{1});
  loops.add_outer(x.shape[0], x.shape[1] * x.shape[2], x.shape[2]);
  move(call, shifted(x, call.scalars.position * x.shape[2]), reals(call.outputs[0]), loops, x.shape[0] * x.shape[2]);
}

struct Add {
  Reals x;
  Reals y;
  SHARDRUN_ON_DEVICE void operator()(std::int64_t i) const { y.put(i, x.get(i), true); }
};

/// y = x; or y += x if the call accumulates and x holds real numbers.
void copy(const KernelCall& call) {
  if (call.accumulate && graph::is_real(call.inputs[0].dtype)) {
    for_each(call, call.outputs[0].elements(), Add{reals(call.inputs[0]), reals(call.outputs[0])});
  } else {
    map<1>(call, Same{});
  }
}

/// Casts between integers and real numbers. A real number loses its fraction.
struct CastIntegers {
  const std::int32_t* from_integers;  ///< null: reads x
  std::int32_t* to_integers;          ///< null: writes y
  Reals x;
  Reals y;
  SHARDRUN_ON_DEVICE void operator()(std::int64_t i) const {
    if (to_integers != nullptr) {
      to_integers[i] = static_cast<std::int32_t>(x.get(i));
    } else {
      y.set(i, static_cast<float>(from_integers[i]));
    }
  }
};

/// y = x, rounded to the type of y.
void cast(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const TensorView& y = call.outputs[0];
  if (graph::is_real(x.dtype) == graph::is_real(y.dtype)) {
    map<1>(call, Same{});
    return;
  }
  for_each(call, y.elements(),
           CastIntegers{graph::is_real(x.dtype) ? nullptr : integers(x),
                        graph::is_real(y.dtype) ? nullptr : integers(y), reals(x), reals(y)});
}

const AddKernels movement({{"transpose", {.run = transpose}},
                           {"reshape", {.run = reshape}},
                           {"slice", {.run = slice}},
                           {"concatenate", {.run = concatenate}},
                           {"pad", {.run = pad}},
                           {"constant", {.run = constant}},
                           {"one_hot", {.run = one_hot}},
                           {"iota", {.run = iota}},
                           {"shift", {.run = shift}},
                           {"take_position", {.run = take_position}},
                           {"copy", {.run = copy}},
                           {"cast", {.run = cast}}});

}  // namespace

void cast_elements(const KernelCall& call, const TensorView& from, const TensorView& to) {
  cast({.attributes = call.attributes,
        .inputs = {&from, 1},
        .outputs = {&to, 1},
        .scratch = {},
        .scalars = call.scalars,
        .threads = call.threads,
        .stream = call.stream});
}

}  // namespace shardrun::device::cuda
