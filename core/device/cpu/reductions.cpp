#include <cstdint>
#include <vector>

#include "core/device/cpu/variant.h"
#include "core/device/cpu/vec.h"
#include "core/device/cpu/views.h"

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {
namespace {

/// A nest of loops over dimensions of a tensor. offset() finds the element of an iteration.
struct Loops {
  /// Adds a loop around the others, or merges it with the outermost of them if the strides allow.
  void add_outer(std::int64_t size, std::int64_t stride) {
    if (size == 1) {
      return;
    }
    if (count > 0 && stride == sizes[count - 1] * strides[count - 1]) {
      sizes[count - 1] *= size;
      return;
    }
    sizes[count] = size;
    strides[count] = stride;
    ++count;
  }
  [[nodiscard]] std::int64_t total() const {
    std::int64_t product = 1;
    for (int i = 0; i < count; ++i) {
      product *= sizes[i];
    }
    return product;
  }
  /// The index of the element of iteration `number`.
  [[nodiscard]] std::int64_t offset(std::int64_t number) const {
    std::int64_t sum = 0;
    for (int i = 0; i + 1 < count; ++i) {
      sum += number % sizes[i] * strides[i];
      number /= sizes[i];
    }
    return count == 0 ? 0 : sum + number * strides[count - 1];
  }
  /// Removes the innermost loop and returns its size if its elements are consecutive. Otherwise returns 1.
  [[nodiscard]] std::int64_t take_consecutive() {
    if (count == 0 || strides[0] != 1) {
      return 1;
    }
    const std::int64_t size = sizes[0];
    --count;
    for (int i = 0; i < count; ++i) {
      sizes[i] = sizes[i + 1];
      strides[i] = strides[i + 1];
    }
    return size;
  }

  int count = 0;
  std::int64_t sizes[max_rank] = {};    ///< innermost first
  std::int64_t strides[max_rank] = {};  ///< in elements
};

/// Whether `dims` has dimension d.
[[nodiscard]] inline bool has_dimension(const std::vector<std::int64_t>& dims, std::uint32_t d) {
  const std::int64_t* data = dims.data();
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (data[i] == static_cast<std::int64_t>(d)) {
      return true;
    }
  }
  return false;
}

/// Two loops: over the dimensions in `dims` (`chosen`), and over the others.
struct TwoLoops {
  TwoLoops(const TensorView& tensor, const std::vector<std::int64_t>& dims) {
    std::int64_t stride = 1;
    for (std::uint32_t d = tensor.rank; d-- > 0;) {
      (has_dimension(dims, d) ? chosen : others).add_outer(tensor.shape[d], stride);
      stride *= tensor.shape[d];
    }
  }

  Loops chosen;
  Loops others;
};

/// A way to combine terms into a result. Long rows are reduced in blocks, and the blocks' results are combined in
/// float64.
struct Sum {
  static constexpr double first = 0;
  static double combined(double a, double b) { return a + b; }
  SHARDRUN_INLINE static vec combined(vec a, vec b) { return a + b; }
  template <typename Term>
  SHARDRUN_INLINE static float of_row(std::int64_t n, const Term& term) {
    return sum_of(n, term);
  }
};

struct Max {
  static constexpr double first = -__builtin_huge_val();
  static double combined(double a, double b) { return b > a || b != b ? b : a; }
  SHARDRUN_INLINE static vec combined(vec a, vec b) { return larger(a, b); }
  template <typename Term>
  SHARDRUN_INLINE static float of_row(std::int64_t n, const Term& term) {
    return largest_of(n, term);
  }
};

struct Min {
  static constexpr double first = __builtin_huge_val();
  static double combined(double a, double b) { return b < a || b != b ? b : a; }
  SHARDRUN_INLINE static vec combined(vec a, vec b) { return -larger(-a, -b); }
  template <typename Term>
  SHARDRUN_INLINE static float of_row(std::int64_t n, const Term& term) {
    return -largest_of(n, [&](auto at) { return -term(at); });
  }
};

constexpr std::int64_t block = 4096;        ///< elements of a row that are reduced in float32
constexpr std::int64_t piece = 16 * block;  ///< elements of a row that are enough work for one thread

/// Reduces x[from, from + n) to one number.
template <typename Fold, typename Pointer>
double reduced_row(Pointer from, std::int64_t n) {
  double result = Fold::first;
  for (std::int64_t begin = 0; begin < n; begin += block) {
    const Pointer at_block = from + begin;
    const std::int64_t count = n - begin < block ? n - begin : block;
    result =
        Fold::combined(result, static_cast<double>(Fold::of_row(count, [=](auto at) { return load(at_block, at); })));
  }
  return result;
}

/// The order in which x is read: in rows of consecutive elements. If the innermost dimensions are reduced, a row has
/// `row` elements of one result. Otherwise it has one element for each of `width` results.
struct Nest {
  explicit Nest(const TensorView& x, const std::vector<std::int64_t>& dims)
      : loops(x, dims), row(loops.chosen.take_consecutive()), width(row > 1 ? 1 : loops.others.take_consecutive()) {}

  [[nodiscard]] std::int64_t rows() const { return loops.chosen.total(); }     ///< rows per result
  [[nodiscard]] std::int64_t results() const { return loops.others.total(); }  ///< groups of `width` results
  /// The number of pieces into which each row is cut. Rows are cut only if each result has a single row.
  [[nodiscard]] std::int64_t pieces() const {
    return loops.chosen.count == 0 && row > piece ? (row + piece - 1) / piece : 1;
  }

  TwoLoops loops;
  std::int64_t row;
  std::int64_t width;
};

/// Computes results whose rows have consecutive elements. Threads share the pieces of rows.
template <typename Fold, typename Pointer>
void reduce_rows(const KernelCall& call, const Nest& nest, float scale) {
  const auto x = reals<Pointer>(call.inputs[0]);
  const auto y = reals<Pointer>(call.outputs[0]);
  auto* partial = reinterpret_cast<double*>(call.scratch.data());
  const std::int64_t pieces = nest.pieces();
  const std::int64_t rows = nest.rows();
  const std::int64_t length = pieces > 1 ? piece : nest.row;
  call.threads.split(nest.results() * pieces, row_grain(length * rows), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t skipped = i % pieces * length;
      const Pointer from = x + (nest.loops.others.offset(i / pieces) + skipped);
      const std::int64_t count = nest.row - skipped < length ? nest.row - skipped : length;
      double result = Fold::first;
      for (std::int64_t r = 0; r < rows; ++r) {
        result = Fold::combined(result, reduced_row<Fold>(from + nest.loops.chosen.offset(r), count));
      }
      if (pieces > 1) {
        partial[i] = result;
      } else {
        put(y, i, static_cast<float>(result) * scale);
      }
    }
  });
  for (std::int64_t k = 0; pieces > 1 && k < nest.results(); ++k) {
    double result = Fold::first;
    for (std::int64_t i = k * pieces; i < (k + 1) * pieces; ++i) {
      result = Fold::combined(result, partial[i]);
    }
    put(y, k, static_cast<float>(result) * scale);
  }
}

