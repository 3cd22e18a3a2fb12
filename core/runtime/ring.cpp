#include "core/runtime/ring.h"

#include <fmt/format.h>

#include <numeric>
#include <vector>

#include "core/base/error.h"

namespace shardrun::runtime {
namespace {

using partition::Collective;
using Blocks = std::vector<std::uint64_t>;  ///< bytes, by member

Blocks blocks_of(const std::vector<std::int64_t>& counts, std::size_t element_bytes) {
  Blocks blocks;
  for (const std::int64_t count : counts) {
    blocks.push_back(static_cast<std::uint64_t>(count) * element_bytes);
  }
  return blocks;
}

/// As even as whole elements can be, the larger first.
Blocks even_blocks(std::uint64_t bytes, std::size_t element_bytes, std::size_t members) {
  Blocks blocks;
  for (std::size_t m = 0; m < members; ++m) {
    blocks.push_back((bytes / element_bytes + members - 1 - m) / members * element_bytes);
  }
  return blocks;
}

/// Each step adds a member's part to the block that came from behind and passes it on; its own comes last, and stays.
std::uint64_t passed_to_reduce(const Blocks& blocks, std::size_t member) {
  std::uint64_t bytes = 0;
  for (std::size_t step = 1; step < blocks.size(); ++step) {
    bytes += blocks[(member + blocks.size() - step) % blocks.size()];
  }
  return bytes;
}

/// Each step passes on what came in the one before; its own is the first.
std::uint64_t passed_to_gather(const Blocks& blocks, std::size_t member) {
  std::uint64_t bytes = 0;
  for (std::size_t step = 0; step + 1 < blocks.size(); ++step) {
    bytes += blocks[(member + blocks.size() - step) % blocks.size()];
  }
  return bytes;
}

class Check {
 public:
  Check(const partition::Transfer& transfer, std::size_t members) : transfer_(transfer), members_(members) {}

  void fills(const Blocks& blocks, std::uint64_t bytes, const char* what) const {
    if (blocks.size() != members_) {
      fail(fmt::format("{} blocks for {} members", blocks.size(), members_));
    }
    equal(std::accumulate(blocks.begin(), blocks.end(), std::uint64_t{0}), bytes, what);
  }

  void equal(std::uint64_t blocks, std::uint64_t bytes, const char* what) const {
    if (blocks != bytes) {
      fail(fmt::format("blocks of {} bytes, but {} bytes {}", blocks, bytes, what));
    }
  }

 private:
  [[noreturn]] void fail(const std::string& text) const {
    throw Error(ErrorCode::internal,
                fmt::format("{} of {}: {}", partition::to_string(transfer_.collective), transfer_.name, text));
  }

  const partition::Transfer& transfer_;
  std::size_t members_;
};

}  // namespace

std::uint64_t ring_bytes(const partition::Transfer& transfer, const Communicator::Place& place, std::size_t member,
                         std::size_t members) {
  const Check check(transfer, members);
  const Blocks received = blocks_of(transfer.recv_counts, place.element_bytes);
  switch (transfer.collective) {
    case Collective::all_reduce: {
      const Blocks blocks = even_blocks(place.send_bytes, place.element_bytes, members);
      check.fills(blocks, place.send_bytes, "to send");
      check.fills(blocks, place.recv_bytes, "to receive");
      return passed_to_reduce(blocks, member) + passed_to_gather(blocks, member);
    }
    case Collective::reduce_scatter:
      check.fills(received, place.send_bytes, "to send");
      check.equal(received[member], place.recv_bytes, "to receive");
      return passed_to_reduce(received, member);
    case Collective::all_gather:
      check.fills(received, place.recv_bytes, "to receive");
      check.equal(received[member], place.send_bytes, "to send");
      return passed_to_gather(received, member);
    case Collective::all_to_all: {
      const Blocks sent = blocks_of(transfer.send_counts, place.element_bytes);
      check.fills(received, place.recv_bytes, "to receive");
      check.fills(sent, place.send_bytes, "to send");
      return place.send_bytes - sent[member];
    }
    case Collective::send:
    case Collective::receive: return place.send_bytes;
  }
  return 0;
}

}  // namespace shardrun::runtime
