#include <algorithm>
#include <array>
#include <span>

#include "core/device/cuda/columns.h"
#include "core/device/cuda/loops.h"
#include "core/device/cuda/rows.h"

// Reductions, and ops that repeat elements. Sizes alone decide the order in which the terms of a result are combined.

namespace shardrun::device::cuda {
namespace {

/// Says how a reduction reads its operand.
struct Nest {
  Nest(const TensorView& x, std::span<const std::int64_t> dims)
      : loops(x, dims), results(loops.others.total()), length(loops.chosen.total()) {}

  /// Whether consecutive results read consecutive elements, while one result reads elements that are not consecutive.
  [[nodiscard]] bool has_columns() const {
    return loops.chosen.consecutive() == 1 && loops.others.consecutive() > 1 && length > 1;
  }
  /// The number of parts into which the elements of each result are divided, unless has_columns(). A block loads 8,192
  /// elements at once, which is four packs per thread.
  [[nodiscard]] std::int64_t parts() const {
    constexpr std::int64_t elements_of_part = 8192;
    return length <= 2 * elements_of_part
               ? 1
               : std::min<std::int64_t>((length + elements_of_part - 1) / elements_of_part, 1024);
  }
  /// Elements per part, a multiple of a pack. The last part may have fewer.
  [[nodiscard]] std::int64_t of_part() const {
    return ((length + parts() - 1) / parts() + pack_size - 1) / pack_size * pack_size;
  }
  [[nodiscard]] std::size_t scratch() const {
    if (has_columns()) {
      return join_rows_scratch(length, results);
    }
    return parts() == 1 ? 0 : static_cast<std::size_t>(parts() * results) * sizeof(float);
  }

  TwoLoops loops;
  std::int64_t results;
  std::int64_t length;
};

struct Plain {
  SHARDRUN_ON_DEVICE float operator()(float x) const { return x; }
};
struct Square {
  SHARDRUN_ON_DEVICE float operator()(float x) const { return x * x; }
};
struct Scaled {
  float scale;
  SHARDRUN_ON_DEVICE float operator()(float x) const { return x * scale; }
};

/// Combines the elements of one result, or of a part of it. With packs, the elements are consecutive.
template <typename Term, typename Join>
struct JoinElements {
  Reals x;
  Reals y;
  Loops<1> results;
  Loops<1> reduced;
  std::int64_t length;
  std::int64_t parts;
  std::int64_t of_part;
  Term term;
  Join join;
  float first;
  bool accumulate;

  template <int pack, typename RowTeam>
  SHARDRUN_ON_DEVICE void compute(RowTeam& team, std::int64_t row) const {
    const std::int64_t result = quotient(row, parts);
    const std::int64_t from = results.offset(result);
    const std::int64_t begin = (row - result * parts) * of_part;
    const std::int64_t rest = length - begin;
    float value = first;
    team.template loop<pack, 4>(
        rest < of_part ? rest : of_part,
        [&](std::int64_t i) { return x.get_pack<pack>(from + place<pack>(begin + i)); },
        [&](std::int64_t, const Pack<pack>& values) {
          SHARDRUN_UNROLLED for (int k = 0; k < pack; ++k) { value = join(value, term(values[k])); }
        });
    value = team.join(value, join);
    if (team.member() == 0) {
      y.put(row, value, accumulate);
    }
  }

 private:
  template <int pack>
  [[nodiscard]] SHARDRUN_ON_DEVICE std::int64_t place(std::int64_t i) const {
    return pack > 1 ? i : reduced.offset(i);
  }
};

template <typename Term>
struct ColumnTerm {
  Reals x;
  Loops<1> results;
  Loops<1> reduced;
  Term term;

