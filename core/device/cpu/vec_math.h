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

}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT
