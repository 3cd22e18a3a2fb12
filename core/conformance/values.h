#pragma once

#include <shardrun/sdk/op.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace shardrun::conformance {

/// A collective. The members' ops, data and results all follow from these numbers. Sums and products of the data are
/// exact in every dtype, unless `rounds`.
struct Shape {
  std::uint32_t opcode = SR_OP_ALL_REDUCE;
  std::uint32_t members = 1;
  std::uint64_t count = 0;  ///< for the V forms: about what a member gets
  std::uint32_t dtype = SR_DTYPE_F32;
  std::uint32_t reduction = SR_REDUCE_SUM;
  std::uint32_t root = 0;
  bool with_nan = false;  ///< one member has some NaN elements, each member in turn
  /// For sums and products of f16 and bf16: they are exact in float32, and the result has to be rounded. Rounding them
  /// at every member gives other numbers, except among two.
  bool rounds = false;
};

/// An all_reduce of that many float32.
[[nodiscard]] inline Shape sum_of(std::uint64_t count, std::uint32_t members) {
  return {.opcode = SR_OP_ALL_REDUCE, .members = members, .count = count};
}

/// The op of member `rank`, without buffers. The V forms have uneven counts, some of them zero.
[[nodiscard]] sdk::OpSpec op_of(const Shape& shape, std::uint32_t rank);

/// The data that the member sends in a round, and the data that it must receive.
[[nodiscard]] std::vector<double> sent(const Shape& shape, std::uint32_t rank, std::uint32_t round);
[[nodiscard]] std::vector<double> expected(const Shape& shape, std::uint32_t rank, std::uint32_t round);

/// Converts numbers to elements of a dtype that can represent them, and back.
void write_elements(std::uint32_t dtype, const std::vector<double>& numbers, void* to);
[[nodiscard]] std::vector<double> read_elements(std::uint32_t dtype, const void* from, std::size_t count);

}  // namespace shardrun::conformance
