#include <algorithm>
#include <cstddef>
#include <map>
#include <tuple>
#include <vector>

#include "transports/mpi/group.h"

namespace shardrun::mpi_transport {
namespace {

using sdk::OpSpec;

/// A count of MPI is an int.
constexpr std::uint64_t most_bytes = std::uint64_t{1} << 30U;

/// A send and a receive find each other by their id and their place among those with that id: that is their tag, where
/// it fits into the lower half of those that MPI has. Others share the upper half, where two may have one tag: MPI
/// keeps messages of one tag in order, so those find each other because both sides start them in the same.
int tag_of(std::uint64_t id, std::uint64_t place) {
  constexpr std::uint64_t places = 64;
  const auto largest = static_cast<std::uint64_t>(Library::instance().largest_tag());
  const std::uint64_t half = largest / 2;
  if (id < (half - first_batch_tag) / places && place < places) {
    return static_cast<int>(first_batch_tag + id * places + place);
  }
  const std::uint64_t mixed = (id * 0x9E3779B97F4A7C15U) ^ (place * 0xC2B2AE3D27D4EB4FU);
  return static_cast<int>(half + (mixed >> 33U) % (largest - half + 1));
}

struct Transfer {
  std::uint32_t peer = 0;
  bool sends = false;
  int tag = 0;
  std::uint64_t id = 0;
  std::uint64_t place = 0;
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  Peer other;  ///< the same as `peer`
};

std::string what_of(std::span<const OpSpec> ops) {
  const std::string first = describe(ops[0]);
  return ops.size() == 1 ? first : first + " and " + std::to_string(ops.size() - 1) + " more";
}

class BatchOp final : public MpiOp {
 public:
  BatchOp(MpiGroup& group, std::span<const OpSpec> ops) : MpiOp(group, what_of(ops), false) {
    std::map<std::tuple<std::uint32_t, bool, std::uint64_t>, std::uint64_t> places;
    for (const OpSpec& op : ops) {
      const bool sends = op.opcode == SR_OP_SEND;
      const std::uint64_t place = places[{op.peer, sends, op.id}]++;
      if (op.count != 0) {
        transfers_.push_back({.peer = op.peer,
                              .sends = sends,
                              .tag = tag_of(op.id, place),
                              .id = op.id,
                              .place = place,
                              .data = static_cast<std::byte*>(sends ? op.send->data : op.recv->data),
                              .bytes = op.count * sdk::dtype_size(op.dtype),
                              .other = group.peer(op.peer)});
      }
    }
    // Where ids share a tag both sides have them in one order, whatever order they were given in.
    std::sort(transfers_.begin(), transfers_.end(), [](const Transfer& a, const Transfer& b) {
      return std::tie(a.sends, a.peer, a.tag, a.id, a.place) < std::tie(b.sends, b.peer, b.tag, b.id, b.place);
    });
  }

 private:
  void launch(Requests& requests) override {
    for (const Transfer& transfer : transfers_) {
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

  std::vector<Transfer> transfers_;
};

}  // namespace

std::unique_ptr<sdk::Op> make_batch(MpiGroup& group, std::span<const OpSpec> ops) {
  return std::make_unique<BatchOp>(group, ops);
}

}  // namespace shardrun::mpi_transport