  template <int pack>
  [[nodiscard]] SHARDRUN_ON_DEVICE Pack<pack> get(std::int64_t row, std::int64_t column) const {
    Pack<pack> values = x.get_pack<pack>(results.offset(column) + reduced.offset(row));
    SHARDRUN_UNROLLED for (int k = 0; k < pack; ++k) { values[k] = term(values[k]); }
    return values;
  }
};

/// A single row is computed by a block, however short it is: a block has more loads in flight than a warp.
template <int pack, typename Elements>
void join_elements(const KernelCall& call, std::int64_t rows, const Elements& elements) {
  if (rows == 1) {
    launch(call, 1, most_threads, 0, ForEachRow<true, pack, Elements>{1, elements});
  } else {
    for_each_row_in_packs<pack>(call, rows, elements.of_part, elements);
  }
}

template <typename Term, typename Join>
void reduce(const KernelCall& call, const Nest& nest, const Term& term, const Join& join, float first) {
  const Reals x = reals(call.inputs[0]);
  const Loops<1>& results = nest.loops.others;
  const Loops<1>& reduced = nest.loops.chosen;
  const bool aligned = is_aligned(call.inputs[0]);
  if (nest.has_columns()) {
    const bool in_packs = aligned && results.consecutive() % pack_size == 0;
    join_rows(call, nest.length, nest.results, in_packs, ColumnTerm<Term>{x, results, reduced, term}, join, first);
    return;
  }
  const std::int64_t parts = nest.parts();
  const Reals partial = {reinterpret_cast<unsigned char*>(call.scratch.data()), false};
  const Reals y = reals(call.outputs[0]);
  const bool is_whole = parts == 1;
  const JoinElements<Term, Join> elements = {
      x,     is_whole ? y : partial,     results, reduced, nest.length, parts, nest.of_part(), term, join,
      first, is_whole && call.accumulate};
  if (aligned && reduced.consecutive() == nest.length && nest.length % pack_size == 0) {
    join_elements<pack_size>(call, nest.results * parts, elements);
  } else {
    join_elements<1>(call, nest.results * parts, elements);
  }
  if (parts > 1) {
    Loops<1> of_parts;
    of_parts.add_outer(parts, std::int64_t{1});
    Loops<1> of_results;
    of_results.add_outer(nest.results, parts);
    join_elements<1>(call, nest.results,
                     JoinElements<Plain, Join>{partial, y, of_results, of_parts, parts, 1, parts, Plain{}, join, first,
                                               call.accumulate});
  }
}

/// The numbers of the first `count` dimensions. Not a vector, because launches must allocate nothing.
std::span<const std::int64_t> leading_dimensions(std::int64_t count) {
  static constexpr std::array<std::int64_t, max_rank> all = {0, 1, 2, 3, 4, 5, 6, 7};
  return std::span(all).first(static_cast<std::size_t>(count));
}
std::span<const std::int64_t> all_dimensions(const TensorView& x) { return leading_dimensions(x.rank); }

constexpr float infinity = static_cast<float>(__builtin_huge_val());

Nest nest_of_dims(const KernelCall& call) { return {call.inputs[0], call.attributes.integers("dims")}; }

void sum(const KernelCall& call) { reduce(call, nest_of_dims(call), Plain{}, Plus{}, 0); }
void max(const KernelCall& call) { reduce(call, nest_of_dims(call), Plain{}, Larger{}, -infinity); }
void min(const KernelCall& call) { reduce(call, nest_of_dims(call), Plain{}, Smaller{}, infinity); }

/// A shard divides by the number of elements of the whole tensor, so that the shards' results add up to the mean.
void mean(const KernelCall& call) {
  double count = 1;
  for (const std::int64_t dim : call.attributes.integers("dims")) {
    count *= static_cast<double>(call.inputs[0].global[static_cast<std::size_t>(dim)]);
  }
  reduce(call, nest_of_dims(call), Scaled{static_cast<float>(1 / count)}, Plus{}, 0);
}

/// y[k] = sum over l of x[l, k].   x: [L, K...]   y: [K...], `keep` dimensions
void sum_leading(const KernelCall& call) {
  reduce(call, {call.inputs[0], leading_dimensions(call.inputs[0].rank - call.attributes.integer("keep"))}, Plain{},
         Plus{}, 0);
}
void sum_all(const KernelCall& call) {
  reduce(call, {call.inputs[0], all_dimensions(call.inputs[0])},
         Scaled{static_cast<float>(call.attributes.real("scale"))}, Plus{}, 0);
}
void square_sum(const KernelCall& call) {
  reduce(call, {call.inputs[0], all_dimensions(call.inputs[0])}, Square{}, Plus{}, 0);
}
/// A view of the first operand, for its shape.
TensorView first_operand(const graph::OpShape& shape) {
  TensorView x;
  x.rank = static_cast<std::uint32_t>(shape.inputs[0].shape.size());
  std::copy(shape.inputs[0].shape.begin(), shape.inputs[0].shape.end(), x.shape.begin());
  return x;
}
std::size_t dims_scratch(const graph::OpShape& shape, int) {
  return Nest(first_operand(shape), shape.attributes.integers("dims")).scratch();
}
std::size_t all_scratch(const graph::OpShape& shape, int) {
  const TensorView x = first_operand(shape);
  return Nest(x, all_dimensions(x)).scratch();
}
std::size_t leading_scratch(const graph::OpShape& shape, int) {
  const TensorView x = first_operand(shape);
  return Nest(x, leading_dimensions(x.rank - shape.attributes.integer("keep"))).scratch();
}
/// A number that orders pairs: larger for larger values and, for equal values, smaller indices. NaN is the largest.
SHARDRUN_ON_DEVICE inline unsigned long long ranked(float value, std::int64_t index) {
  const float same_zeros = value + 0.0F;
  std::uint32_t bits;
  __builtin_memcpy(&bits, &same_zeros, sizeof(bits));
  bits = value != value ? 0xFFFFFFFFU : (bits >> 31U) != 0 ? ~bits : bits | 0x80000000U;
  return static_cast<unsigned long long>(bits) << 32U | (0xFFFFFFFFU - static_cast<std::uint32_t>(index));
}
struct LargerRank {
  SHARDRUN_ON_DEVICE unsigned long long operator()(unsigned long long a, unsigned long long b) const {
    return a > b ? a : b;
  }
};

/// The first of the largest elements along a dimension, or the first NaN.
struct Argmax {
  Reals x;
  std::int32_t* y;
  Loops<1> results;
  std::int64_t length;
  std::int64_t stride;

