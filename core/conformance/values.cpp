#include "core/conformance/values.h"

#include <shardrun/sdk/transport/reduce.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

namespace shardrun::conformance {
namespace {

using sdk::OpSpec;
using sdk::detail::element_of;
using sdk::detail::with_type;

/// Number of elements that member `from` sends to member `to` in an ALL_TO_ALLV.
std::uint64_t exchanged(const Shape& shape, std::uint32_t from, std::uint32_t to) {
  return shape.count == 0 || (from * 2 + to) % 3 == 2 ? 0 : shape.count / 2 + from + 2 * to + 1;
}

std::uint64_t uneven(const Shape& shape, std::uint32_t member) {
  return shape.count == 0 || member % 3 == 1 ? 0 : shape.count + 3 * member;
}

/// The largest n, up to 2^24, such that the dtype represents all integers from 0 to n exactly.
std::uint32_t largest_exact(std::uint32_t dtype) {
  switch (dtype) {
    case SR_DTYPE_I8: return 127;
    case SR_DTYPE_U8: return 255;
    case SR_DTYPE_BF16: return 256;
    case SR_DTYPE_F16: return 2048;
    default: return 1U << 24U;
  }
}

/// Computes the elements of a round.
class Numbers {
 public:
  Numbers(const Shape& shape, std::uint32_t round)
      : shape_(shape),
        round_(round),
        givers_(std::min(shape.members, largest_exact(shape.dtype))),
        kinds_(shape.reduction == SR_REDUCE_SUM ? std::clamp(largest_exact(shape.dtype) / shape.members, 1U, 63U) + 1
                                                : 128) {}

  /// Element `index` of the data that `member` sends. It is pseudorandom in index, member and round, so that elements
  /// in wrong places are noticed.
  [[nodiscard]] double given(std::uint32_t member, std::uint64_t index) const noexcept {
    if (shape_.with_nan && (index + round_) % (shape_.members + 1) == member) {
      return std::numeric_limits<double>::quiet_NaN();
    }
    const auto place = static_cast<std::uint32_t>(index);
    std::uint32_t mixed = place * 2654435761U + member * 0x9E3779B9U + round_ * 0x85EBCA6BU;
    mixed ^= mixed >> 15U;
    mixed = (mixed * 0x2C1B3C6DU) >> 16U;
    if (shape_.rounds) {
      return rounding((place + round_ + member) % shape_.members, mixed % 32);
    }
    if (shape_.reduction == SR_REDUCE_PRODUCT) {
      return (place + member) % shape_.members < most_factors ? 1 + mixed % 3 : 1;
    }
    return givers_ < shape_.members && (place + member) % shape_.members >= givers_ ? 0 : (mixed * kinds_) >> 16U;
  }

  [[nodiscard]] double reduced(std::uint64_t index) const noexcept {
    double result = given(0, index);
    for (std::uint32_t member = 1; member < shape_.members; ++member) {
      const double other = given(member, index);
      if (std::isnan(result) || std::isnan(other)) {
        return std::numeric_limits<double>::quiet_NaN();
      }
      switch (shape_.reduction) {
        case SR_REDUCE_SUM: result += other; break;
        case SR_REDUCE_PRODUCT: result *= other; break;
        case SR_REDUCE_MIN: result = std::min(result, other); break;
        default: result = std::max(result, other);
      }
    }
    return result;
  }

 private:
  /// The largest number of members whose factor for one element of a product is not 1.
  static constexpr std::uint32_t most_factors = 4;

  /// An element of data for Shape::rounds. `turn`: the member's turn, which rotates from element to element. In a sum,
  /// one member gives a number so large that 1 is half of its last bit. In a product, three members give numbers of 8
  /// significant bits, which makes 24 bits.
  [[nodiscard]] double rounding(std::uint32_t turn, std::uint32_t mixed) const noexcept {
    if (shape_.reduction == SR_REDUCE_PRODUCT) {
      return turn < 3 ? 1 + (2 * mixed + 1) / 128.0 : turn % 2 == 0 ? 2 : 0.5;
    }
    const double large = shape_.dtype == SR_DTYPE_BF16 ? 256 : 2048;
    return turn == 0 ? large : 1 + 2 * (mixed % 2);
  }

