#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "core/base/error.h"
#include "core/mesh/mesh.h"
#include "core/partition/program.h"

// Computes the bytes that ranks send, step by step around a ring. Tests compare the result with
// partition::sent_bytes().

namespace shardrun::test {

/// The sizes of the buffers that a transfer reads and writes.
struct RingMemory {
  std::uint64_t send_bytes = 0;
  std::uint64_t recv_bytes = 0;
  std::size_t element_bytes = 4;
};

/// Computes how many bytes one member of a group sends in all steps of a collective.
class Ring {
 public:
  Ring(const partition::Transfer& transfer, const RingMemory& memory, std::size_t members)
      : transfer_(transfer), memory_(memory), members_(members) {}

  /// The bytes that a member sends. Throws Error{internal} if the transfer's blocks do not fill the buffers.
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
  using Blocks = std::vector<std::uint64_t>;  ///< bytes of each member's block

  [[nodiscard]] Blocks blocks_of(const std::vector<std::int64_t>& counts) const {
    Blocks blocks;
    for (const std::int64_t count : counts) {
      blocks.push_back(static_cast<std::uint64_t>(count) * memory_.element_bytes);
    }
    return blocks;
  }

  /// Blocks with almost equal numbers of elements; larger blocks come first.
  [[nodiscard]] Blocks even_blocks() const {
    Blocks blocks;
    for (std::size_t m = 0; m < members_; ++m) {
      blocks.push_back((memory_.send_bytes / memory_.element_bytes + members_ - 1 - m) / members_ *
                       memory_.element_bytes);
    }
    return blocks;
  }

  /// Bytes sent in a ring reduce: in each step a member adds its part to the block that it received, and sends it on.
  /// Its own block comes last and stays.
  [[nodiscard]] static std::uint64_t passed_to_reduce(const Blocks& blocks, std::size_t member) {
    std::uint64_t bytes = 0;
    for (std::size_t step = 1; step < blocks.size(); ++step) {
      bytes += blocks[(member + blocks.size() - step) % blocks.size()];
    }
    return bytes;
  }

  /// Bytes sent in a ring gather: in each step a member sends the block that it received in the step before; first,
  /// its own.
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

/// Whether a ring sends as many bytes as partition::sent_bytes() says, for each transfer of a rank's programs, and the
/// buffers have the transfer's element type.
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