  template <int pack, typename RowTeam>
  SHARDRUN_ON_DEVICE void compute(RowTeam& team, std::int64_t row) const {
    const std::int64_t from = results.offset(row);
    unsigned long long best = 0;
    for (std::int64_t i = team.member(); i < length; i += team.size()) {
      best = LargerRank{}(best, ranked(x.get(from + i * stride), i));
    }
    best = team.join(best, LargerRank{});
    if (team.member() == 0) {
      y[row] = static_cast<std::int32_t>(0xFFFFFFFFU - static_cast<std::uint32_t>(best));
    }
  }
};

void argmax(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const std::int64_t dim = call.attributes.integer("dim");
  const auto d = static_cast<std::uint32_t>(dim);
  const TwoLoops loops(x, {&dim, 1});
  for_each_row_in_packs<1>(
      call, call.outputs[0].elements(), x.shape[d],
      Argmax{reals(x), integers(call.outputs[0]), loops.others, x.shape[d], extent(x, d + 1, x.rank)});
}

/// y[i] = scale x[…]. x is repeated along the dimensions that it lacks.
struct Broadcast {
  Reals x;
  Reals y;
  Loops<1> loops;  ///< over y: the place of each iteration's element of x
  float scale;
  SHARDRUN_ON_DEVICE void operator()(std::int64_t i) const { y.set(i, scale * x.get(loops.offset(i))); }
};

/// y[k, r] = scale x[k] for all indices r of the dimensions `dims`.
void broadcast(const KernelCall& call) {
  const TensorView& y = call.outputs[0];
  const std::span<const std::int64_t> dims = call.attributes.integers("dims");
  Loops<1> loops;
  std::int64_t stride = 1;
  for (std::uint32_t d = y.rank; d-- > 0;) {
    const bool repeated = has_dimension(dims, d);
    loops.add_outer(y.shape[d], repeated ? std::int64_t{0} : stride);
    stride *= repeated ? 1 : y.shape[d];
  }
  for_each(call, y.elements(),
           Broadcast{reals(call.inputs[0]), reals(y), loops, static_cast<float>(call.attributes.real("scale"))});
}

/// y[...] = scale * s, shaped as the second operand.
void broadcast_scalar(const KernelCall& call) {
  for_each(call, call.outputs[0].elements(),
           Broadcast{reals(call.inputs[0]), reals(call.outputs[0]), Loops<1>{},
                     static_cast<float>(call.attributes.real("scale"))});
}

/// y_i = x_0 + … + x_i along a dimension, or x_i + … + x_last in reverse. A thread computes one column; consecutive
/// threads read consecutive elements.
struct CumulativeColumns {
  Reals x;
  Reals y;
  Loops<1> columns;
  std::int64_t length;
  std::int64_t stride;
  bool reverse;

