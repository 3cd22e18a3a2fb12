#include "transports/nccl/steps.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <shardrun/sdk/transport/op.hpp>
#include <utility>
#include <vector>

namespace shardrun::nccl_transport {
namespace {

using sdk::Block;
using sdk::OpSpec;
using Function = NcclCall::Function;

/// How an op is computed; see info_of.
enum class Method : std::uint8_t { nccl, keyed, in_order };

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

bool is_floating(std::uint32_t dtype) noexcept {
  return dtype == SR_DTYPE_F32 || dtype == SR_DTYPE_F64 || dtype == SR_DTYPE_F16 || dtype == SR_DTYPE_BF16;
}

/// Whether the host asks that floating-point numbers be reduced in the order of the members, and the order matters.
bool is_summed_in_order(const OpSpec& op, std::uint32_t n) {
  return sdk::find_opcode(op.opcode)->reduces && is_floating(op.dtype) && n > 2 &&
         (op.flags & SR_OP_FLAG_IN_ORDER) != 0;
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

/// Scratch bytes of an op whose method uses kernels, for the member that needs most.
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

/// The stages of an op whose method uses kernels.
std::vector<Stage> reduction_stages_of(const OpSpec& op, std::uint32_t rank, std::uint32_t n, Method method) {
  return method == Method::keyed ? keyed_stages_of(op, rank, n) : InOrder(op, rank, n).stages();
}

ncclDataType_t dtype_of(std::uint32_t dtype) noexcept {
  switch (dtype) {
    case SR_DTYPE_F32: return ncclFloat32;
    case SR_DTYPE_F64: return ncclFloat64;
    case SR_DTYPE_F16: return ncclFloat16;
    case SR_DTYPE_BF16: return ncclBfloat16;
    case SR_DTYPE_I8: return ncclInt8;
    case SR_DTYPE_I32: return ncclInt32;
    case SR_DTYPE_U32: return ncclUint32;
    case SR_DTYPE_I64: return ncclInt64;
    case SR_DTYPE_U64: return ncclUint64;
    default: return ncclUint8;
  }
}

std::uint64_t size_of(ncclDataType_t dtype) noexcept {
  switch (dtype) {
    case ncclFloat64:
    case ncclInt64:
    case ncclUint64: return 8;
    case ncclFloat32:
    case ncclInt32:
    case ncclUint32: return 4;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    default: return 1;
  }
}

ncclRedOp_t reduction_of(std::uint32_t reduction) noexcept {
  switch (reduction) {
    case SR_REDUCE_PRODUCT: return ncclProd;
    case SR_REDUCE_MIN: return ncclMin;
    case SR_REDUCE_MAX: return ncclMax;
    default: return ncclSum;
  }
}

/// Builds the calls of one op on one member.
class Builder {
 public:
  Builder(const sdk::OpSpec& op, std::uint32_t rank, std::uint32_t n, std::vector<NcclCall>& calls)
      : op_(op), rank_(rank), n_(n), calls_(calls) {}

  void add() {
    switch (op_.opcode) {
      case SR_OP_BROADCAST: return whole(Function::broadcast, op_.count, op_.peer);
      case SR_OP_REDUCE: return whole(Function::reduce, op_.count, op_.peer);
      case SR_OP_ALL_REDUCE: return whole(Function::all_reduce, op_.count, 0);
      case SR_OP_ALL_GATHER: return whole(Function::all_gather, op_.count, 0);
      case SR_OP_REDUCE_SCATTER: return whole(Function::reduce_scatter, op_.count, 0);
      case SR_OP_ALL_GATHERV:
        for (std::uint32_t root = 0; root < n_; ++root) {
          piece(Function::broadcast, {0, root == rank_ ? op_.recv_counts[root] : 0}, sdk::recv_block(op_, rank_, root),
                op_.recv_counts[root], root);
        }
        return;
      case SR_OP_REDUCE_SCATTERV:
        for (std::uint32_t root = 0; root < n_; ++root) {
          const sdk::Block block = sdk::send_block(op_, rank_, root);
          piece(Function::reduce, block, {0, root == rank_ ? block.count : 0}, block.count, root);
        }
        return;
      default: point_to_point();
    }
  }

 private:
  /// Adds a send to each member that gets a block, and a receive from each member that gives one. Messages, and
  /// collectives that NCCL lacks, are made of these.
  void point_to_point() {
    for (std::uint32_t peer = 0; peer < n_; ++peer) {
      const sdk::Block sent = sdk::send_block(op_, rank_, peer);
      const sdk::Block received = sdk::recv_block(op_, rank_, peer);
      piece(Function::send, sent, {}, sent.count, peer);
      piece(Function::recv, {}, received, received.count, peer);
    }
  }

  void whole(Function function, std::uint64_t count, std::uint32_t root) {
    piece(function, {0, sdk::send_elements(op_, rank_, n_)}, {0, sdk::recv_elements(op_, rank_, n_)}, count, root);
  }

  /// Adds a call for a piece. Skips blocks without elements, which have no address.
  void piece(Function function, const sdk::Block& from, const sdk::Block& to, std::uint64_t count, std::uint32_t peer) {
    if (count != 0) {
      calls_.push_back({.function = function,
                        .send = place(op_.send, from),
                        .recv = place(op_.recv, to),
                        .count = count,
                        .dtype = dtype_of(op_.dtype),
                        .reduction = reduction_of(op_.reduction),
                        .peer = static_cast<int>(peer)});
    }
  }

  [[nodiscard]] void* place(const std::optional<sdk::Buffer>& buffer, const sdk::Block& block) const {
    return block.count == 0 ? nullptr
                            : static_cast<std::byte*>(buffer->data) + block.offset * sdk::dtype_size(op_.dtype);
  }

  const sdk::OpSpec& op_;
  std::uint32_t rank_;
  std::uint32_t n_;
  std::vector<NcclCall>& calls_;
};

}  // namespace

std::optional<sdk::OpInfo> info_of(const sdk::OpSpec& op, std::uint32_t group_size, bool with_kernels) {
  const Method method = method_of(op, group_size, with_kernels);
  if (!with_kernels && (method == Method::keyed || is_summed_in_order(op, group_size))) {
    return std::nullopt;
  }
  const sdk::OpcodeTraits& traits = *sdk::find_opcode(op.opcode);
  const bool is_point_to_point = method == Method::in_order || !traits.collective || op.opcode == SR_OP_ALL_TO_ALL ||
                                 op.opcode == SR_OP_ALL_TO_ALLV || op.opcode == SR_OP_GATHER ||
                                 op.opcode == SR_OP_SCATTER;
  // Integers give the same bits in any order, and so do two numbers.
  const bool is_ordered = method != Method::nccl || !is_floating(op.dtype) || group_size <= 2;
  const bool is_rounded_once = method != Method::nccl || !sdk::has_wide_partials(op, group_size);
  return sdk::OpInfo{.flags = SR_OP_INFO_ASYNC | (is_point_to_point ? 0 : SR_OP_INFO_NATIVE) |
                              (!traits.reduces || is_ordered ? SR_OP_INFO_ORDERED : 0) |
                              (traits.reduces && is_ordered ? SR_OP_INFO_STEPWISE : 0) |
                              (traits.reduces && is_rounded_once ? SR_OP_INFO_ROUNDED_ONCE : 0),
                     .scratch_bytes = scratch_of(op, group_size, method)};
}

void add_calls(const sdk::OpSpec& op, std::uint32_t rank, std::uint32_t n, std::vector<NcclCall>& calls) {
  Builder(op, rank, n, calls).add();
}

std::vector<Stage> stages_of(std::span<const sdk::OpSpec> ops, std::uint32_t rank, std::uint32_t n, void* word,
                             bool with_kernels) {
  if (const Method method = method_of(ops[0], n, with_kernels); method != Method::nccl) {
    return reduction_stages_of(ops[0], rank, n, method);  // a collective is the only op
  }
  std::vector<const sdk::OpSpec*> by_id;
  for (const sdk::OpSpec& op : ops) {
    by_id.push_back(&op);
  }
  std::stable_sort(by_id.begin(), by_id.end(),
                   [](const sdk::OpSpec* a, const sdk::OpSpec* b) { return a->id < b->id; });
  std::vector<NcclCall> calls;
  for (const sdk::OpSpec* op : by_id) {
    if (op->opcode == SR_OP_BARRIER) {
      calls.push_back({.function = Function::all_reduce,
                       .send = word,
                       .recv = word,
                       .count = 1,
                       .dtype = ncclInt32,
                       .reduction = ncclSum});
    } else {
      add_calls(*op, rank, n, calls);
    }
  }
  return {{.calls = std::move(calls)}};
}

std::uint64_t wire_bytes_of(std::span<const Stage> stages, std::uint32_t rank, std::uint32_t n) {
  std::uint64_t bytes = 0;
  for (const Stage& stage : stages) {
    for (const NcclCall& call : stage.calls) {
      const std::uint64_t block = call.count * size_of(call.dtype);
      switch (call.function) {
        case Function::send: bytes += call.peer == static_cast<int>(rank) ? 0 : block; break;
        case Function::recv: break;
        case Function::broadcast:
        case Function::reduce: bytes += block * (n - 1) / n; break;
        case Function::all_reduce: bytes += 2 * block * (n - 1) / n; break;
        case Function::all_gather:
        case Function::reduce_scatter: bytes += block * (n - 1); break;
      }
    }
  }
  return bytes;
}

}  // namespace shardrun::nccl_transport
