#include "core/device/cpu/element_nest.h"

#include "core/device/cpu/vec.h"
#include "core/device/cpu/views.h"

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {

extern const NestRunner nest_runner;

namespace {

/// The element of each tensor at which an iteration of the loops begins.
struct NestPlace {
  std::int64_t a = 0;
  std::int64_t b = 0;
  std::int64_t y = 0;
};

std::int64_t iterations(const NestLoops& nest) {
  std::int64_t product = 1;
  for (int i = 0; i < nest.count; ++i) {
    product *= nest.loops[i].size;
  }
  return product;
}

NestPlace iteration(const NestLoops& nest, std::int64_t number) {
  NestPlace place;
  for (int i = 0; i < nest.count; ++i) {
    const NestLoop& loop = nest.loops[i];
    const std::int64_t index = i + 1 < nest.count ? number % loop.size : number;
    number = i + 1 < nest.count ? number / loop.size : 0;
    place.a += index * loop.a;
    place.b += index * loop.b;
    place.y += index * loop.y;
  }
  return place;
}

SHARDRUN_INLINE std::int64_t length_of(Whole) { return lanes; }
SHARDRUN_INLINE std::int64_t length_of(Part at) { return at.count; }

/// Both operands have consecutive elements.
struct BothVary {
  static constexpr int at_once = 4;
  template <typename Pointer, typename At>
  SHARDRUN_INLINE static vec of_a(const NestLoop&, Pointer a, At at) {
    return load(a, at);
  }
  template <typename Pointer, typename At>
  SHARDRUN_INLINE static vec of_b(const NestLoop&, Pointer b, At at) {
    return load(b, at);
  }
  template <typename Pointer, typename At>
  SHARDRUN_INLINE static void put_result(const NestLoop&, Pointer y, At at, vec v, bool accumulate) {
    store(y, at, accumulate ? load(y, at) + v : v);
  }
};

/// a has consecutive elements, and all iterations read the same element of b.
struct FirstVaries : BothVary {
  template <typename Pointer, typename At>
  SHARDRUN_INLINE static vec of_b(const NestLoop&, Pointer b, At) {
    return splat(get(b, 0));
  }
};

template <typename Pointer, typename At>
SHARDRUN_INLINE vec load_strided(Pointer from, std::int64_t stride, At at) {
  float each[lanes] = {};
  for (std::int64_t i = 0; i < length_of(at); ++i) {
    each[i] = get(from, (at.begin + i) * stride);
  }
  return load(each, Whole{0});
}

struct AnyStrides {
  static constexpr int at_once = 1;
  template <typename Pointer, typename At>
  SHARDRUN_INLINE static vec of_a(const NestLoop& loop, Pointer a, At at) {
    return load_strided(a, loop.a, at);
  }
  template <typename Pointer, typename At>
  SHARDRUN_INLINE static vec of_b(const NestLoop& loop, Pointer b, At at) {
    return load_strided(b, loop.b, at);
  }
  template <typename Pointer, typename At>
  SHARDRUN_INLINE static void put_result(const NestLoop& loop, Pointer y, At at, vec v, bool accumulate) {
    float each[lanes];
    store(each, Whole{0}, v);
    for (std::int64_t i = 0; i < length_of(at); ++i) {
      const std::int64_t place = (at.begin + i) * loop.y;
      put(y, place, accumulate ? get(y, place) + each[i] : each[i]);
    }
  }
};

/// y (+)= a b for iterations [begin, end) of the loop.
template <typename Kind, typename Pointer>
void multiply_elements(const NestLoop& loop, Pointer a, Pointer b, Pointer y, std::int64_t begin, std::int64_t end,
                       bool accumulate) {
  vectors(begin, end, [=](auto at) {
    Kind::put_result(loop, y, at, Kind::of_a(loop, a, at) * Kind::of_b(loop, b, at), accumulate);
  });
}

/// The number of products that are summed before their sum is added to the total. This bounds the rounding error.
constexpr std::int64_t products_at_once = 64;

/// Computes `count` vectors of results. A result is the sum over all iterations of the summed loops.
template <typename Kind, int count, typename Pointer, typename At>
SHARDRUN_INLINE void sum_vectors(const ElementNest& nest, Pointer a, Pointer b, Pointer y, At at, bool accumulate) {
  const std::int64_t total_terms = iterations(nest.summed);
  const NestLoop inner = nest.summed.count > 0 ? nest.summed.loops[0] : NestLoop{};
  vec total[count] = {};
  for (std::int64_t first = 0; first < total_terms; first += products_at_once) {
    const std::int64_t last = first + products_at_once < total_terms ? first + products_at_once : total_terms;
    vec part[count] = {};
    for (std::int64_t r = first; r < last;) {
      const std::int64_t left = inner.size - r % inner.size;
      const std::int64_t run = left < last - r ? left : last - r;
      const NestPlace place = iteration(nest.summed, r);
      for (std::int64_t i = 0; i < run; ++i) {
        for (int j = 0; j < count; ++j) {
          At shifted = at;
          shifted.begin += j * lanes;
          part[j] += Kind::of_a(nest.vectors, a + (place.a + i * inner.a), shifted) *
                     Kind::of_b(nest.vectors, b + (place.b + i * inner.b), shifted);
        }
      }
      r += run;
    }
    for (int j = 0; j < count; ++j) {
      total[j] += part[j];
    }
  }
  for (int j = 0; j < count; ++j) {
    At shifted = at;
    shifted.begin += j * lanes;
    Kind::put_result(nest.vectors, y, shifted, total[j], accumulate);
  }
}

/// The most iterations of `vectors` in a piece of that loop, if each iteration has its own result.
constexpr std::int64_t piece_length = 4096;

/// Computes a nest whose loop `vectors` runs over results. Threads share pieces of that loop.
template <typename Kind, typename Pointer>
void run_over_results(const ElementNest& nest, const KernelCall& call, Pointer a, Pointer b) {
  const auto y = reals<Pointer>(call.outputs[0]);
  const std::int64_t size = nest.vectors.size;
  const std::int64_t length = size < piece_length ? size : piece_length;
  const std::int64_t pieces = length == 0 ? 0 : (size + length - 1) / length;
  const std::int64_t terms = iterations(nest.summed);
  const bool accumulate = call.accumulate;
  call.threads.split(
      iterations(nest.kept) * pieces, row_grain(length * terms), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t number = begin; number < end; ++number) {
          const NestPlace place = iteration(nest.kept, pieces == 1 ? number : number / pieces);
          const Pointer from_a = a + place.a;
          const Pointer from_b = b + place.b;
          const Pointer to = y + place.y;
          std::int64_t i = pieces == 1 ? 0 : number % pieces * length;
          const std::int64_t last = i + length < size ? i + length : size;
          if (nest.summed.count == 0) {
            multiply_elements<Kind>(nest.vectors, from_a, from_b, to, i, last, accumulate);
            continue;
          }
          for (; i + Kind::at_once * lanes <= last; i += Kind::at_once * lanes) {
            sum_vectors<Kind, Kind::at_once>(nest, from_a, from_b, to, Whole{i}, accumulate);
          }
          vectors(i, last, [&](auto at) { sum_vectors<Kind, 1>(nest, from_a, from_b, to, at, accumulate); });
        }
      });
}