  SHARDRUN_ON_DEVICE void operator()(std::int64_t column) const {
    const std::int64_t from = columns.offset(column);
    float sum = 0;
    for (std::int64_t i = 0; i < length; ++i) {
      const std::int64_t at = from + (reverse ? length - 1 - i : i) * stride;
      sum += x.get(at);
      y.set(at, sum);
    }
  }
};

/// The same for a dimension whose elements are consecutive: a warp computes one row, 32 elements at a time.
struct CumulativeRows {
  Reals x;
  Reals y;
  std::int64_t rows;
  std::int64_t length;
  bool reverse;

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const std::int64_t row = block.index() * block.warps() + block.warp();
    if (row >= rows) {
      return;
    }
    float before = 0;
    for (std::int64_t begin = 0; begin < length; begin += warp_size) {
      const std::int64_t i = begin + block.lane();
      const std::int64_t at = row * length + (reverse ? length - 1 - i : i);
      float sum = i < length ? x.get(at) : 0.0F;
      for (int distance = 1; distance < warp_size; distance *= 2) {
        const float other = block.exchange(sum, (block.lane() - distance) & (warp_size - 1));
        sum += block.lane() >= distance ? other : 0.0F;
      }
      sum += before;
      if (i < length) {
        y.set(at, sum);
      }
      before = block.exchange(sum, warp_size - 1);
    }
  }
};

void cumulative_sum(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const std::int64_t dim = call.attributes.integer("dim");
  const auto d = static_cast<std::uint32_t>(dim);
  const bool reverse = call.attributes.integer("reverse") == 1;
  const std::int64_t stride = extent(x, d + 1, x.rank);
  const TwoLoops loops(x, {&dim, 1});
  const std::int64_t count = loops.others.total();
  if (x.elements() == 0) {
    return;
  }
  if (stride > 1) {
    for_each(call, count,
             CumulativeColumns{reals(x), reals(call.outputs[0]), loops.others, x.shape[d], stride, reverse});
  } else {
    constexpr int warps = 4;
    launch(call, (count + warps - 1) / warps, warps * warp_size, 0,
           CumulativeRows{reals(x), reals(call.outputs[0]), count, x.shape[d], reverse});
  }
}

const AddKernels reductions({{"sum", {.run = sum, .scratch_bytes = dims_scratch}},
                             {"mean", {.run = mean, .scratch_bytes = dims_scratch}},
                             {"max", {.run = max, .scratch_bytes = dims_scratch}},
                             {"min", {.run = min, .scratch_bytes = dims_scratch}},
                             {"sum_leading", {.run = sum_leading, .scratch_bytes = leading_scratch}},
                             {"sum_all", {.run = sum_all, .scratch_bytes = all_scratch}},
                             {"square_sum", {.run = square_sum, .scratch_bytes = all_scratch}},
                             {"argmax", {.run = argmax}},
                             {"broadcast", {.run = broadcast}},
                             {"broadcast_scalar", {.run = broadcast_scalar}},
                             {"cumulative_sum", {.run = cumulative_sum}}});

}  // namespace
}  // namespace shardrun::device::cuda
