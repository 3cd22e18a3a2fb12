#pragma once

#include <shardrun/sdk/transport/op.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/bench/settings.h"
#include "core/launch/rank.h"
#include "plugins/loader/transport.h"

namespace shardrun::bench {

/// What a case measures: an op of the transport, or the machine without a transport.
enum class What {
  op,
  copy,       ///< memcpy on every rank at once
  reduction,  ///< a += b of f32 on every rank at once, each over its share
  socket,     ///< a TCP stream from the first rank to the second; over the loopback if bench started the ranks
};

/// What one line of the results measures. The same on all ranks.
struct Case {
  What what = What::op;
  std::uint32_t opcode = 0;
  std::uint32_t dtype = 0;
  std::uint32_t reduction = 0;  ///< for ops that reduce
  bool in_place = false;
  std::uint64_t bytes = 0;  ///< the larger of send and recv, on the rank with the most
  std::uint64_t count = 0;  ///< elements of a block; of the whole buffer for ops without blocks
  std::int64_t iterations = 1;
  std::int64_t warm_up = 0;
};

/// The cases of the settings: first the ceilings (cases without a transport), if host memory is moved, then the ops.
[[nodiscard]] std::vector<Case> cases_of(const Settings& settings);

/// The ops that member `rank` prepares in a case of ops, without buffers: one collective, or a send and a receive. In
/// the V forms, members with higher numbers have larger blocks; in ALL_TO_ALLV all members send the same total, in
/// blocks of different sizes. `id`: the id of the first op; as many ids are used as there are members.
[[nodiscard]] std::vector<sdk::OpSpec> specs_of(const Case& each, std::uint32_t members, std::uint32_t rank,
                                                std::uint64_t id = 1);

/// Offsets of a case's buffers in a rank's arena, in bytes.
struct ArenaLayout {
  std::uint64_t send = 0;
  std::uint64_t send_bytes = 0;
  std::uint64_t recv = 0;
  std::uint64_t recv_bytes = 0;
  std::uint64_t scratch = 0;
  std::vector<std::uint64_t> scratch_bytes;  ///< per op
  std::uint64_t end = 0;
};

[[nodiscard]] ArenaLayout layout_of(const Case& each, const plugins::Transport& transport, std::uint32_t members,
                                    std::uint32_t rank);

/// The largest arena that a rank needs, in bytes. Throws Error if the transport cannot do one of the ops.
[[nodiscard]] std::uint64_t arena_bytes(const std::vector<Case>& cases, const plugins::Transport& transport,
                                        std::uint32_t members);

// The data of a case of ops in a rank's arena. Each rank can compute those of all ranks. Each round has other data.

/// Overwrites the receive buffer with other values, and then writes what `rank` sends.
void fill(const Case& each, std::uint32_t members, std::uint32_t rank, std::uint32_t round, const ArenaLayout& layout,
          std::byte* arena);
/// The number of wrong elements in what `rank` received.
[[nodiscard]] std::uint64_t count_wrong(const Case& each, std::uint32_t members, std::uint32_t rank,
                                        std::uint32_t round, const ArenaLayout& layout, const std::byte* arena);

/// A case as text for progress, such as "all_reduce 64 KiB in place".
[[nodiscard]] std::string describe(const Case& each);

/// Measures the machine without a transport: the nanoseconds of each iteration on this rank, while the other ranks do
/// the same. `number`: the case's number. Throws Error.
[[nodiscard]] std::vector<double> measure_ceiling(const Case& each, std::size_t number, const ArenaLayout& layout,
                                                  std::byte* arena, launch::Rank& rank);

}  // namespace shardrun::bench
