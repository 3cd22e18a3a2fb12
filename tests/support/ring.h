#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "core/base/error.h"
#include "core/mesh/mesh.h"
#include "core/partition/program.h"

// A second formula for the bytes that ranks send, step by step round a ring, to compare with partition::sent_bytes.

namespace shardrun::test {

/// The memory that a transfer reads and writes.
struct RingMemory {
  std::uint64_t send_bytes = 0;
  std::uint64_t recv_bytes = 0;
  std::size_t element_bytes = 4;
};

/// Computes the bytes that one member of a group passes on in all steps of a collective.
class Ring {
 public:
  Ring(const partition::Transfer& transfer, const RingMemory& memory, std::size_t members)
      : transfer_(transfer), memory_(memory), members_(members) {}

  /// Throws Error{internal} where the transfer's blocks do not fill the memory.
  [[nodiscard]] std::uint64_t passed_by(std::size_t member) const {
    using partition::Collective;
    const Blocks received = blocks_of(transfer_.recv_counts);
    switch (transfer_.collective) {
      case Collective::all_reduce: {
        const Blocks blocks = even_blocks();
        check_fills(blocks, memory_.send_bytes, "to send");
        check_fills(blocks, memory_.recv_bytes, "to receive");
        return passed_to_reduce(blocks, member) + passed_to_gather(blocks, member);
      }
      case Collective::reduce_scatter:
        check_fills(received, memory_.send_bytes, "to send");
        check_equal(received[member], memory_.recv_bytes, "to receive");
        return passed_to_reduce(received, member);
      case Collective::all_gather:
        check_fills(received, memory_.recv_bytes, "to receive");
        check_equal(received[member], memory_.send_bytes, "to send");
        return passed_to_gather(received, member);
      case Collective::all_to_all:
      case Collective::halo: {
        const Blocks sent = blocks_of(transfer_.send_counts);
        check_fills(received, memory_.recv_bytes, "to receive");
        check_fills(sent, memory_.send_bytes, "to send");
        return memory_.send_bytes - sent[member];
      }
      case Collective::send:
      case Collective::receive: return memory_.send_bytes;
    }
    return 0;
  }

 private:
  using Blocks = std::vector<std::uint64_t>;  ///< bytes, by member

  [[nodiscard]] Blocks blocks_of(const std::vector<std::int64_t>& counts) const {
    Blocks blocks;
    for (const std::int64_t count : counts) {
      blocks.push_back(static_cast<std::uint64_t>(count) * memory_.element_bytes);
    }
    return blocks;
  }

  /// As even as whole elements can be, the larger first.
  [[nodiscard]] Blocks even_blocks() const {
    Blocks blocks;
    for (std::size_t m = 0; m < members_; ++m) {
      blocks.push_back((memory_.send_bytes / memory_.element_bytes + members_ - 1 - m) / members_ *
                       memory_.element_bytes);
    }
    return blocks;
  }

  /// Each step adds a member's part to the block that came from behind and passes it on. Its own block comes last, and
  /// stays.
  [[nodiscard]] static std::uint64_t passed_to_reduce(const Blocks& blocks, std::size_t member) {
    std::uint64_t bytes = 0;
    for (std::size_t step = 1; step < blocks.size(); ++step) {
      bytes += blocks[(member + blocks.size() - step) % blocks.size()];
    }
    return bytes;
  }

  /// Each step passes on what came in the step before. Its own block is the first.
  [[nodiscard]] static std::uint64_t passed_to_gather(const Blocks& blocks, std::size_t member) {
    std::uint64_t bytes = 0;
    for (std::size_t step = 0; step + 1 < blocks.size(); ++step) {
      bytes += blocks[(member + blocks.size() - step) % blocks.size()];
    }
    return bytes;
  }

  void check_fills(const Blocks& blocks, std::uint64_t bytes, const char* what) const {
    if (blocks.size() != members_) {
      fail(fmt::format("{} blocks for {} members", blocks.size(), members_));
    }
    check_equal(std::accumulate(blocks.begin(), blocks.end(), std::uint64_t{0}), bytes, what);
  }

  void check_equal(std::uint64_t blocks, std::uint64_t bytes, const char* what) const {
    if (blocks != bytes) {
      fail(fmt::format("blocks of {} bytes, but {} bytes {}", blocks, bytes, what));
    }
  }

  [[noreturn]] void fail(const std::string& text) const {
    throw Error(ErrorCode::internal,
                fmt::format("{} of {}: {}", partition::to_string(transfer_.collective), transfer_.name, text));
  }

  const partition::Transfer& transfer_;
  RingMemory memory_;
  std::size_t members_;
};

/// Whether a ring passes on as many bytes as partition::sent_bytes says, in each transfer of a rank's programs, and the
/// buffers have elements of the transfer's type.
[[nodiscard]] inline bool ring_agrees(const partition::Programs& programs) {
  const mesh::Coordinates at = mesh::coordinates_of(programs.mesh, programs.rank);
  for (const partition::Program& program : programs.programs) {
    for (const partition::Transfer& transfer : program.transfers) {
      const std::size_t bytes = graph::element_bytes(transfer.dtype);
      for (const partition::Region& region : {transfer.send, transfer.recv}) {
        if (region.buffer.exists() && program.buffers[region.buffer].type.dtype != transfer.dtype) {
          return false;
        }
      }
      const std::int64_t member = at[transfer.axis];
      const std::int64_t members = programs.mesh.size(transfer.axis);
      const RingMemory memory = {.send_bytes = static_cast<std::uint64_t>(transfer.send.elements) * bytes,
                                 .recv_bytes = static_cast<std::uint64_t>(transfer.recv.elements) * bytes,
                                 .element_bytes = bytes};
      if (Ring(transfer, memory, static_cast<std::size_t>(members)).passed_by(static_cast<std::size_t>(member)) !=
          partition::sent_bytes(transfer, member, members)) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace shardrun::test
