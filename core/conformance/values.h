#pragma once

#include <shardrun/sdk/transport/op.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace shardrun::conformance {

/// The numbers that determine a collective: the ops of its members, their data and the results. Sums and products of
/// the data are exact in every dtype, unless `rounds` is set.
struct Shape {
  std::uint32_t opcode = SR_OP_ALL_REDUCE;
  std::uint32_t members = 1;
  std::uint64_t count = 0;  ///< elements; for the V forms, roughly those per member
  std::uint32_t dtype = SR_DTYPE_F32;
  std::uint32_t reduction = SR_REDUCE_SUM;
  std::uint32_t root = 0;
  bool with_nan = false;  ///< whether some elements are NaN, each on one member
  /// Whether f16 or bf16 results need rounding. The data then makes sums and products exact in float32 only. With more
  /// than two members, rounding at every member would give other results.
  bool rounds = false;
};

/// An all_reduce of `count` float32.
[[nodiscard]] inline Shape sum_of(std::uint64_t count, std::uint32_t members) {
  return {.opcode = SR_OP_ALL_REDUCE, .members = members, .count = count};
}

/// The op of member `rank`, without buffers. The V forms have different counts for members, some of them zero.
[[nodiscard]] sdk::OpSpec op_of(const Shape& shape, std::uint32_t rank);
/// The ops of all members, in their order.
[[nodiscard]] std::vector<sdk::OpSpec> ops_of(const Shape& shape);

/// Counts the elements that differ from their expected values.
struct WrongElements {
  std::uint64_t count = 0;
  std::uint64_t first = 0;  ///< index of the first wrong element
  double found = 0;         ///< value of the first wrong element
  double expected = 0;
};

// Functions on the data of a round. `ops`: the ops of all members, either those of `shape` or others with the same
// dtype, reduction and members.

/// Writes the data that member `rank` sends in this round.
void write_sent(const Shape& shape, std::span<const sdk::OpSpec> ops, std::uint32_t rank, std::uint32_t round,
                void* to);
/// Compares a send buffer with the data that write_sent() writes.
[[nodiscard]] WrongElements wrong_sent(const Shape& shape, std::span<const sdk::OpSpec> ops, std::uint32_t rank,
                                       std::uint32_t round, const void* found);
/// Compares what member `rank` received with the expected result. `own`: its op, which is a receive if `ops` are sends.
[[nodiscard]] WrongElements wrong_received(const Shape& shape, std::span<const sdk::OpSpec> ops, const sdk::OpSpec& own,
                                           std::uint32_t rank, std::uint32_t round, const void* found);

}  // namespace shardrun::conformance