SHARDRUN_INLINE dvec in_doubles(halfvec v) { return __builtin_convertvector(v, dvec); }

/// Σ a b over the loop's iterations, in float64.
template <typename Kind, typename Pointer>
double sum_of_products(const NestLoop& loop, Pointer a, Pointer b) {
  dvec low = {};
  dvec high = {};
  vectors(0, loop.size, [&](auto at) {
    const Halves<halfvec, vec> of_a(within(at, Kind::of_a(loop, a, at), 0));
    const Halves<halfvec, vec> of_b(within(at, Kind::of_b(loop, b, at), 0));
    low += in_doubles(of_a.low) * in_doubles(of_b.low);
    high += in_doubles(of_a.high) * in_doubles(of_b.high);
  });
  const dvec sums = low + high;
  double total = 0;
  for (int i = 0; i < lanes / 2; ++i) {
    total += sums[i];
  }
  return total;
}

/// Computes a nest whose loop `vectors` runs over the terms of one sum. Threads share the sums.
template <typename Kind, typename Pointer>
void run_over_terms(const ElementNest& nest, const KernelCall& call, Pointer a, Pointer b) {
  const auto y = reals<Pointer>(call.outputs[0]);
  const NestLoop row = nest.vectors;
  const std::int64_t rows = iterations(nest.summed);
  const bool accumulate = call.accumulate;
  call.threads.split(iterations(nest.kept), row_grain(row.size * rows), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t number = begin; number < end; ++number) {
      const NestPlace result = iteration(nest.kept, number);
      double total = accumulate ? static_cast<double>(get(y, result.y)) : 0;
      for (std::int64_t r = 0; r < rows; ++r) {
        const NestPlace place = iteration(nest.summed, r);
        total += sum_of_products<Kind>(row, a + (result.a + place.a), b + (result.b + place.b));
      }
      put(y, result.y, static_cast<float>(total));
    }
  });
}

template <typename Kind, typename Pointer>
void run_kind(const ElementNest& nest, const KernelCall& call, Pointer a, Pointer b) {
  nest.sums ? run_over_terms<Kind>(nest, call, a, b) : run_over_results<Kind>(nest, call, a, b);
}

template <typename Pointer>
void run_loops(const KernelCall& call, const ElementNest& nest) {
  const auto a = reals<Pointer>(call.inputs[nest.swapped ? 1 : 0]);
  const auto b = reals<Pointer>(call.inputs[nest.swapped ? 0 : 1]);
  switch (nest.operands) {
    case ElementNest::Operands::both_consecutive: return run_kind<BothVary>(nest, call, a, b);
    case ElementNest::Operands::a_consecutive: return run_kind<FirstVaries>(nest, call, a, b);
    case ElementNest::Operands::strided: return run_kind<AnyStrides>(nest, call, a, b);
  }
}

void run_as(const ElementNest& nest, const KernelCall& call) {
  has_bfloats(call) ? run_loops<Reals>(call, nest) : run_loops<float*>(call, nest);
}

}  // namespace

constinit const NestRunner nest_runner = run_as;

}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT
