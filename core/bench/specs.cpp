#include "core/bench/specs.h"

namespace shardrun::bench {
namespace {

/// Block `index` of n that together have `total` elements: in proportion to index + 1.
std::uint64_t growing(std::uint64_t total, std::uint64_t index, std::uint64_t n) {
  const std::uint64_t parts = n * (n + 1) / 2;
  const auto begin = [&](std::uint64_t i) {
    const std::uint64_t weight = i * (i + 1) / 2;
    return total / parts * weight + total % parts * weight / parts;
  };
  return begin(index + 1) - begin(index);
}

}  // namespace

std::vector<sdk::OpSpec> specs_of(const Case& each, std::uint32_t members, std::uint32_t rank) {
  sdk::OpSpec op = {.opcode = each.opcode, .dtype = each.dtype, .reduction = each.reduction, .count = each.count};
  if (each.opcode == SR_OP_SEND) {
    op.peer = (rank + 1) % members;
    sdk::OpSpec receive = op;
    receive.opcode = SR_OP_RECV;
    receive.peer = (rank + members - 1) % members;
    return {op, receive};
  }
  const sdk::OpcodeTraits& traits = *sdk::find_opcode(each.opcode);
  const std::uint64_t total = each.count * members;
  for (std::uint32_t i = 0; i < members && traits.has_recv_counts; ++i) {
    op.count = 0;
    if (traits.has_send_counts) {
      op.send_counts.push_back(growing(total, (rank + i) % members, members));
      op.recv_counts.push_back(op.send_counts.back());
    } else {
      op.recv_counts.push_back(growing(total, i, members));
    }
  }
  return {op};
}

}  // namespace shardrun::bench