  const Shape& shape_;
  std::uint32_t round_;
  std::uint32_t givers_;  ///< number of members that may add a number other than 0 to an element
  std::uint32_t kinds_;
};

template <class T>
double number_of(T element) {
  if constexpr (std::is_same_v<T, sdk::Half> || std::is_same_v<T, sdk::Bfloat>) {
    return sdk::widen(element);
  } else {
    return static_cast<double>(element);
  }
}

/// Compares elements [begin, begin + count) of `buffer` with expect(0), expect(1), …, each rounded to the dtype.
template <class Expect>
void compare(WrongElements& wrong, std::uint32_t dtype, const void* buffer, std::uint64_t begin, std::uint64_t count,
             Expect expect) {
  with_type(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* const elements = static_cast<const T*>(buffer) + begin;
    for (std::uint64_t i = 0; i < count; ++i) {
      const double expected = number_of(element_of<T>(expect(i)));
      const double found = number_of(elements[i]);
      const bool is_same = found == expected || (std::isnan(found) && std::isnan(expected));
      if (!is_same && wrong.count++ == 0) {
        wrong = {.count = 1, .first = begin + i, .found = found, .expected = expected};
      }
    }
  });
}

}  // namespace

OpSpec op_of(const Shape& shape, std::uint32_t rank) {
  OpSpec op = {.opcode = shape.opcode,
               .dtype = shape.dtype,
               .reduction = shape.reduction,
               .peer = shape.root,
               .count = shape.count};
  const sdk::OpcodeTraits& traits = *sdk::find_opcode(shape.opcode);
  for (std::uint32_t i = 0; i < shape.members && traits.has_recv_counts; ++i) {
    op.count = 0;
    if (traits.has_send_counts) {
      op.send_counts.push_back(exchanged(shape, rank, i));
      op.recv_counts.push_back(exchanged(shape, i, rank));
    } else {
      op.recv_counts.push_back(uneven(shape, i));
    }
  }
  return op;
}

std::vector<OpSpec> ops_of(const Shape& shape) {
  std::vector<OpSpec> ops;
  for (std::uint32_t member = 0; member < shape.members; ++member) {
    ops.push_back(op_of(shape, member));
  }
  return ops;
}

void write_sent(const Shape& shape, std::span<const OpSpec> ops, std::uint32_t rank, std::uint32_t round, void* to) {
  const Numbers numbers(shape, round);
  const std::uint64_t count = sdk::send_elements(ops[rank], rank, shape.members);
  with_type(shape.dtype, [&](auto* type) {
    auto* const elements = static_cast<decltype(type)>(to);
    for (std::uint64_t i = 0; i < count; ++i) {
      elements[i] = element_of<std::remove_pointer_t<decltype(type)>>(numbers.given(rank, i));
    }
  });
}

WrongElements wrong_sent(const Shape& shape, std::span<const OpSpec> ops, std::uint32_t rank, std::uint32_t round,
                         const void* found) {
  const Numbers numbers(shape, round);
  WrongElements wrong;
  compare(wrong, shape.dtype, found, 0, sdk::send_elements(ops[rank], rank, shape.members),
          [&](std::uint64_t i) { return numbers.given(rank, i); });
  return wrong;
}

WrongElements wrong_received(const Shape& shape, std::span<const OpSpec> ops, const OpSpec& own, std::uint32_t rank,
                             std::uint32_t round, const void* found) {
  const Numbers numbers(shape, round);
  WrongElements wrong;
  if (sdk::find_opcode(own.opcode)->reduces) {
    const std::uint64_t begin = sdk::send_block(own, 0, rank).offset;
    compare(wrong, shape.dtype, found, 0, sdk::recv_elements(own, rank, shape.members),
            [&](std::uint64_t i) { return numbers.reduced(begin + i); });
    return wrong;
  }
  for (std::uint32_t member = 0; member < shape.members; ++member) {
    const sdk::Block to = sdk::recv_block(own, rank, member);
    const std::uint64_t begin = sdk::send_block(ops[member], member, rank).offset;
    compare(wrong, shape.dtype, found, to.offset, to.count,
            [&](std::uint64_t i) { return numbers.given(member, begin + i); });
  }
  return wrong;
}

}  // namespace shardrun::conformance
