#include "transports/gloo/connect.h"

#include <gloo/allgather.h>
#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/alltoallv.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/reduce.h>
#include <shardrun/sdk/transport/reduce.hpp>

#include <utility>
#include <vector>

namespace shardrun::gloo_transport {
namespace {

using sdk::OpSpec;

template <class Options>
Options options_of(const GlooCall& call) {
  Options options(call.context);
  options.setTag(call.tag);
  options.setTimeout(call.limit);
  return options;
}

template <class Options>
Options options_of_sum(const OpSpec& op, const GlooCall& call) {
  auto options = options_of<Options>(call);
  options.setMaxSegmentSize(call.segment_bytes);
  options.setReduceFunction(
      [reduction = sdk::find_reduction(op.dtype, op.reduction)](
          void* to, const void* a, const void* b, std::size_t count) { reduction(to, nullptr, a, b, count); });
  return options;
}

/// Sets the buffers of a collective. Gloo only learns the size of the elements. `send`: null if the op is in place.
template <class Options>
void set_buffers(Options& options, const OpSpec& op, void* send, std::uint64_t sent, void* recv,
                 std::uint64_t received) {
  const auto set = [&](auto element) {
    using Element = decltype(element);
    if (send != nullptr) {
      options.setInput(static_cast<Element*>(send), sent);
    }
    options.setOutput(static_cast<Element*>(recv), received);
  };
  switch (sdk::dtype_size(op.dtype)) {
    case 1: return set(std::uint8_t());
    case 2: return set(std::uint16_t());
    case 4: return set(std::uint32_t());
    default: return set(std::uint64_t());
  }
}

void gather_blocks(const OpSpec& op, const GlooCall& call, void* send, std::byte* recv, sdk::Block own) {
  const std::uint64_t size = sdk::dtype_size(op.dtype);
  send = own.count == 0 || send == recv + own.offset * size ? nullptr : send;
  if (op.opcode == SR_OP_ALL_GATHER) {
    auto options = options_of<gloo::AllgatherOptions>(call);
    set_buffers(options, op, send, op.count, recv, op.count * static_cast<std::uint64_t>(call.context->size));
    return gloo::allgather(options);
  }
  auto options = options_of<gloo::AllgathervOptions>(call);
  std::vector<std::size_t> bytes;
  for (const std::uint64_t count : op.recv_counts) {
    bytes.push_back(count * size);
  }
  if (send != nullptr) {
    options.setInput(static_cast<std::byte*>(send), own.count * size);
  }
  options.setOutput(recv, std::move(bytes));
  gloo::allgatherv(options);
}

void exchange_blocks(const OpSpec& op, const GlooCall& call, std::byte* send, std::byte* recv, std::uint32_t rank) {
  std::vector<std::int64_t> sent;
  std::vector<std::int64_t> received;
  for (std::uint32_t member = 0; member < static_cast<std::uint32_t>(call.context->size); ++member) {
    sent.push_back(static_cast<std::int64_t>(send_block(op, rank, member).count * sdk::dtype_size(op.dtype)));
    received.push_back(static_cast<std::int64_t>(recv_block(op, rank, member).count * sdk::dtype_size(op.dtype)));
  }
  auto options = options_of<gloo::AlltoallvOptions>(call);
  options.setInput(send, std::move(sent));
  options.setOutput(recv, std::move(received));
  gloo::alltoallv(options);
}

}  // namespace

bool gloo_has(const OpSpec& op, std::uint32_t n) {
  switch (op.opcode) {
    case SR_OP_ALL_REDUCE:
    case SR_OP_REDUCE:
    case SR_OP_BROADCAST:
    case SR_OP_ALL_GATHER:
    case SR_OP_ALL_TO_ALL:
      // Some of Gloo's collectives divide by the count. Its rings round f16 and bf16 at each hop.
      return op.count != 0 && !has_wide_partials(op, n);
    // Gloo's reduce_scatter ignores deadlines. Its gather and scatter are no better than the SDK's.
    case SR_OP_REDUCE_SCATTER:
    case SR_OP_REDUCE_SCATTERV:
    case SR_OP_GATHER:
    case SR_OP_SCATTER: return false;
    default: return true;
  }
}

void run_by_gloo(const OpSpec& op, const GlooCall& call) {
  const auto rank = static_cast<std::uint32_t>(call.context->rank);
  const bool is_root = rank == op.peer;
  void* const send = op.send ? op.send->data : nullptr;
  void* const recv = op.recv ? op.recv->data : nullptr;
  switch (op.opcode) {
    case SR_OP_BARRIER: {
      auto options = options_of<gloo::BarrierOptions>(call);
      return gloo::barrier(options);
    }
    case SR_OP_BROADCAST: {
      auto options = options_of<gloo::BroadcastOptions>(call);
      options.setRoot(static_cast<int>(op.peer));
      set_buffers(options, op, is_root && send != recv ? send : nullptr, op.count, recv, op.count);
      return gloo::broadcast(options);
    }
    case SR_OP_REDUCE: {
      void* const to = is_root ? recv : op.scratch->data;
      auto options = options_of_sum<gloo::ReduceOptions>(op, call);
      options.setRoot(static_cast<int>(op.peer));
      set_buffers(options, op, send != to ? send : nullptr, op.count, to, op.count);
      return gloo::reduce(options);
    }
    case SR_OP_ALL_REDUCE: {
      auto options = options_of_sum<gloo::AllreduceOptions>(op, call);
      set_buffers(options, op, send != recv ? send : nullptr, op.count, recv, op.count);
      return gloo::allreduce(options);
    }
    case SR_OP_ALL_GATHER:
    case SR_OP_ALL_GATHERV:
      return gather_blocks(op, call, send, static_cast<std::byte*>(recv), recv_block(op, rank, rank));
    default: return exchange_blocks(op, call, static_cast<std::byte*>(send), static_cast<std::byte*>(recv), rank);
  }
}

}  // namespace shardrun::gloo_transport
