#include "core/bench/values.h"

#include <shardrun/sdk/reduce.hpp>

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace shardrun::bench {
namespace {

using sdk::detail::element_of;
using sdk::detail::with_type;

/// The largest whole number up to which a dtype has all.
std::uint32_t largest_exact(std::uint32_t dtype) {
  switch (dtype) {
    case SR_DTYPE_I8: return 127;
    case SR_DTYPE_U8: return 255;
    case SR_DTYPE_BF16: return 256;
    case SR_DTYPE_F16: return 2048;
    default: return 1U << 24U;
  }
}

/// The numbers of one case.
class Numbers {
 public:
  Numbers(const Case& each, std::uint32_t members, std::uint32_t round)
      : sums_(each.reduction == SR_REDUCE_SUM),
        multiplies_(each.reduction == SR_REDUCE_PRODUCT),
        members_(members),
        round_(round),
        givers_(std::min(members, largest_exact(each.dtype))),
        kinds_(each.reduction == SR_REDUCE_SUM ? std::clamp(largest_exact(each.dtype) / members, 1U, 63U) + 1 : 128) {}

  /// Element `index` of what `member` sends. It differs from its neighbours, other members' and other rounds'.
  [[nodiscard]] std::uint32_t given(std::uint32_t member, std::uint64_t index) const noexcept {
    const auto place = static_cast<std::uint32_t>(index);
    std::uint32_t mixed = place * 2654435761U + member * 0x9E3779B9U + round_ * 0x85EBCA6BU;
    mixed ^= mixed >> 15U;
    mixed = (mixed * 0x2C1B3C6DU) >> 16U;
    if (multiplies_) {
      return (place + member) % members_ < most_doubled ? 1 + (mixed & 1U) : 1;
    }
    const std::uint32_t number = (mixed * kinds_) >> 16U;
    return sums_ && givers_ < members_ && (place + member) % members_ >= givers_ ? 0 : number;
  }

  [[nodiscard]] std::uint32_t reduced(std::uint32_t reduction, std::uint64_t index) const noexcept {
    std::uint32_t result = given(0, index);
    for (std::uint32_t member = 1; member < members_; ++member) {
      const std::uint32_t other = given(member, index);
      switch (reduction) {
        case SR_REDUCE_SUM: result += other; break;
        case SR_REDUCE_PRODUCT: result *= other; break;
        case SR_REDUCE_MIN: result = std::min(result, other); break;
        default: result = std::max(result, other);
      }
    }
    return result;
  }

 private:
  /// Members that give a 2 to the product of one place.
  static constexpr std::uint32_t most_doubled = 6;

  bool sums_;
  bool multiplies_;
  std::uint32_t members_;
  std::uint32_t round_;
  std::uint32_t givers_;  ///< how many members may add more than 0 to one element
  std::uint32_t kinds_;
};

/// Compares `count` elements at `found` with the values of `expect`.
template <class Expect>
std::uint64_t differing(std::uint32_t dtype, const std::byte* found, std::uint64_t count, Expect expect) {
  std::uint64_t wrong = 0;
  with_type(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto* elements = reinterpret_cast<const T*>(found);
    for (std::uint64_t i = 0; i < count; ++i) {
      const T expected = element_of<T>(expect(i));
      wrong += std::memcmp(&elements[i], &expected, sizeof(T)) != 0 ? 1 : 0;
    }
  });
  return wrong;
}

/// Unlike any number that is given.
constexpr int nothing = 0xA5;

}  // namespace

void fill(const Case& each, std::uint32_t members, std::uint32_t rank, std::uint32_t round, const ArenaLayout& layout,
          std::byte* arena) {
  if (each.opcode == SR_OP_BARRIER) {
    return;
  }
  std::memset(arena + layout.recv, nothing, layout.recv_bytes);
  const Numbers numbers(each, members, round);
  with_type(each.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    auto* elements = reinterpret_cast<T*>(arena + layout.send);
    const std::uint64_t count = layout.send_bytes / sizeof(T);
    for (std::uint64_t i = 0; i < count; ++i) {
      elements[i] = element_of<T>(numbers.given(rank, i));
    }
  });
}

std::uint64_t count_wrong(const Case& each, std::uint32_t members, std::uint32_t rank, std::uint32_t round,
                          const ArenaLayout& layout, const std::byte* arena) {
  const Numbers numbers(each, members, round);
  const std::byte* const recv = arena + layout.recv;
  const std::uint64_t element = std::max<std::uint64_t>(1, sdk::dtype_size(each.dtype));
  const sdk::OpSpec own = specs_of(each, members, rank).back();
  if (sdk::find_opcode(own.opcode)->reduces) {
    const std::uint64_t begin = sdk::send_block(own, 0, rank).offset;
    return differing(each.dtype, recv, layout.recv_bytes / element,
                     [&](std::uint64_t i) { return numbers.reduced(each.reduction, begin + i); });
  }
  std::uint64_t wrong = 0;
  for (std::uint32_t member = 0; member < members; ++member) {
    const sdk::Block to = sdk::recv_block(own, rank, member);
    const std::uint64_t begin = sdk::send_block(specs_of(each, members, member).front(), member, rank).offset;
    wrong += differing(each.dtype, recv + to.offset * element, to.count,
                       [&](std::uint64_t i) { return numbers.given(member, begin + i); });
  }
  return wrong;
}

}  // namespace shardrun::bench