/// Columns are reduced in blocks of this number of rows, which bounds the rounding error of sums.
constexpr std::int64_t rows_at_once = 64;

/// Computes results of which `width` are consecutive. Threads share these groups, or the columns of a single group.
template <typename Fold, typename Pointer>
void reduce_columns(const KernelCall& call, const Nest& nest, float scale) {
  const auto x = reals<Pointer>(call.inputs[0]);
  const auto y = reals<Pointer>(call.outputs[0]);
  const std::int64_t rows = nest.rows();
  const auto columns = [&](std::int64_t k, std::int64_t begin, std::int64_t end) {
    const Pointer from = x + nest.loops.others.offset(k);
    vectors(begin, end, [&](auto at) {
      vec result = splat(static_cast<float>(Fold::first));
      for (std::int64_t first = 0; first < rows; first += rows_at_once) {
        vec part = splat(static_cast<float>(Fold::first));
        for (std::int64_t r = first; r < rows && r < first + rows_at_once; ++r) {
          part = Fold::combined(part, load(from + nest.loops.chosen.offset(r), at));
        }
        result = Fold::combined(result, part);
      }
      store(y + k * nest.width, at, result * scale);
    });
  };
  if (nest.results() == 1) {
    const std::int64_t share = (row_grain(rows) + 63) / 64 * 64;
    call.threads.split(nest.width, share, [&](std::int64_t begin, std::int64_t end) { columns(0, begin, end); });
    return;
  }
  call.threads.split(nest.results(), row_grain(rows * nest.width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t k = begin; k < end; ++k) {
      columns(k, 0, nest.width);
    }
  });
}

