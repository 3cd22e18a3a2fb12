#pragma once

#include "core/device/cpu/vec.h"

/// Elementary functions of vectors, to about 1e-7 relative. NaN gives NaN. The polynomials are minimax fits made for
/// these ranges.
namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {

SHARDRUN_INLINE uvec bits(vec v) { return __builtin_bit_cast(uvec, v); }
SHARDRUN_INLINE vec from_bits(uvec v) { return __builtin_bit_cast(vec, v); }

/// Adding it rounds a small number to an integer, which then stands in the low bits of the sum.
inline constexpr float rounder = 0x1.8p23F;

/// e^x = 2^n e^r with |r| <= ln(2)/2. Results under 2^-125 become zero.
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

/// 1 / (1 + e^-x), and 1 minus it, both exact to rounding far out in the tails.
struct Sigmoid {
  vec value;
  vec complement;
};
SHARDRUN_INLINE Sigmoid sigmoid(vec x) {
  const vec e = exp(-x);
  const vec value = 1.0F / (1.0F + e);
  return {value, e > 1e30F ? splat(1.0F) : e * value};
}

/// The normal distribution: Φ(x) and its density φ(x).
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

/// Where `sin_cos` holds; beyond it the reduction loses digits.
inline constexpr float largest_angle = 8192;

/// sin(x + quarter_turns * π/2) for |x| <= largest_angle.
SHARDRUN_INLINE vec sin_cos(vec x, std::uint32_t quarter_turns) {
  const vec shifted = x * 0.636619772F + rounder;
  const vec n = shifted - rounder;
  // π/2 in three parts, the first two short enough that their products with n are exact.
  const vec r = ((x - n * 0x1.92p0F) - n * 0x1.fbp-12F) - n * 0x1.5110b4p-22F;
  const uvec quadrant = bits(shifted) + quarter_turns;
  const vec s = r * r;
  const vec sine = ((-0.0001951729898F * s + 0.008332178146F) * s - 0.1666665494F) * s * r + r;
  const vec cosine = ((2.443845247e-5F * s - 0.001388736753F) * s + 0.04166664687F) * (s * s) + (1.0F - 0.5F * s);
  const vec value = (quadrant & 1U) != 0U ? cosine : sine;
  return from_bits(bits(value) ^ ((quadrant & 2U) << 30U));
}

/// function(lane) of each lane, for what the C library does better.
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

/// x = 2^n m with m in [sqrt(1/2), sqrt(2)): log(x) = n log(2) + log(m). The polynomial of Cephes' logf.
SHARDRUN_INLINE vec log(vec x) {
  const auto tiny = x < 0x1p-126F;
  const vec scaled = tiny ? x * 0x1p25F : x;
  // Subtracting the bits of sqrt(1/2) makes the exponent that of x / sqrt(1/2), and so n.
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

/// Near zero the polynomial of Cephes' tanhf.
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

/// Near zero the polynomial of Cephes' erff; elsewhere 2 Φ(x sqrt(2)) - 1.
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

/// What the formulas of core/graph/formulas.h compute with.
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
  SHARDRUN_INLINE static vec power(vec a, vec b) {
    return lane_by_lane(a, [b](float lane, int i) { return __builtin_powf(lane, b[i]); });
  }
};

}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT
