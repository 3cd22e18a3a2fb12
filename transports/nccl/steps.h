#pragma once

#include <nccl.h>

#include <shardrun/sdk/op.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace shardrun::nccl {

/// One call of NCCL. All steps of an op are issued as one NCCL group.
struct NcclCall {
  enum class Function { send, recv, broadcast, reduce, all_reduce, all_gather, reduce_scatter };

  Function function = Function::send;
  const void* send = nullptr;
  void* recv = nullptr;
  std::size_t count = 0;  ///< as NCCL counts it: for functions with blocks, of one block
  ncclDataType_t dtype = ncclUint8;
  ncclRedOp_t reduction = ncclSum;
  int peer = 0;  ///< or root
};

/// Nothing where NCCL has no such op: it drops NaN in the minimum and maximum of floating-point numbers.
[[nodiscard]] std::optional<sdk::OpInfo> info_of(const sdk::OpSpec& op, std::uint32_t group_size);

/// The steps of member `rank` of n. `word`: four bytes of device memory for a barrier. Empty pieces are left out, on
/// all members alike. Sends and receives between two members are in the order of their ids on both. REQUIRES:
/// sdk::validate(ops, rank, n) passed, and info_of has each op.
[[nodiscard]] std::vector<NcclCall> steps_of(std::span<const sdk::OpSpec> ops, std::uint32_t rank, std::uint32_t n,
                                             void* word);

/// Bytes that the member sends to others, as ring algorithms would: NCCL does not report it.
[[nodiscard]] std::uint64_t wire_bytes_of(std::span<const NcclCall> steps, std::uint32_t rank, std::uint32_t n);

}  // namespace shardrun::nccl
