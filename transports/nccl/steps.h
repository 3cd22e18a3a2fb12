#pragma once

#include <nccl.h>

#include <shardrun/sdk/op.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace shardrun::nccl {

/// One call of NCCL. All of an op's are issued as one group.
struct Step {
  enum class Call { send, recv, broadcast, reduce, all_reduce, all_gather, reduce_scatter };

  Call call = Call::send;
  const void* send = nullptr;
  void* recv = nullptr;
  std::size_t count = 0;  ///< as the call has it: of a block where there are several
  ncclDataType_t dtype = ncclUint8;
  ncclRedOp_t reduction = ncclSum;
  int peer = 0;  ///< or root
};

/// Nothing where NCCL has no such op: the minimum and maximum of floating-point numbers, of which it drops NaN.
[[nodiscard]] std::optional<sdk::OpInfo> info_of(const sdk::OpSpec& op, std::uint32_t group_size);

/// What member `rank` of n calls. `word`: four bytes of the device for a barrier. Empty pieces are left out, which all
/// members do alike; sends and receives of two members stand in the order of their ids on both.
/// REQUIRES: sdk::validate(ops, rank, n) passed, and the ops are offered.
[[nodiscard]] std::vector<Step> steps_of(std::span<const sdk::OpSpec> ops, std::uint32_t rank, std::uint32_t n,
                                         void* word);

/// What they give to others, reckoned as by rings: NCCL does not tell.
[[nodiscard]] std::uint64_t wire_bytes_of(std::span<const Step> steps, std::uint32_t rank, std::uint32_t n);

}  // namespace shardrun::nccl