template <typename Fold>
void reduce(const KernelCall& call, float scale) {
  const Nest nest(call.inputs[0], call.attributes.integers("dims"));
  if (nest.width == 1) {
    has_bfloats(call) ? reduce_rows<Fold, Reals>(call, nest, scale) : reduce_rows<Fold, float*>(call, nest, scale);
  } else {
    has_bfloats(call) ? reduce_columns<Fold, Reals>(call, nest, scale)
                      : reduce_columns<Fold, float*>(call, nest, scale);
  }
}

/// Scratch bytes: a float64 for each piece of a row that is cut.
std::size_t partial_results(const graph::OpShape& shape, int) {
  TensorView x;
  x.rank = static_cast<std::uint32_t>(shape.inputs[0].shape.size());
  for (std::uint32_t d = 0; d < x.rank; ++d) {
    x.shape[d] = shape.inputs[0].shape.data()[d];
  }
  const Nest nest(x, shape.attributes.integers("dims"));
  return nest.pieces() > 1 ? static_cast<std::size_t>(nest.results() * nest.pieces()) * sizeof(double) : 0;
}

void sum_over(const KernelCall& call) { reduce<Sum>(call, 1); }
void max_over(const KernelCall& call) { reduce<Max>(call, 1); }
void min_over(const KernelCall& call) { reduce<Min>(call, 1); }

/// A shard divides by the number of elements of the whole tensor, so that the shards' results add up to the mean.
void mean_over(const KernelCall& call) {
  const std::vector<std::int64_t>& dims = call.attributes.integers("dims");
  double count = 1;
  for (std::uint32_t d = 0; d < call.inputs[0].rank; ++d) {
    count *= has_dimension(dims, d) ? static_cast<double>(call.inputs[0].global[d]) : 1;
  }
  reduce<Sum>(call, static_cast<float>(1 / count));
}

/// x: [K..., N, R...]   y: [K..., R...], the first index along dimension `dim` of the largest element, or of a NaN
void argmax(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const auto dim = static_cast<std::uint32_t>(call.attributes.integer("dim"));
  const std::int64_t inner = extent(x, dim + 1, x.rank);
  const std::int64_t length = x.shape[dim];
  const auto data = reals<Reals>(x);
  std::int32_t* y = integers(call.outputs[0]);
  call.threads.split(call.outputs[0].elements(), row_grain(length), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t k = begin; k < end; ++k) {
      const Reals from = data + (k / inner * length * inner + k % inner);
      float largest = get(from, 0);
      std::int32_t best = 0;
      for (std::int64_t i = 1; i < length; ++i) {
        const float value = get(from, i * inner);
        if (value > largest || (value != value && largest == largest)) {
          largest = value;
          best = static_cast<std::int32_t>(i);
        }
      }
      y[k] = best;
    }
  });
}

/// x: y's shape without the dimensions `dims`   y = scale x, repeated along them
template <typename Pointer>
void broadcast(const KernelCall& call) {
  const auto x = reals<Pointer>(call.inputs[0]);
  const auto y = reals<Pointer>(call.outputs[0]);
  const auto scale = static_cast<float>(call.attributes.real("scale"));
  const Nest nest(call.outputs[0], call.attributes.integers("dims"));
  const std::int64_t repeats = nest.rows();
  call.threads.split(nest.results(), row_grain(nest.width * nest.row * repeats),
                     [&](std::int64_t begin, std::int64_t end) {
                       for (std::int64_t k = begin; k < end; ++k) {
                         const Pointer to = y + nest.loops.others.offset(k);
                         const Pointer from = x + k * nest.width;
                         for (std::int64_t r = 0; r < repeats; ++r) {
                           const Pointer row = to + nest.loops.chosen.offset(r);
                           if (nest.width != 1) {
                             vectors(0, nest.width, [=](auto at) { store(row, at, load(from, at) * scale); });
                           } else {
                             const vec value = splat(get(from, 0) * scale);
                             vectors(0, nest.row, [=](auto at) { store(row, at, value); });
                           }
                         }
                       }
                     });
}

}  // namespace
}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT

SHARDRUN_KERNELS(reductions, {"sum", {sum_over, partial_results}}, {"mean", {mean_over, partial_results}},
                 {"max", {max_over, partial_results}}, {"min", {min_over, partial_results}},
                 {"argmax", {.run = argmax}}, {"broadcast", {.run = by_type<broadcast<float*>, broadcast<Reals>>}})
