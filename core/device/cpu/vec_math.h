#pragma once

#include "core/device/cpu/vec.h"

/// Elementary functions of vectors, with a relative error of about 1e-7. NaN gives NaN, except where powf says
/// otherwise. The polynomials of exp, normal and sin_cos are minimax fits for the ranges in which they are used.
namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {

SHARDRUN_INLINE uvec bits(vec v) { return __builtin_bit_cast(uvec, v); }
SHARDRUN_INLINE vec from_bits(uvec v) { return __builtin_bit_cast(vec, v); }

/// Adding this constant rounds a small number to an integer, whose bits are then the low bits of the sum.
inline constexpr float rounder = 0x1.8p23F;

/// e^x = 2^n e^r with |r| <= ln(2)/2. Results below about 2^-125 become zero.
SHARDRUN_INLINE vec exp(vec x) {
  const vec shifted = x * 1.44269504F + rounder;
  const vec n = shifted - rounder;
  const vec r = (x - n * 0x1.62ep-1F) - n * 0x1.0bfbe8p-15F;
  const vec high = (0.001381433677F * r + 0.008368850805F) * r + 0.04166840076F;
  const vec poly = (high * r + 0.1666651953F) * r + 0.4999999337F;
  const vec near_one = (r * r) * poly + r + 1.0F;
  const vec half = from_bits((bits(shifted) + 126U) << 23U);  // 2^(n-1): 2^n itself overflows a little too early
  const vec result = near_one * half * 2.0F;
  const vec bounded = x > 88.7228F ? splat(__builtin_huge_valf()) : result;
  return x < -86.6F ? vec{} : bounded;
}

/// s = 1 / (1 + e^-x), and 1 - s. Both are as precise for large |x| as near zero.
struct Sigmoid {
  vec value;
  vec complement;
};
SHARDRUN_INLINE Sigmoid sigmoid(vec x) {
  const vec e = exp(-x);
  const vec value = 1.0F / (1.0F + e);
  return {value, e > 1e30F ? splat(1.0F) : e * value};
}

/// The normal distribution's cumulative function Φ(x) and density φ(x).
/// Φ(-|x|) = exp(-x²/2) times a polynomial in t = 1 / (1 + 0.4 |x|/√2).
struct Normal {
  vec cumulative;
  vec density;
};
SHARDRUN_INLINE Normal normal(vec x) {
  const vec magnitude = x < 0.0F ? -x : x;
  const vec t = 1.0F / (magnitude * (0.4F * 0.707106781F) + 1.0F);
  const vec e = exp(x * x * -0.5F);
  vec poly = splat(0.04125303376F);
  poly = poly * t - 0.1403191286F;
  poly = poly * t + 0.08398690099F;
  poly = poly * t + 0.08796496347F;
  poly = poly * t + 0.07975594014F;
  poly = poly * t + 0.1933934904F;
  poly = poly * t + 0.2018875071F;
  poly = poly * t + 0.2264431242F;
  poly = poly * t + 0.2256342303F;
  const vec tail = 0.5F * e * (poly * t);
  return {x < 0.0F ? tail : 1.0F - tail, e * 0.398942280F};
}

/// The largest angle that `sin_cos` takes. Beyond it, its range reduction would lose digits.
inline constexpr float largest_angle = 8192;

/// sin(x + quarter_turns * π/2) for |x| <= largest_angle.
SHARDRUN_INLINE vec sin_cos(vec x, std::uint32_t quarter_turns) {
  const vec shifted = x * 0.636619772F + rounder;
  const vec n = shifted - rounder;
  // π/2 as a sum of three constants. The first two have so few digits that their products with n are exact.
  const vec r = ((x - n * 0x1.92p0F) - n * 0x1.fbp-12F) - n * 0x1.5110b4p-22F;
  const uvec quadrant = bits(shifted) + quarter_turns;
  const vec s = r * r;
  const vec sine = ((-0.0001951729898F * s + 0.008332178146F) * s - 0.1666665494F) * s * r + r;
  const vec cosine = ((2.443845247e-5F * s - 0.001388736753F) * s + 0.04166664687F) * (s * s) + (1.0F - 0.5F * s);
  const vec value = (quadrant & 1U) != 0U ? cosine : sine;
  return from_bits(bits(value) ^ ((quadrant & 2U) << 30U));
}

/// Calls function(element, lane) for each lane. It serves where the C library is more precise.
template <typename Function>
SHARDRUN_INLINE vec lane_by_lane(vec v, const Function& function) {
  float each[lanes];
  __builtin_memcpy(each, &v, sizeof(v));
  for (int i = 0; i < lanes; ++i) {
    each[i] = function(each[i], i);
  }
  __builtin_memcpy(&v, each, sizeof(v));
  return v;
}

SHARDRUN_INLINE bool all_small_angles(vec x) {
  return largest(((x < 0.0F ? -x : x) <= largest_angle) ? vec{} : splat(1.0F)) == 0.0F;
}
SHARDRUN_INLINE vec sine(vec x) {
  return all_small_angles(x) ? sin_cos(x, 0) : lane_by_lane(x, [](float lane, int) { return __builtin_sinf(lane); });
}
SHARDRUN_INLINE vec cosine(vec x) {
  return all_small_angles(x) ? sin_cos(x, 1) : lane_by_lane(x, [](float lane, int) { return __builtin_cosf(lane); });
}

/// x = 2^n m with m in [sqrt(1/2), sqrt(2)), so log(x) = n log(2) + log(m). The polynomial is that of Cephes' logf.
SHARDRUN_INLINE vec log(vec x) {
  const auto tiny = x < 0x1p-126F;
  const vec scaled = tiny ? x * 0x1p25F : x;
  // Subtracting the bits of sqrt(1/2) gives the exponent of x / sqrt(1/2), which is n.
  const ivec exponent = __builtin_bit_cast(ivec, bits(scaled) - 0x3F3504F3U) >> 23;
  const vec n = __builtin_convertvector(exponent, vec) - (tiny ? splat(25.0F) : vec{});
  const vec m = from_bits(bits(scaled) - (__builtin_bit_cast(uvec, exponent) << 23U)) - 1.0F;
  const vec z = m * m;
  vec poly = splat(7.0376836292e-2F);
  poly = poly * m - 1.1514610310e-1F;
  poly = poly * m + 1.1676998740e-1F;
  poly = poly * m - 1.2420140846e-1F;
  poly = poly * m + 1.4249322787e-1F;
  poly = poly * m - 1.6668057665e-1F;
  poly = poly * m + 2.0000714765e-1F;
  poly = poly * m - 2.4999993993e-1F;
  poly = poly * m + 3.3333331174e-1F;
  const vec low = poly * m * z - 2.12194440e-4F * n - 0.5F * z;
  const vec result = m + low + 0.693359375F * n;
  const vec positive = x < __builtin_huge_valf() ? result : x;  // infinity and NaN are kept
  const vec not_negative = x == 0.0F ? splat(-__builtin_huge_valf()) : positive;
  return x < 0.0F ? splat(__builtin_nanf("")) : not_negative;
}

/// Near zero this is the polynomial of Cephes' tanhf, elsewhere ±(1 - 2 / (e^2|x| + 1)).
SHARDRUN_INLINE vec tanh(vec x) {
  const vec magnitude = x < 0.0F ? -x : x;
  const vec z = x * x;
  vec poly = splat(-5.70498872745e-3F);
  poly = poly * z + 2.06390887954e-2F;
  poly = poly * z - 5.37397155531e-2F;
  poly = poly * z + 1.33314422036e-1F;
  poly = poly * z - 3.33332819422e-1F;
  const vec near_zero = poly * z * x + x;
  const vec far = 1.0F - 2.0F / (exp(2.0F * magnitude) + 1.0F);
  return magnitude < 0.625F ? near_zero : x < 0.0F ? -far : far;
}

/// Near zero this is the polynomial of Cephes' erff, elsewhere ±(1 - 2 Φ(-|x| sqrt(2))).
SHARDRUN_INLINE vec erf(vec x) {
  const vec magnitude = x < 0.0F ? -x : x;
  const vec z = x * x;
  vec poly = splat(7.853861353153693e-5F);
  poly = poly * z - 8.010193625184903e-4F;
  poly = poly * z + 5.188327685732524e-3F;
  poly = poly * z - 2.685381193529856e-2F;
  poly = poly * z + 1.128358514861418e-1F;
  poly = poly * z - 3.761262582423300e-1F;
  poly = poly * z + 1.128379165726710F;
  const vec far = 1.0F - 2.0F * normal(-1.41421356F * magnitude).cumulative;
  return magnitude < 1.0F ? poly * x : x < 0.0F ? -far : far;
}

using longvec = std::uint64_t __attribute__((vector_size(SHARDRUN_VECTOR_BYTES)));

/// a^b = e^(b log(a)) for normal a > 0, with a relative error of about 1e-11. The result is limited to e^±150, which is
/// beyond float32's range. a = 2^n m with m in [sqrt(1/2), sqrt(2)); log(m) = 2 atanh(s) with s = (m - 1) / (m + 1).
SHARDRUN_INLINE dvec power_of_positive(dvec a, dvec b) {
  constexpr std::uint64_t bias = 1023;
  const longvec a_bits = __builtin_bit_cast(longvec, a);
  const longvec biased = (a_bits + ((bias << 52U) - 0x3FE6A09E667F3BCDU)) >> 52U;  // n + 1023
  const dvec n = __builtin_bit_cast(dvec, biased | 0x4330000000000000U) - (0x1p52 + static_cast<double>(bias));
  const dvec m = __builtin_bit_cast(dvec, a_bits - (biased << 52U) + (bias << 52U));
  const dvec s = (m - 1.0) / (m + 1.0);
  const dvec z = s * s;
  dvec series = z * (1.0 / 13) + 1.0 / 11;
  series = series * z + 1.0 / 9;
  series = series * z + 1.0 / 7;
  series = series * z + 1.0 / 5;
  series = series * z + 1.0 / 3;
  const dvec log_m = 2.0 * (series * z * s + s);
  const dvec unbounded = b * (n * 0.6931471805599453 + log_m);
  const dvec from_above = unbounded < 150.0 ? unbounded : 150.0 - dvec{};
  const dvec x = from_above > -150.0 ? from_above : -150.0 - dvec{};
  const dvec shifted = x * 1.4426950408889634 + 0x1.8p52;
  const dvec r = x - (shifted - 0x1.8p52) * 0.6931471805599453;
  dvec poly = r * (1.0 / 362880) + 1.0 / 40320;
  poly = poly * r + 1.0 / 5040;
  poly = poly * r + 1.0 / 720;
  poly = poly * r + 1.0 / 120;
  poly = poly * r + 1.0 / 24;
  poly = poly * r + 1.0 / 6;
  poly = poly * r + 0.5;
  poly = poly * r + 1.0;
  poly = poly * r + 1.0;
  return poly * __builtin_bit_cast(dvec, (__builtin_bit_cast(longvec, shifted) + bias) << 52U);
}

/// a^b. Lanes with a zero, an infinity, NaN, a denormal or a large exponent use the C library.
SHARDRUN_INLINE vec power(vec a, vec b) {
  const vec magnitude = a < 0.0F ? -a : a;
  halfvec bases[2];
  halfvec exponents[2];
  __builtin_memcpy(bases, &magnitude, sizeof(magnitude));
  __builtin_memcpy(exponents, &b, sizeof(b));
  for (int i = 0; i < 2; ++i) {
    const dvec result =
        power_of_positive(__builtin_convertvector(bases[i], dvec), __builtin_convertvector(exponents[i], dvec));
    bases[i] = __builtin_convertvector(result, halfvec);
  }
  vec of_magnitude;
  __builtin_memcpy(&of_magnitude, bases, sizeof(of_magnitude));
  const vec shifted = b + rounder;  // the lowest bit is that of b rounded to an integer
  const vec with_sign = from_bits(bits(of_magnitude) ^ (bits(shifted) << 31U));
  const vec of_negative = shifted - rounder == b ? with_sign : splat(__builtin_nanf(""));
  const vec value = a < 0.0F ? of_negative : of_magnitude;
  const auto usual = (magnitude >= 0x1p-126F) & (magnitude < __builtin_huge_valf()) & (b < 0x1p21F) & (b > -0x1p21F);
  if (largest(usual ? vec{} : splat(1.0F)) == 0.0F) {
    return value;
  }
  return lane_by_lane(value, [=](float lane, int i) { return usual[i] != 0 ? lane : __builtin_powf(a[i], b[i]); });
}

/// The number type and functions with which the formulas of core/graph/formulas.h are instantiated here: float vectors.
struct VecMath {
  using Number = vec;
  SHARDRUN_INLINE static vec constant(double value) { return splat(static_cast<float>(value)); }
  SHARDRUN_INLINE static vec sin(vec x) { return sine(x); }
  SHARDRUN_INLINE static vec cos(vec x) { return cosine(x); }
  SHARDRUN_INLINE static vec exp(vec x) { return SHARDRUN_KERNEL_VARIANT::exp(x); }
  SHARDRUN_INLINE static vec log(vec x) { return SHARDRUN_KERNEL_VARIANT::log(x); }
  SHARDRUN_INLINE static vec sqrt(vec x) { return square_root(x); }
  SHARDRUN_INLINE static vec tanh(vec x) { return SHARDRUN_KERNEL_VARIANT::tanh(x); }
  SHARDRUN_INLINE static vec erf(vec x) { return SHARDRUN_KERNEL_VARIANT::erf(x); }
  SHARDRUN_INLINE static vec power(vec a, vec b) { return SHARDRUN_KERNEL_VARIANT::power(a, b); }
};

}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT
