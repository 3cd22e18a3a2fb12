#include "core/device/cpu/elementwise.h"
#include "core/device/hash.h"

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {
namespace {

// Kernels hash the elements that they read and those that they write in their place (Scalars::hashes), while the
// vectors are in registers anyway. core/device/hash.h defines the hash. Its words are the elements.

using longvec = std::uint64_t __attribute__((vector_size(SHARDRUN_VECTOR_BYTES)));

/// The 64-bit products of the lanes with even numbers.
SHARDRUN_INLINE longvec even_products(uvec a, uvec b) {
#if defined(__AVX512F__)
  // The full mask avoids a false warning of GCC 12.
  return reinterpret_cast<longvec>(
      _mm512_maskz_mul_epu32(0xFF, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<longvec>(_mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__SSE2__)
  return reinterpret_cast<longvec>(_mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  constexpr std::uint64_t low = 0xFFFF'FFFF;
  return (__builtin_bit_cast(longvec, a) & low) * (__builtin_bit_cast(longvec, b) & low);
#endif
}

SHARDRUN_INLINE uvec odd_as_even(uvec v) {
  return __builtin_bit_cast(uvec, __builtin_bit_cast(longvec, v) >> std::uint64_t{32});
}

/// The weights of the elements of a vector.
struct Weights {
  SHARDRUN_INLINE explicit Weights(std::int64_t begin) {
    const uvec places = __builtin_bit_cast(uvec, lane_numbers()) + static_cast<std::uint32_t>(begin);
    uvec mixed = (places * hash_weights::first) & hash_weights::mask;
    mixed ^= mixed >> hash_weights::shift;
    even = mixed * hash_weights::second | std::uint32_t{1};
    odd = odd_as_even(even);
  }

  uvec even;  ///< weights of the even lanes; the odd lanes are ignored
  uvec odd;   ///< weights of the odd lanes, in the even lanes
};

/// Hashes `pairs` operands and the results that replace them, or computes nothing if `asked` is false.
template <int pairs, bool asked>
class InPlaceSums {
 public:
  /// REQUIRES: lanes of `read` past the end are zero.
  template <typename At>
  SHARDRUN_INLINE void add(const Weights& weights, At at, int pair, vec read, vec written) {
    if constexpr (asked) {
      add_to(read_[pair], weights, read);
      add_to(written_[pair], weights, within(at, written, 0));
    }
  }

  /// Adds this thread's sums to the others'.
  SHARDRUN_INLINE void give(InPlaceHash* hashes) const {
    if constexpr (asked) {
      for (int pair = 0; pair < pairs; ++pair) {
        __atomic_fetch_add(&hashes[pair].read, total(read_[pair]), __ATOMIC_RELAXED);
        __atomic_fetch_add(&hashes[pair].written, total(written_[pair]), __ATOMIC_RELAXED);
      }
    }
  }

 private:
  SHARDRUN_INLINE static void add_to(longvec& sum, const Weights& weights, vec v) {
    const uvec bits = __builtin_bit_cast(uvec, v);
    sum += even_products(bits, weights.even) + even_products(odd_as_even(bits), weights.odd);
  }
  SHARDRUN_INLINE static std::uint64_t total(longvec sum) {
    std::uint64_t all = 0;
    for (int i = 0; i < lanes / 2; ++i) {
      all += sum[i];
    }
    return all;
  }

  longvec read_[pairs] = {};
  longvec written_[pairs] = {};
};

/// norm² [] -> the factor [] that reduces a norm above `limit` to `limit` (0: no limit), and the norm []
void clip_scale(const KernelCall& call) {
  const float norm = __builtin_sqrtf(get(reals<Reals>(call.inputs[0]), 0));
  const auto limit = static_cast<float>(call.attributes.real("limit"));
  put(reals<Reals>(call.outputs[0]), 0, limit > 0 && norm > limit ? limit / (norm + 1e-6F) : 1.0F);
  put(reals<Reals>(call.outputs[1]), 0, norm);
}

/// A condition as a type, for use in `if constexpr`.
template <bool truth>
struct Truth {
  constexpr operator bool() const { return truth; }
};

/// Calls body(at, sums) for every vector of [0, size), on all threads. `sums` is an InPlaceSums.
template <int pairs, bool hashed, typename Body>
void for_each_hashed_vector(const KernelCall& call, std::int64_t size, const Body& body) {
  call.threads.split(size, grain, [&](std::int64_t begin, std::int64_t end) {
    const Body local = body;
    InPlaceSums<pairs, hashed> sums;
    vectors(
        begin, end, [&](auto at) __attribute__((always_inline)) { local(at, sums); });
    sums.give(call.scalars.hashes);
  });
}

/// parameter, first and second moment, gradient[, scale []] -> parameter, first and second moment.
/// Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2, with the decay multiplied by the learning rate.
template <typename Pointer, bool hashed>
void adamw(const KernelCall& call) {
  const double beta1 = call.attributes.real("beta1");
  const double beta2 = call.attributes.real("beta2");
  const double rate = call.scalars.learning_rate;
  const auto t = static_cast<double>(call.scalars.step + 1);
  const auto b1 = static_cast<float>(beta1);
  const auto b2 = static_cast<float>(beta2);
  const auto fresh1 = static_cast<float>(1 - beta1);
  const auto fresh2 = static_cast<float>(1 - beta2);
  // This times the parameter is subtracted. A factor 1 − rate · decay would be rounded to 1 for a small rate.
  const auto shrink = static_cast<float>(rate * call.attributes.real("decay"));
  const auto stride = static_cast<float>(rate / (1 - __builtin_pow(beta1, t)));
  const auto correction = static_cast<float>(1 / __builtin_sqrt(1 - __builtin_pow(beta2, t)));
  const auto epsilon = static_cast<float>(call.attributes.real("epsilon"));
  const float scale = call.inputs.size() > 4 ? get(reals<Pointer>(call.inputs[4]), 0) : 1.0F;
  const auto parameter = reals<Pointer>(call.inputs[0]);
  const auto first = reals<Pointer>(call.inputs[1]);
  const auto second = reals<Pointer>(call.inputs[2]);
  const auto gradient = reals<Pointer>(call.inputs[3]);
  const auto new_parameter = reals<Pointer>(call.outputs[0]);
  const auto new_first = reals<Pointer>(call.outputs[1]);
  const auto new_second = reals<Pointer>(call.outputs[2]);
  const auto body = [=](auto at, auto& sums) __attribute__((always_inline)) {
    const vec g = load(gradient, at) * scale;
    const vec old_m = load(first, at);
    const vec old_v = load(second, at);
    const vec old_p = load(parameter, at);
    const vec m = old_m * b1 + g * fresh1;
    const vec v = old_v * b2 + g * g * fresh2;
    const vec p = old_p - (stride * m / (square_root(v) * correction + epsilon) + old_p * shrink);
    store(new_first, at, m);
    store(new_second, at, v);
    store(new_parameter, at, p);
    const Weights weights(at.begin);
    sums.add(weights, at, 0, old_p, p);
    sums.add(weights, at, 1, old_m, m);
    sums.add(weights, at, 2, old_v, v);
  };
  for_each_hashed_vector<3, hashed>(call, call.inputs[0].elements(), body);
}

/// parameter, [velocity,] gradient[, scale []] -> parameter [, velocity]: v = momentum v + g and p = p - rate v, where
/// g = gradient * scale + decay * p.
template <typename Pointer, bool hashed>
void sgd(const KernelCall& call) {
  const auto momentum = static_cast<float>(call.attributes.real("momentum"));
  const auto decay = static_cast<float>(call.attributes.real("decay"));
  const auto rate = static_cast<float>(call.scalars.learning_rate);
  const bool with_velocity = momentum > 0;
  const std::size_t g = with_velocity ? 2 : 1;
  const auto gradient = reals<Pointer>(call.inputs[g]);
  const float scale = call.inputs.size() > g + 1 ? get(reals<Pointer>(call.inputs[g + 1]), 0) : 1.0F;
  const auto parameter = reals<Pointer>(call.inputs[0]);
  const auto velocity = reals<Pointer>(call.inputs[with_velocity ? 1 : 0]);
  const auto new_parameter = reals<Pointer>(call.outputs[0]);
  const auto new_velocity = reals<Pointer>(call.outputs[with_velocity ? 1 : 0]);
  const auto step = [=](auto at, auto& sums, auto has_velocity) __attribute__((always_inline)) {
    const Weights weights(at.begin);
    const vec old_p = load(parameter, at);
    vec v = load(gradient, at) * scale + old_p * decay;
    if constexpr (has_velocity) {
      const vec old_v = load(velocity, at);
      v += old_v * momentum;
      store(new_velocity, at, v);
      sums.add(weights, at, 1, old_v, v);
    }
    const vec p = old_p - v * rate;
    store(new_parameter, at, p);
    sums.add(weights, at, 0, old_p, p);
  };
  const std::int64_t size = call.inputs[0].elements();
  if (with_velocity) {
    for_each_hashed_vector<2, hashed>(
        call, size, [=](auto at, auto& sums) __attribute__((always_inline)) { step(at, sums, Truth<true>()); });
  } else {
    for_each_hashed_vector<1, hashed>(
        call, size, [=](auto at, auto& sums) __attribute__((always_inline)) { step(at, sums, Truth<false>()); });
  }
}

/// Calls one of a kernel's four instances: for each type of pointer, without and with hashes.
template <void (*floats)(const KernelCall&), void (*hashed_floats)(const KernelCall&), void (*any)(const KernelCall&),
          void (*hashed_any)(const KernelCall&)>
void by_type_and_hashes(const KernelCall& call) {
  call.scalars.hashes == nullptr ? by_type<floats, any>(call) : by_type<hashed_floats, hashed_any>(call);
}

}  // namespace
}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT

SHARDRUN_KERNELS(
    optimizer, {"clip_scale", {.run = clip_scale}},
    {"adamw",
     {.run = by_type_and_hashes<adamw<float*, false>, adamw<float*, true>, adamw<Reals, false>, adamw<Reals, true>>,
      .hashes = true}},
    {"sgd",
     {.run = by_type_and_hashes<sgd<float*, false>, sgd<float*, true>, sgd<Reals, false>, sgd<Reals, true>>,
      .hashes = true}})
