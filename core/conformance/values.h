#pragma once

#include <shardrun/sdk/transport/op.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace shardrun::conformance {

/// A collective. These numbers determine the members' ops, data and results. Sums and products of the data are exact in
/// every dtype, unless `rounds` is set.
struct Shape {
  std::uint32_t opcode = SR_OP_ALL_REDUCE;
  std::uint32_t members = 1;
  std::uint64_t count = 0;  ///< for the V forms: roughly the count per member
  std::uint32_t dtype = SR_DTYPE_F32;
  std::uint32_t reduction = SR_REDUCE_SUM;
  std::uint32_t root = 0;
  bool with_nan = false;  ///< some elements of one member are NaN; each member in turn
  /// For sums and products of f16 and bf16: the data is such that these are exact in float32, but the result must be
  /// rounded. With more than two members, rounding at every member would give other numbers.
  bool rounds = false;
};

/// An all_reduce of `count` float32.
[[nodiscard]] inline Shape sum_of(std::uint64_t count, std::uint32_t members) {
  return {.opcode = SR_OP_ALL_REDUCE, .members = members, .count = count};
}

/// The op of member `rank`, without buffers. The V forms have uneven counts, some of them zero.
[[nodiscard]] sdk::OpSpec op_of(const Shape& shape, std::uint32_t rank);
/// The ops of all members.
[[nodiscard]] std::vector<sdk::OpSpec> ops_of(const Shape& shape);

/// Elements that differ from their expected values.
struct WrongElements {
  std::uint64_t count = 0;
  std::uint64_t first = 0;  ///< index of the first wrong element
  double found = 0;         ///< value of the first wrong element
  double expected = 0;
};

// The data of a round. `ops`: the ops of all members, either those of `shape` or others with its dtype, reduction and
// members.

/// Writes the data that member `rank` sends.
void write_sent(const Shape& shape, std::span<const sdk::OpSpec> ops, std::uint32_t rank, std::uint32_t round,
                void* to);
/// Compares a send buffer with what write_sent() wrote to it.
[[nodiscard]] WrongElements wrong_sent(const Shape& shape, std::span<const sdk::OpSpec> ops, std::uint32_t rank,
                                       std::uint32_t round, const void* found);
/// Compares what member `rank` received. `own`: its op, which differs from its op in `ops` if those are sends.
[[nodiscard]] WrongElements wrong_received(const Shape& shape, std::span<const sdk::OpSpec> ops, const sdk::OpSpec& own,
                                           std::uint32_t rank, std::uint32_t round, const void* found);

}  // namespace shardrun::conformance
