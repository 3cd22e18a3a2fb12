#pragma once

#include <nccl.h>

#include <shardrun/sdk/transport/op.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "transports/nccl/kernels.h"

namespace shardrun::nccl_transport {

/// One call of NCCL.
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

/// Given to a stream at once: calls that are one NCCL group, or a kernel.
struct Stage {
  std::vector<NcclCall> calls = {};
  std::optional<KernelCall> kernel = {};
};

/// Nothing if the op is not offered. `with_kernels`: has_kernels().
///
/// - Minima and maxima of floating-point numbers are made of integers in the same order, because NCCL drops NaN. They
///   need kernels.
/// - Ordered sums and products, and sums and products of more than two f16 or bf16: every member gets its part of all
///   members, reduces it by a kernel in float32, and the results are gathered. Without kernels NCCL reduces them, in an
///   order of its own and with roundings on the way.
/// - NCCL does all others.
[[nodiscard]] std::optional<sdk::OpInfo> info_of(const sdk::OpSpec& op, std::uint32_t group_size, bool with_kernels);

/// The stages of member `rank` of n. `word`: four bytes of device memory for a barrier. Empty pieces are left out, on
/// all members alike. Sends and receives between two members are in the order of their ids on both. REQUIRES:
/// sdk::validate(ops, rank, n) passed, info_of has each op, and each has the scratch that it asks for.
[[nodiscard]] std::vector<Stage> stages_of(std::span<const sdk::OpSpec> ops, std::uint32_t rank, std::uint32_t n,
                                           void* word, bool with_kernels);

/// NCCL's calls for an op.
void add_calls(const sdk::OpSpec& op, std::uint32_t rank, std::uint32_t n, std::vector<NcclCall>& calls);

/// Bytes that the member sends to others, as ring algorithms would: NCCL does not report it.
[[nodiscard]] std::uint64_t wire_bytes_of(std::span<const Stage> stages, std::uint32_t rank, std::uint32_t n);

}  // namespace shardrun::nccl_transport
