#include "plugins/conformance/values.h"

#include <shardrun/sdk/reduce.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

namespace shardrun::conformance {
namespace {

using sdk::OpSpec;

/// Number of elements that member `from` sends to member `to` in an ALL_TO_ALLV.
std::uint64_t exchanged(const Shape& shape, std::uint32_t from, std::uint32_t to) {
  return shape.count == 0 || (from * 2 + to) % 3 == 2 ? 0 : shape.count / 2 + from + 2 * to + 1;
}

std::uint64_t uneven(const Shape& shape, std::uint32_t member) {
  return shape.count == 0 || member % 3 == 1 ? 0 : shape.count + 3 * member;
}

/// Element `index` of what `member` sends: small, and different from its neighbours.
double given(const Shape& shape, std::uint32_t member, std::uint64_t index, std::uint32_t round) {
  if (shape.with_nan && (index + round) % (shape.members + 1) == member) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const std::uint32_t mixed =
      (static_cast<std::uint32_t>(index) * 2654435761U + member * 0x9E3779B9U + round * 0x85EBCA6BU) >> 27U;
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

/// Calls `act` with a null pointer to the dtype's element type, and with functions that convert numbers to it and back.
template <class Act>
void with_type(std::uint32_t dtype, Act act) {
  using namespace sdk::detail;
  const auto plain = [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    act(
        type, [](double number) { return static_cast<T>(number); }, [](T value) { return static_cast<double>(value); });
  };
  switch (dtype) {
    case SR_DTYPE_F32: return plain(static_cast<float*>(nullptr));
    case SR_DTYPE_F64: return plain(static_cast<double*>(nullptr));
    case SR_DTYPE_I8: return plain(static_cast<std::int8_t*>(nullptr));
    case SR_DTYPE_U8: return plain(static_cast<std::uint8_t*>(nullptr));
    case SR_DTYPE_I32: return plain(static_cast<std::int32_t*>(nullptr));
    case SR_DTYPE_U32: return plain(static_cast<std::uint32_t*>(nullptr));
    case SR_DTYPE_I64: return plain(static_cast<std::int64_t*>(nullptr));
    case SR_DTYPE_U64: return plain(static_cast<std::uint64_t*>(nullptr));
    case SR_DTYPE_F16:
      return act(
          static_cast<Half*>(nullptr), [](double number) { return narrow_to_half(static_cast<float>(number)); },
          [](Half value) { return static_cast<double>(widen(value)); });
    default:
      return act(
          static_cast<Bfloat*>(nullptr), [](double number) { return narrow_to_bfloat(static_cast<float>(number)); },
          [](Bfloat value) { return static_cast<double>(widen(value)); });
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
  return numbers;
}

void write_elements(std::uint32_t dtype, const std::vector<double>& numbers, void* to) {
  with_type(dtype, [&](auto* type, auto make, auto) {
    auto* elements = static_cast<decltype(type)>(to);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      elements[i] = make(numbers[i]);
    }
  });
}

std::vector<double> read_elements(std::uint32_t dtype, const void* from, std::size_t count) {
  std::vector<double> numbers(count);
  with_type(dtype, [&](auto* type, auto, auto read) {
    const auto* elements = static_cast<const std::remove_pointer_t<decltype(type)>*>(from);
    for (std::size_t i = 0; i < count; ++i) {
      numbers[i] = read(elements[i]);
    }
  });
  return numbers;
}

}  // namespace shardrun::conformance
