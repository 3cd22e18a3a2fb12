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
  std::size_t count = 0;  ///< as NCCL counts it: for functions with blocks, the elements of one block
  ncclDataType_t dtype = ncclUint8;
  ncclRedOp_t reduction = ncclSum;
  int peer = 0;  ///< the peer, or the root
};

/// Work given to a stream at once: calls that are one NCCL group, or a kernel.
struct Stage {
  std::vector<NcclCall> calls = {};
  std::optional<KernelCall> kernel = {};
};

/// Says how the transport offers an op. Nothing if it does not offer the op. `with_kernels`: has_kernels().
///
/// - Minima and maxima of floating-point numbers are computed as integers in the same order, because NCCL drops NaN.
///   They need kernels.
/// - Sums and products over more than two members, if they are ordered or of f16 or bf16: every member gets its part
///   from all members, reduces it with a kernel, and the results are gathered. f16 and bf16 are reduced in float32.
///   Without kernels, ordered ones are not offered, and NCCL rounds those of f16 and bf16 on the way.
/// - NCCL does all others.
[[nodiscard]] std::optional<sdk::OpInfo> info_of(const sdk::OpSpec& op, std::uint32_t group_size, bool with_kernels);

/// The stages of member `rank` of n. `word`: four bytes of device memory for a barrier. Empty pieces are left out on
/// all members alike. Sends and receives between two members are in the order of their ids on both. REQUIRES:
/// sdk::validate(ops, rank, n) passed, info_of offers each op, and each op has the scratch that info_of asks for.
[[nodiscard]] std::vector<Stage> stages_of(std::span<const sdk::OpSpec> ops, std::uint32_t rank, std::uint32_t n,
                                           void* word, bool with_kernels);

/// Adds NCCL's calls for an op.
void add_calls(const sdk::OpSpec& op, std::uint32_t rank, std::uint32_t n, std::vector<NcclCall>& calls);

/// Bytes that the member sends to others if ring algorithms are used; NCCL does not report them.
[[nodiscard]] std::uint64_t wire_bytes_of(std::span<const Stage> stages, std::uint32_t rank, std::uint32_t n);

}  // namespace shardrun::nccl_transport
