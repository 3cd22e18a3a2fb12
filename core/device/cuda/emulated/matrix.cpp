#include "core/device/cuda/matrix.h"

#include <cstring>

#include "core/device/cuda/emulated/emulator.h"

namespace shardrun::device::cuda::emulated {
namespace {

/// Element 0 or 1 of a word.
float half_of(std::uint32_t word, int number) {
  return float_of_bfloat(static_cast<std::uint16_t>(word >> static_cast<unsigned>(16 * number)));
}

/// A lane's fragments of the two operands of a product.
struct Fragments {
  FragmentA a;
  FragmentB b;
};

template <typename T>
T of_lane(const Strand& strand, int lane) {
  T value;
  std::memcpy(&value, given_by(strand, lane), sizeof(T));
  return value;
}

}  // namespace

void multiply_add(Strand& strand, const FragmentA& a, const FragmentB& b, FragmentC& c, Where where) {
  const Fragments own = {a, b};
  give(strand, &own, sizeof(own), where);
  const int lane = place_of(strand).thread % warp_size;
  const int row = lane / 4;
  const int column = lane % 4 * 2;
  for (int half = 0; half < 2; ++half) {  // of k
    for (int t = 0; t < 4; ++t) {
      const FragmentA of_row = of_lane<Fragments>(strand, 4 * row + t).a;
      for (int n = 0; n < 2; ++n) {
        const FragmentB of_column = of_lane<Fragments>(strand, 4 * (column + n) + t).b;
        for (int k = 0; k < 2; ++k) {
          const float factor = half_of(of_column.words[half], k);
          c.of[n] += half_of(of_row.words[2 * half], k) * factor;
          c.of[2 + n] += half_of(of_row.words[2 * half + 1], k) * factor;
        }
      }
    }
  }
}

FourMatrices load_matrices(Strand& strand, const Eight& row, bool transposed, Where where) {
  give(strand, &row, sizeof(row), where);
  const int lane = place_of(strand).thread % warp_size;
  FourMatrices found;
  for (int m = 0; m < 4; ++m) {
    auto& word = found.words[m];
    if (!transposed) {
      word = of_lane<Eight>(strand, 8 * m + lane / 4).words[lane % 4];
      continue;
    }
    word = 0;
    for (int i = 0; i < 2; ++i) {
      const Eight other = of_lane<Eight>(strand, 8 * m + lane % 4 * 2 + i);
      const int element = lane / 4;
      const std::uint32_t bits = other.words[element / 2] >> static_cast<unsigned>(element % 2 * 16) & 0xFFFFU;
      word |= bits << static_cast<unsigned>(16 * i);
    }
  }
  return found;
}

}  // namespace shardrun::device::cuda::emulated
