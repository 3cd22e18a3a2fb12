#include "transports/nccl/reductions.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace shardrun::nccl_transport {
namespace {

using sdk::Block;
using sdk::OpSpec;

std::uint32_t key_dtype_of(std::uint32_t dtype) noexcept { return dtype == SR_DTYPE_F64 ? SR_DTYPE_I64 : SR_DTYPE_I32; }

/// The part of the op's elements that a member reduces: its block of a reduce_scatter, else an even share.
Block part_of(const OpSpec& op, std::uint32_t n, std::uint32_t member) {
  if (op.opcode == SR_OP_REDUCE_SCATTER || op.opcode == SR_OP_REDUCE_SCATTERV) {
    return sdk::send_block(op, 0, member);
  }
  const std::uint64_t each = op.count / n;
  const std::uint64_t more = op.count % n;  // the first parts have one element more
  return {.offset = each * member + std::min<std::uint64_t>(member, more), .count = each + (member < more ? 1 : 0)};
}

/// Elements from an address on, for use as a buffer of calls.
class Elements {
 public:
  Elements(void* base, std::uint64_t element_bytes) : base_(static_cast<std::byte*>(base)), bytes_(element_bytes) {}
  [[nodiscard]] void* at(std::uint64_t element) const { return base_ + element * bytes_; }

 private:
  std::byte* base_;
  std::uint64_t bytes_;
};

void* address_of(const std::optional<sdk::Buffer>& buffer) { return buffer ? buffer->data : nullptr; }

OpSpec between_two(std::uint32_t opcode, const OpSpec& op, std::uint32_t peer, void* at, std::uint64_t count) {
  OpSpec made{.opcode = opcode, .dtype = op.dtype, .peer = peer, .count = count};
  (opcode == SR_OP_SEND ? made.send : made.recv) =
      sdk::Buffer{.data = at, .bytes = count * sdk::dtype_size(op.dtype), .kind = SR_MEMORY_CUDA};
  return made;
}

class InOrder {
 public:
  InOrder(const OpSpec& op, std::uint32_t rank, std::uint32_t n)
      : op_(op),
        rank_(rank),
        n_(n),
        own_(part_of(op, n, rank)),
        send_(address_of(op.send), sdk::dtype_size(op.dtype)),
        recv_(address_of(op.recv), sdk::dtype_size(op.dtype)),
        scratch_(address_of(op.scratch), sdk::dtype_size(op.dtype)) {}

  [[nodiscard]] std::vector<Stage> stages() const {
    std::vector<Stage> stages;
    stages.push_back({.calls = exchange()});
    if (own_.count != 0) {
      stages.push_back({.kernel = reduction()});
    }
    stages.push_back({.calls = op_.opcode == SR_OP_ALL_REDUCE ? gather_at_all()
                               : op_.opcode == SR_OP_REDUCE   ? gather_at_root()
                                                              : std::vector<NcclCall>()});
    return stages;
  }

 private:
  void add(std::vector<NcclCall>& calls, std::uint32_t opcode, std::uint32_t peer, void* at,
           std::uint64_t count) const {
    if (peer != rank_) {
      add_calls(between_two(opcode, op_, peer, at, count), rank_, n_, calls);
    }
  }

  [[nodiscard]] std::vector<NcclCall> exchange() const {
    std::vector<NcclCall> calls;
    for (std::uint32_t peer = 0; peer < n_; ++peer) {
      const Block part = part_of(op_, n_, peer);
      add(calls, SR_OP_SEND, peer, send_.at(part.offset), part.count);
      add(calls, SR_OP_RECV, peer, scratch_.at((peer < rank_ ? peer : peer - 1) * own_.count), own_.count);
    }
    return calls;
  }

  /// Where the member's reduced part is stored.
  [[nodiscard]] void* result() const {
    if (op_.opcode == SR_OP_ALL_REDUCE || (op_.opcode == SR_OP_REDUCE && rank_ == op_.peer)) {
      return recv_.at(own_.offset);
    }
    return op_.opcode == SR_OP_REDUCE ? scratch_.at((n_ - 1) * own_.count) : recv_.at(0);
  }

  [[nodiscard]] KernelCall reduction() const {
    return {.function = op_.reduction == SR_REDUCE_SUM ? KernelFunction::sum : KernelFunction::product,
            .dtype = op_.dtype,
            .arguments = kernels::Reduction{.parts = scratch_.at(0),
                                            .own_part = send_.at(own_.offset),
                                            .to = result(),
                                            .count = own_.count,
                                            .members = n_,
                                            .own = rank_}};
  }

