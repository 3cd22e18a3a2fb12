#include <algorithm>
#include <cstddef>
#include <map>
#include <tuple>
#include <vector>

#include "transports/mpi/group.h"

namespace shardrun::mpi_transport {
namespace {

using sdk::OpSpec;

/// The largest message, in bytes. A count of MPI is an int.
constexpr std::uint64_t most_bytes = std::uint64_t{1} << 30U;

/// The tag that matches a send with its receive. It is made from the id and the index among transfers with that id.
/// Small ids have unique tags in the lower half of MPI's tags. Larger ids share the upper half, where two may get the
/// same tag. Those still match: MPI keeps messages of one tag in order, and both sides start them in one order.
int tag_of(std::uint64_t id, std::uint64_t index) {
  constexpr std::uint64_t indices = 64;
  const auto largest = static_cast<std::uint64_t>(Library::instance().largest_tag());
  const std::uint64_t half = largest / 2;
  if (id < (half - first_batch_tag) / indices && index < indices) {
    return static_cast<int>(first_batch_tag + id * indices + index);
  }
  const std::uint64_t mixed = (id * 0x9E3779B97F4A7C15U) ^ (index * 0xC2B2AE3D27D4EB4FU);
  return static_cast<int>(half + (mixed >> 33U) % (largest - half + 1));
}

struct PeerTransfer {
  std::uint32_t peer = 0;
  bool sends = false;
  int tag = 0;
  std::uint64_t id = 0;
  std::uint64_t index = 0;
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  Peer other;  ///< the member `peer`, for messages
};

std::string what_of(std::span<const OpSpec> ops) {
  const std::string first = describe(ops[0]);
  return ops.size() == 1 ? first : first + " and " + std::to_string(ops.size() - 1) + " more";
}

class BatchOp final : public MpiOp {
 public:
  BatchOp(MpiGroup& group, std::span<const OpSpec> ops) : MpiOp(group, what_of(ops), false) {
    std::map<std::tuple<std::uint32_t, bool, std::uint64_t>, std::uint64_t> indices;
    for (const OpSpec& op : ops) {
      const bool sends = op.opcode == SR_OP_SEND;
      const std::uint64_t index = indices[{op.peer, sends, op.id}]++;
      if (op.count != 0) {
        transfers_.push_back({.peer = op.peer,
                              .sends = sends,
                              .tag = tag_of(op.id, index),
                              .id = op.id,
                              .index = index,
                              .data = static_cast<std::byte*>(sends ? op.send->data : op.recv->data),
                              .bytes = op.count * sdk::dtype_size(op.dtype),
                              .other = group.peer(op.peer)});
      }
    }
    // Sorts the transfers, so that those with one tag have the same order on both sides, whatever the caller's order.
    std::sort(transfers_.begin(), transfers_.end(), [](const PeerTransfer& a, const PeerTransfer& b) {
      return std::tie(a.sends, a.peer, a.tag, a.id, a.index) < std::tie(b.sends, b.peer, b.tag, b.id, b.index);
    });
  }

 private:
  void launch(Requests& requests) override {
    for (const PeerTransfer& transfer : transfers_) {
      for (std::uint64_t at = 0; at < transfer.bytes; at += most_bytes) {
        const int bytes = static_cast<int>(std::min(most_bytes, transfer.bytes - at));
        MPI_Request& request = requests.add(transfer.other);
        const int peer = static_cast<int>(transfer.peer);
        Library::check(
            transfer.sends
                ? MPI_Isend(transfer.data + at, bytes, MPI_BYTE, peer, transfer.tag, group().comm(), &request)
                : MPI_Irecv(transfer.data + at, bytes, MPI_BYTE, peer, transfer.tag, group().comm(), &request),
            transfer.sends ? "MPI_Isend" : "MPI_Irecv");
      }
      group().count(transfer.sends ? transfer.bytes : 0);
    }
  }

  std::vector<PeerTransfer> transfers_;
};

}  // namespace

std::unique_ptr<sdk::Op> make_batch(MpiGroup& group, std::span<const OpSpec> ops) {
  return std::make_unique<BatchOp>(group, ops);
}

}  // namespace shardrun::mpi_transport
