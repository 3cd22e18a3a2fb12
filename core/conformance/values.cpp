#include "core/conformance/values.h"

#include <shardrun/sdk/reduce.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>

namespace shardrun::conformance {
namespace {

using sdk::Bfloat;
using sdk::Half;
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

/// See Shape::rounds. `place`: each member has another, which changes from element to element. Of a sum, one number is
/// so large that 1 is half of its last bit. Of a product, three numbers have 8 significant bits, which makes 24.
double rounding(const Shape& shape, std::uint32_t place, std::uint32_t mixed) {
  if (shape.reduction == SR_REDUCE_PRODUCT) {
    return place < 3 ? 1 + (2 * mixed + 1) / 128.0 : place % 2 == 0 ? 2 : 0.5;
  }
  const double large = shape.dtype == SR_DTYPE_BF16 ? 256 : 2048;
  return place == 0 ? large : 1 + 2 * (mixed % 2);
}

/// Element `index` of what `member` sends: small, and different from its neighbours.
double given(const Shape& shape, std::uint32_t member, std::uint64_t index, std::uint32_t round) {
  if (shape.with_nan && (index + round) % (shape.members + 1) == member) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const std::uint32_t mixed =
      (static_cast<std::uint32_t>(index) * 2654435761U + member * 0x9E3779B9U + round * 0x85EBCA6BU) >> 27U;
  if (shape.rounds) {
    return rounding(shape, static_cast<std::uint32_t>(index + round + member) % shape.members, mixed);
  }
  return shape.reduction == SR_REDUCE_PRODUCT ? 1 + mixed % 3 : mixed;
}

double reduced(std::uint32_t reduction, double a, double b) {
  if (std::isnan(a) || std::isnan(b)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  switch (reduction) {
    case SR_REDUCE_SUM: return a + b;
    case SR_REDUCE_PRODUCT: return a * b;
    case SR_REDUCE_MIN: return std::min(a, b);
    default: return std::max(a, b);
  }
}

template <class T>
double number_of(T element) {
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, Bfloat>) {
    return sdk::widen(element);
  } else {
    return static_cast<double>(element);
  }
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

std::vector<double> sent(const Shape& shape, std::uint32_t rank, std::uint32_t round) {
  std::vector<double> numbers(sdk::send_elements(op_of(shape, rank), rank, shape.members));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = given(shape, rank, i, round);
  }
  return numbers;
}

std::vector<double> expected(const Shape& shape, std::uint32_t rank, std::uint32_t round) {
  const OpSpec own = op_of(shape, rank);
  std::vector<double> numbers(sdk::recv_elements(own, rank, shape.members));
  if (numbers.empty()) {
    return numbers;
  }
  const bool reduces = sdk::find_opcode(shape.opcode)->reduces;
  for (std::uint32_t member = 0; member < shape.members; ++member) {
    const OpSpec op = op_of(shape, member);
    const sdk::Block from = sdk::send_block(op, member, rank);
    const sdk::Block to = sdk::recv_block(own, rank, member);
    for (std::uint64_t i = 0; i < to.count; ++i) {
      const double value = given(shape, member, from.offset + i, round);
      double& result = numbers[to.offset + i];
      result = reduces && member != 0 ? reduced(shape.reduction, result, value) : value;
    }
  }
  if (shape.rounds) {
    std::vector<std::byte> rounded(numbers.size() * sdk::dtype_size(shape.dtype));
    write_elements(shape.dtype, numbers, rounded.data());
    return read_elements(shape.dtype, rounded.data(), numbers.size());
  }
  return numbers;
}

void write_elements(std::uint32_t dtype, const std::vector<double>& numbers, void* to) {
  with_type(dtype, [&](auto* type) {
    auto* elements = static_cast<decltype(type)>(to);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      elements[i] = element_of<std::remove_pointer_t<decltype(type)>>(numbers[i]);
    }
  });
}

std::vector<double> read_elements(std::uint32_t dtype, const void* from, std::size_t count) {
  std::vector<double> numbers(count);
  with_type(dtype, [&](auto* type) {
    const auto* elements = static_cast<const std::remove_pointer_t<decltype(type)>*>(from);
    for (std::size_t i = 0; i < count; ++i) {
      numbers[i] = number_of(elements[i]);
    }
  });
  return numbers;
}

}  // namespace shardrun::conformance
