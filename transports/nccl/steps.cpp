#include "transports/nccl/steps.h"

#include <algorithm>
#include <utility>

#include "transports/nccl/reductions.h"

namespace shardrun::nccl_transport {
namespace {

using Function = NcclCall::Function;

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
  /// Adds a send to each member, and a receive from each, that has a block: for messages, and for collectives that
  /// NCCL lacks.
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