  [[nodiscard]] std::vector<NcclCall> gather_at_all() const {
    OpSpec gather{.opcode = SR_OP_ALL_GATHERV, .dtype = op_.dtype};
    for (std::uint32_t member = 0; member < n_; ++member) {
      gather.recv_counts.push_back(part_of(op_, n_, member).count);
    }
    if (op_.count % n_ == 0) {
      gather.opcode = SR_OP_ALL_GATHER;
      gather.count = own_.count;
    }
    gather.send = op_.recv;
    gather.send->data = result();
    gather.recv = op_.recv;
    std::vector<NcclCall> calls;
    add_calls(gather, rank_, n_, calls);
    return calls;
  }

  [[nodiscard]] std::vector<NcclCall> gather_at_root() const {
    std::vector<NcclCall> calls;
    if (rank_ != op_.peer) {
      add(calls, SR_OP_SEND, op_.peer, result(), own_.count);
      return calls;
    }
    for (std::uint32_t peer = 0; peer < n_; ++peer) {
      const Block part = part_of(op_, n_, peer);
      add(calls, SR_OP_RECV, peer, recv_.at(part.offset), part.count);
    }
    return calls;
  }

  const OpSpec& op_;
  std::uint32_t rank_;
  std::uint32_t n_;
  Block own_;
  Elements send_;
  Elements recv_;
  Elements scratch_;
};

/// Runs the op on integers in scratch: one kernel converts the numbers that are sent, another one converts the result
/// back to numbers.
std::vector<Stage> keyed_stages_of(const OpSpec& op, std::uint32_t rank, std::uint32_t n) {
  OpSpec keyed = op;
  keyed.dtype = key_dtype_of(op.dtype);
  const Elements keys(op.scratch->data, sdk::dtype_size(keyed.dtype));
  const std::uint64_t sent = sdk::send_elements(op, rank, n);
  const std::uint64_t received = sdk::recv_elements(op, rank, n);
  const bool scatters = op.opcode == SR_OP_REDUCE_SCATTER || op.opcode == SR_OP_REDUCE_SCATTERV;
  void* const result = keys.at(scatters ? part_of(op, n, rank).offset : 0);
  keyed.send = sdk::Buffer{.data = keys.at(0)};
  keyed.recv = sdk::Buffer{.data = result};
  const auto kernel = [&](KernelFunction function, const void* from, void* to, std::uint64_t count) {
    return Stage{.kernel = KernelCall{
                     .function = function,
                     .dtype = op.dtype,
                     .arguments = kernels::Keying{
                         .from = from, .to = to, .count = count, .is_least = op.reduction == SR_REDUCE_MIN ? 1U : 0U}}};
  };
  std::vector<Stage> stages;
  if (sent != 0) {
    stages.push_back(kernel(KernelFunction::to_keys, op.send->data, keys.at(0), sent));
  }
  Stage& between = stages.emplace_back();
  add_calls(keyed, rank, n, between.calls);
  if (received != 0) {
    stages.push_back(kernel(KernelFunction::to_numbers, result, op.recv->data, received));
  }
  return stages;
}

}  // namespace

bool is_floating(std::uint32_t dtype) noexcept {
  return dtype == SR_DTYPE_F32 || dtype == SR_DTYPE_F64 || dtype == SR_DTYPE_F16 || dtype == SR_DTYPE_BF16;
}

Method method_of(const OpSpec& op, std::uint32_t n, bool with_kernels) {
  if (!sdk::find_opcode(op.opcode)->reduces || !is_floating(op.dtype) || n == 1) {
    return Method::nccl;
  }
  if (op.reduction == SR_REDUCE_MIN || op.reduction == SR_REDUCE_MAX) {
    return Method::keyed;
  }
  const bool is_asked = is_summed_in_order(op, n) || sdk::has_wide_partials(op, n);
  return with_kernels && n > 2 && is_asked ? Method::in_order : Method::nccl;
}

bool is_summed_in_order(const OpSpec& op, std::uint32_t n) {
  return sdk::find_opcode(op.opcode)->reduces && is_floating(op.dtype) && n > 2 &&
         (op.flags & SR_OP_FLAG_IN_ORDER) != 0;
}

std::uint64_t scratch_of(const OpSpec& op, std::uint32_t n, Method method) {
  if (method == Method::nccl) {
    return 0;
  }
  if (method == Method::keyed) {
    return sdk::send_elements(op, 0, n) * sdk::dtype_size(key_dtype_of(op.dtype));
  }
  std::uint64_t most = 0;
  for (std::uint32_t member = 0; member < n; ++member) {
    most = std::max(most, part_of(op, n, member).count);
  }
  const std::uint32_t parts = op.opcode == SR_OP_REDUCE ? n : n - 1;  // a reduce also needs a place for the result
  return most * parts * sdk::dtype_size(op.dtype);
}

std::vector<Stage> reduction_stages_of(const OpSpec& op, std::uint32_t rank, std::uint32_t n, Method method) {
  return method == Method::keyed ? keyed_stages_of(op, rank, n) : InOrder(op, rank, n).stages();
}

}  // namespace shardrun::nccl_transport
