// Quantised blocks of GGUF. A block has scales and integers of 4 to 8 bits. Results equal those of gguf-py bit for bit:
// the order of operations is the same, and CMakeLists.txt forbids fusing multiplications with additions.

#include "core/checkpoint/gguf_model.h"

#include <shardrun/sdk/transport/half.hpp>

#include <array>
#include <cstdint>
#include <cstring>

namespace shardrun::checkpoint {
namespace {

using files::GgufType;

constexpr std::size_t small = 32;   ///< elements in a block of the older types
constexpr std::size_t large = 256;  ///< elements in a block of the K types

std::uint16_t two_bytes(const std::uint8_t* at) {
  return static_cast<std::uint16_t>(at[0] | static_cast<unsigned>(at[1]) << 8U);
}

float half_at(const std::uint8_t* at) { return sdk::widen(sdk::Half{two_bytes(at)}); }

float number(unsigned value) { return static_cast<float>(value); }

/// Computes to[e] = scale * (bits[e] - subtracted) + *added, for a block of 32 elements. Bits 0 to 3 of element j are
/// the lower half of byte j of `low`. Bits 0 to 3 of element j + 16 are the upper half of the same byte. Bit 4 of
/// element i is bit i of `high`. If `high` or `added` is null, its bits or its value are zero.
void small_block(const std::uint8_t* low, const std::uint8_t* high, float scale, int subtracted, const float* added,
                 float* to) {
  std::uint32_t fifth = 0;
  if (high != nullptr) {
    fifth = two_bytes(high) | static_cast<std::uint32_t>(two_bytes(high + 2)) << 16U;
  }
  for (std::size_t i = 0; i < small; ++i) {
    const unsigned bits = (i < small / 2 ? low[i] & 0xFU : low[i - small / 2] >> 4U) | (fifth >> i & 1U) << 4U;
    const float product = scale * static_cast<float>(static_cast<int>(bits) - subtracted);
    to[i] = added != nullptr ? product + *added : product;
  }
}

void q8_0(const std::uint8_t* block, float* to) {
  const float scale = half_at(block);
  for (std::size_t i = 0; i < small; ++i) {
    to[i] = scale * static_cast<float>(static_cast<std::int8_t>(block[2 + i]));
  }
}

/// Unpacks 8 scales and 8 minima of 6 bits from 12 bytes. The first four of each are the lower 6 bits of bytes 0 to 7.
/// The last four have their lower 4 bits in bytes 8 to 11, and their upper 2 bits in the upper 2 bits of bytes 0 to 7.
void scales_and_minima(const std::uint8_t* packed, std::array<unsigned, 8>& scales, std::array<unsigned, 8>& minima) {
  for (std::size_t i = 0; i < 4; ++i) {
    scales[i] = packed[i] & 0x3FU;
    minima[i] = packed[4 + i] & 0x3FU;
    scales[4 + i] = (packed[8 + i] & 0xFU) | static_cast<unsigned>(packed[i] >> 6U) << 4U;
    minima[4 + i] = static_cast<unsigned>(packed[8 + i] >> 4U) | static_cast<unsigned>(packed[4 + i] >> 6U) << 4U;
  }
}

/// Decodes a block of Q4_K or Q5_K. It has 8 groups of 32 elements, each with a scale and a minimum. Two groups share
/// 32 bytes of `low`; the first has the lower 4 bits of each byte. Bit g of byte j of `high`, which is null for Q4_K,
/// is bit 4 of element j of group g.
void k_block(const std::uint8_t* head, const std::uint8_t* high, const std::uint8_t* low, float* to) {
  const float scale = half_at(head);
  const float minimum = half_at(head + 2);
  std::array<unsigned, 8> scales{};
  std::array<unsigned, 8> minima{};
  scales_and_minima(head + 4, scales, minima);
  for (std::size_t group = 0; group < 8; ++group) {
    const float factor = scale * number(scales[group]);
    const float subtracted = minimum * number(minima[group]);
    for (std::size_t j = 0; j < small; ++j) {
      const unsigned byte = low[group / 2 * small + j];
      const unsigned fifth = high != nullptr ? high[j] >> group & 1U : 0;
      const unsigned bits = (group % 2 == 0 ? byte & 0xFU : byte >> 4U) | fifth << 4U;
      to[group * small + j] = factor * number(bits) - subtracted;
    }
  }
}

/// Decodes a block of Q6_K: 128 bytes of lower 4 bits, 64 bytes of upper 2 bits, 16 scales of 8 bits, a float16 scale.
/// Each half has 4 groups of 32 elements. Groups 0 and 2 share bytes of lower bits, as do 1 and 3; all share the upper.
void q6_k(const std::uint8_t* block, float* to) {
  const std::uint8_t* const scales = block + 192;
  const float scale = half_at(block + 208);
  for (std::size_t i = 0; i < large; ++i) {
    const std::size_t half = i / 128;
    const std::size_t group = i % 128 / small;
    const std::size_t j = i % small;
    const unsigned low = block[64 * half + small * (group % 2) + j] >> (4 * (group / 2)) & 0xFU;
    const unsigned high = block[128 + small * half + j] >> (2 * group) & 3U;
    const float factor = scale * static_cast<float>(static_cast<std::int8_t>(scales[i / 16]));
    to[i] = factor * static_cast<float>(static_cast<int>(low | high << 4U) - 32);
  }
}

void one_block(GgufType type, const std::uint8_t* block, float* to) {
  const auto added = [&] { return half_at(block + 2); };
  switch (type) {
    case GgufType::f32: std::memcpy(to, block, sizeof *to); break;
    case GgufType::f16: *to = half_at(block); break;
    case GgufType::bf16: *to = sdk::widen(sdk::Bfloat{two_bytes(block)}); break;
    case GgufType::q4_0: small_block(block + 2, nullptr, half_at(block), 8, nullptr, to); break;
    case GgufType::q4_1: {
      const float minimum = added();
      small_block(block + 4, nullptr, half_at(block), 0, &minimum, to);
      break;
    }
    case GgufType::q5_0: small_block(block + 6, block + 2, half_at(block), 16, nullptr, to); break;
    case GgufType::q5_1: {
      const float minimum = added();
      small_block(block + 8, block + 4, half_at(block), 0, &minimum, to);
      break;
    }
    case GgufType::q8_0: q8_0(block, to); break;
    case GgufType::q4_k: k_block(block, nullptr, block + 16, to); break;
    case GgufType::q5_k: k_block(block, block + 16, block + 48, to); break;
    case GgufType::q6_k: q6_k(block, to); break;
  }
}

}  // namespace

void dequantise(GgufType type, std::span<const std::byte> blocks, std::span<float> to) {
  if (type == GgufType::f32) {
    std::memcpy(to.data(), blocks.data(), to.size_bytes());
    return;
  }
  const files::GgufBlock& block = files::block_of(type);
  for (std::size_t i = 0; i < to.size() / block.elements; ++i) {
    one_block(type, reinterpret_cast<const std::uint8_t*>(blocks.data()) + i * block.bytes, &to[i * block.elements]);
  }
}

}  // namespace shardrun::checkpoint
