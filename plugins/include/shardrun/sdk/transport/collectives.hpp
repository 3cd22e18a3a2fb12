#pragma once

/// Every collective as sends and receives: a pure function from an op and a member to that member's schedule.
///
/// n members; B: bytes of an op's larger buffer. What a member sends, and in how many stages:
///
///     all_reduce          ring: reduce_scatter, then all_gather     2 (n-1)/n B     2 (n-1)
///     reduce_scatter(v)   ring: a partial block goes around          (n-1)/n B      n-1
///     all_gather(v)       ring                                       (n-1)/n B      n-1
///     all_to_all(v)       every pair at once                         (n-1)/n B      1
///     broadcast           binomial tree                              at most log2(n) B at the root
///     reduce              binomial tree                              B              log2(n)
///     gather, scatter     every member and the root at once          B/n; (n-1)/n B at the root
///     barrier             dissemination                              log2(n) bytes  log2(n)
///
/// Each element of a result is reduced by one member, and the others copy it. So all have the same bits.
///
/// Ops that reduce can also run **in order**: the member that reduces a block receives it from all and adds in the
/// order of the members, ((0 + 1) + 2) + …. The bits then do not depend on an element's position or on the transport.
/// A member sends as many bytes as in a ring or tree. Blocks of more than 256 KiB go in up to 64 pieces, with a stage
/// for each, so that a piece is reduced while the next one arrives. The scratch is n-1 blocks, or 2 (n-1) pieces.
///
/// Sums and products of f16 and bf16 over more than two members always run in order: a ring would round them at each
/// hop. In order, their partial results are floats, and only the result is rounded (Reducer).
///
/// **Small** ops of these kinds take one stage: all_reduce, reduce_scatter(v), all_gather(v), barrier. Every member
/// sends its block to every other one, n-1 times the block in all, and reduces in order. So all still have the same
/// bits, although each member of an all_reduce computes them.

#include <shardrun/sdk/transport/op.hpp>
#include <shardrun/sdk/transport/schedule.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace shardrun::sdk {

namespace detail {

/// Whether an op takes one stage, because each message costs more than its bytes. The same on all members.
[[nodiscard]] inline bool is_small(const OpSpec& op, std::uint32_t n) {
  constexpr std::uint32_t most_members = 16;
  constexpr std::uint64_t most_bytes_of_message = 8192;
  constexpr std::uint64_t most_bytes = 65536;
  std::uint64_t block = 0;
  switch (op.opcode) {
    case SR_OP_BARRIER: break;
    case SR_OP_ALL_REDUCE:
    case SR_OP_ALL_GATHER:
    case SR_OP_REDUCE_SCATTER: block = op.count; break;
    case SR_OP_ALL_GATHERV:
    case SR_OP_REDUCE_SCATTERV: block = *std::max_element(op.recv_counts.begin(), op.recv_counts.end()); break;
    default: return false;
  }
  const std::uint64_t bytes = op.opcode == SR_OP_BARRIER ? 1 : block * dtype_size(op.dtype);
  return n > 1 && n <= most_members && bytes <= most_bytes_of_message && bytes * (n - 1) <= most_bytes;
}

/// Elements of the largest block that a member of n reduces. REQUIRES: the op reduces.
[[nodiscard]] inline std::uint64_t largest_block(const OpSpec& op, std::uint32_t n) {
  switch (op.opcode) {
    case SR_OP_ALL_REDUCE: return op.count / n + (op.count % n != 0 ? 1 : 0);
    case SR_OP_REDUCE_SCATTERV: return *std::max_element(op.recv_counts.begin(), op.recv_counts.end());
    default: return op.count;
  }
}

/// The pieces in which blocks are exchanged if ops run in order. All blocks are cut at the same places.
struct Pieces {
  Pieces(std::uint32_t dtype, std::uint64_t largest) {
    constexpr std::uint64_t small_bytes = std::uint64_t{256} << 10U;
    constexpr std::uint64_t most = 64;
    const std::uint64_t wanted = (largest * dtype_size(dtype) + small_bytes - 1) / small_bytes;
    count = std::min(wanted, most);
    elements = count == 0 ? 0 : (largest + count - 1) / count;
  }

  /// The part of a block that belongs to a piece.
  [[nodiscard]] BufferRegion part(const BufferRegion& block, std::uint64_t piece) const noexcept {
    const std::uint64_t begin = std::min(block.count, piece * elements);
    return {block.buffer, block.offset + begin, std::min(elements, block.count - begin)};
  }

  std::uint64_t count = 0;
  std::uint64_t elements = 0;  ///< of each piece except the last
};

/// Writes a member's schedule. Leaves out regions without elements, as the other side of such a message does.
class Scheduler {
 public:
  Scheduler(const OpSpec& op, std::uint32_t rank, std::uint32_t n) : op_(op), rank_(rank), n_(n) {
    schedule_.dtype = op.opcode == SR_OP_BARRIER ? SR_DTYPE_U8 : op.dtype;
  }

  [[nodiscard]] Schedule write_in_order() {
    switch (op_.opcode) {
      case SR_OP_REDUCE: reduce_in_order(); break;
      case SR_OP_ALL_REDUCE: all_reduce_in_order(); break;
      case SR_OP_REDUCE_SCATTER:
      case SR_OP_REDUCE_SCATTERV: reduce_scatter_in_order(); break;
      default: return write();
    }
    return finish();
  }

  /// REQUIRES: is_small.
  [[nodiscard]] Schedule write_small() {
    switch (op_.opcode) {
      case SR_OP_BARRIER: barrier_at_once(); break;
      case SR_OP_ALL_REDUCE: all_reduce_at_once(); break;
      case SR_OP_ALL_GATHER:
      case SR_OP_ALL_GATHERV: all_gather_at_once(); break;
      default: reduce_scatter_in_order(); break;
    }
    return finish();
  }

  [[nodiscard]] Schedule write() {
    switch (op_.opcode) {
      case SR_OP_BARRIER: barrier(); break;
      case SR_OP_BROADCAST: broadcast(); break;
      case SR_OP_REDUCE: reduce(); break;
      case SR_OP_ALL_REDUCE: all_reduce(); break;
      case SR_OP_ALL_GATHER:
      case SR_OP_ALL_GATHERV: all_gather(); break;
      case SR_OP_REDUCE_SCATTER:
      case SR_OP_REDUCE_SCATTERV: reduce_scatter(); break;
      default: exchange(); break;
    }
    return finish();
  }

 private:
  [[nodiscard]] Schedule finish() {
    std::erase_if(schedule_.stages, [](const ScheduleStage& stage) {
      return stage.sends.empty() && stage.receives.empty() && stage.steps.empty();
    });
    return std::move(schedule_);
  }

  [[nodiscard]] std::uint32_t member(std::uint32_t distance) const noexcept { return (rank_ + distance) % n_; }

  [[nodiscard]] BufferRegion scratch(std::uint64_t offset, std::uint64_t count) {
    schedule_.scratch_elements = std::max(schedule_.scratch_elements, offset + count);
    return {OpBuffer::scratch, offset, count};
  }

  void stage() { schedule_.stages.emplace_back(); }
  void send(std::uint32_t peer, std::uint32_t tag, const BufferRegion& region) {
    if (region.count != 0) {
      schedule_.stages.back().sends.push_back({peer, tag, region});
    }
  }
  void receive(std::uint32_t peer, std::uint32_t tag, const BufferRegion& region) {
    if (region.count != 0) {
      schedule_.stages.back().receives.push_back({peer, tag, region});
    }
  }
  void copy(const BufferRegion& from, const BufferRegion& to) {
    if (to.count != 0) {
      schedule_.stages.back().steps.push_back({false, {from}, to});
    }
  }
  void add(const BufferRegion& from, const BufferRegion& to) {
    if (to.count != 0) {
      schedule_.stages.back().steps.push_back({true, {to, from}, to});
    }
  }

  void barrier() {
    for (std::uint32_t distance = 1; distance < n_; distance *= 2) {
      stage();
      send(member(distance), distance, scratch(0, 1));
      receive(member(n_ - distance), distance, scratch(1, 1));
    }
  }

  void barrier_at_once() {
    stage();
    for (std::uint32_t distance = 1; distance < n_; ++distance) {
      send(member(distance), 0, scratch(0, 1));
      receive(member(n_ - distance), 0, scratch(distance, 1));
    }
  }

  // In trees, members are numbered from the root. The parent of a member has the member's number without its lowest set
  // bit. The children of a member have the member's number with one more bit, below its lowest set bit.
  [[nodiscard]] std::uint32_t from_root() const noexcept { return (rank_ + n_ - op_.peer) % n_; }
  [[nodiscard]] std::uint32_t lowest_bit() const noexcept {
    std::uint32_t bit = 1;
    while (bit < n_ && (from_root() & bit) == 0) {
      bit *= 2;
    }
    return bit;
  }
  [[nodiscard]] std::uint32_t tree_member(std::uint32_t place) const noexcept { return (place + op_.peer) % n_; }

  void broadcast() {
    const bool is_root = rank_ == op_.peer;
    const BufferRegion whole = {is_root ? OpBuffer::send : OpBuffer::recv, 0, op_.count};
    const std::uint32_t mine = lowest_bit();
    if (!is_root) {
      stage();
      receive(tree_member(from_root() - mine), mine, whole);
    }
    stage();
    for (std::uint32_t bit = mine / 2; bit != 0; bit /= 2) {
      if (from_root() + bit < n_) {
        send(tree_member(from_root() + bit), bit, whole);
      }
    }
    if (is_root) {
      copy(whole, {OpBuffer::recv, 0, op_.count});
    }
  }

  void reduce() {
    const bool is_root = rank_ == op_.peer;
    const std::uint32_t mine = lowest_bit();
    const BufferRegion given = {OpBuffer::send, 0, op_.count};
    const bool is_leaf = mine == 1 || from_root() + 1 >= n_;
    BufferRegion sum = given;
    if (is_root) {
      sum = {OpBuffer::recv, 0, op_.count};
    } else if (!is_leaf) {
      sum = scratch(op_.count, op_.count);
    }
    bool begun = sum.buffer == OpBuffer::send;
    const auto begin = [&] {
      if (!std::exchange(begun, true)) {
        copy(given, sum);
      }
    };
    for (std::uint32_t bit = 1; bit < mine && from_root() + bit < n_; bit *= 2) {
      const BufferRegion arrived = scratch(0, op_.count);
      stage();
      receive(tree_member(from_root() + bit), bit, arrived);
      begin();
      add(arrived, sum);
    }
    if (!begun) {
      stage();
      begin();
    }
    if (!is_root) {
      stage();
      send(tree_member(from_root() - mine), mine, sum);
    }
  }

  /// Block i of an evenly split result. If the sizes differ, the first blocks are one element larger.
  [[nodiscard]] BufferRegion even_block(std::uint32_t i) const noexcept {
    const std::uint64_t size = op_.count / n_;
    const std::uint64_t larger = op_.count % n_;
    return {OpBuffer::recv, size * i + std::min<std::uint64_t>(i, larger), size + (i < larger ? 1 : 0)};
  }

  void all_reduce() {
    const auto given = [this](std::uint32_t i) {
      BufferRegion block = even_block(i);
      block.buffer = OpBuffer::send;
      return block;
    };
    if (n_ == 1) {
      stage();
      copy(given(0), even_block(0));
    }
    for (std::uint32_t s = 0; s + 1 < n_; ++s) {
      const std::uint32_t sum = member(n_ - s - 1);
      const BufferRegion arrived = scratch(0, even_block(sum).count);
      stage();
      send(member(1), s, s == 0 ? given(rank_) : even_block(member(n_ - s)));
      receive(member(n_ - 1), s, arrived);
      copy(given(sum), even_block(sum));
      add(arrived, even_block(sum));
    }
    const auto block = [this](std::uint32_t i) { return even_block(i); };
    pass_around(block, block, 1);
  }

  void all_reduce_at_once() {
    const BufferRegion given = {OpBuffer::send, 0, op_.count};
    exchange_and_reduce([&](std::uint32_t) { return given; }, {OpBuffer::recv, 0, op_.count}, op_.count);
  }

  [[nodiscard]] BufferRegion gathered_block(std::uint32_t i) const {
    const Block from = recv_block(op_, rank_, i);
    return {OpBuffer::recv, from.offset, from.count};
  }

  void all_gather_at_once() {
    const BufferRegion given = {OpBuffer::send, 0, gathered_block(rank_).count};
    stage();
    for (std::uint32_t distance = 1; distance < n_; ++distance) {
      send(member(distance), 0, given);
      receive(member(n_ - distance), 0, gathered_block(member(n_ - distance)));
    }
    copy(given, gathered_block(rank_));
  }

  void all_gather() {
    const auto block = [this](std::uint32_t i) { return gathered_block(i); };
    const BufferRegion given = {OpBuffer::send, 0, block(rank_).count};
    const std::size_t first = schedule_.stages.size();
    pass_around([&](std::uint32_t i) { return i == rank_ ? given : block(i); }, block, 0);
    if (n_ == 1) {
      stage();
    }
    if (given.count != 0) {
      schedule_.stages[first].steps.push_back({false, {given}, block(rank_)});
    }
  }

  /// Passes blocks around the ring until all members have all blocks. A member starts with block rank + `ahead`.
  /// `held`: where a block is sent from; `block`: where it is received.
  template <class HeldAt, class BlockOf>
  void pass_around(HeldAt held, BlockOf block, std::uint32_t ahead) {
    for (std::uint32_t s = 0; s + 1 < n_; ++s) {
      stage();
      send(member(1), n_ + s, held(member(n_ + ahead - s)));
      receive(member(n_ - 1), n_ + s, block(member(n_ + ahead - s - 1)));
    }
  }

  /// Block i starts at member i + 1 and reaches member i last. Each member on its way adds its own values.
  void reduce_scatter() {
    const auto given = [this](std::uint32_t i) {
      const Block block = send_block(op_, rank_, i);
      return BufferRegion{OpBuffer::send, block.offset, block.count};
    };
    const BufferRegion result = {OpBuffer::recv, 0, given(rank_).count};
    const std::uint64_t largest = largest_block(op_, n_);
    if (n_ == 1) {
      stage();
      copy(given(rank_), result);
    }
    BufferRegion partial = given(member(n_ - 1));
    for (std::uint32_t s = 0; s + 1 < n_; ++s) {
      const BufferRegion own = given(member(2 * n_ - s - 2));
      const BufferRegion arrived = scratch((s % 2) * largest, own.count);
      stage();
      send(member(1), s, partial);
      receive(member(n_ - 1), s, arrived);
      if (s + 2 < n_) {
        add(own, arrived);
      } else {
        copy(given(rank_), result);
        add(arrived, result);
      }
      partial = arrived;
    }
  }

  /// Member i receives block_of(i) from every member and reduces the blocks, piece by piece. `largest`: elements of the
  /// largest block.
  template <class BlockOf>
  void exchange_and_reduce(BlockOf block_of, const BufferRegion& result, std::uint64_t largest) {
    const Pieces pieces(op_.dtype, largest);
    const auto reduce_piece = [&](std::uint64_t piece) { reduce_arrived(pieces, piece, block_of(rank_), result); };
    for (std::uint64_t piece = 0; piece < pieces.count; ++piece) {
      const auto tag = static_cast<std::uint32_t>(2 * n_ + piece);  // pass_around uses the smaller tags
      stage();
      for (std::uint32_t distance = 1; distance < n_; ++distance) {
        const std::uint32_t to = member(distance);
        const std::uint32_t from = member(n_ - distance);
        send(to, tag, pieces.part(block_of(to), piece));
        receive(from, tag, arrived_from(from, pieces, piece, pieces.part(block_of(rank_), piece).count));
      }
      if (piece > 0) {
        reduce_piece(piece - 1);
      }
      if (piece + 1 == pieces.count) {
        reduce_piece(piece);
      }
    }
  }

  /// Where a piece from another member is kept until it is reduced, while the next piece arrives.
  [[nodiscard]] BufferRegion arrived_from(std::uint32_t from, const Pieces& pieces, std::uint64_t piece,
                                          std::uint64_t count) {
    const std::uint64_t place = piece % 2 * (n_ - 1) + from - (from > rank_ ? 1 : 0);
    return scratch(place * pieces.elements, count);
  }

  void reduce_arrived(const Pieces& pieces, std::uint64_t piece, const BufferRegion& own, const BufferRegion& result) {
    LocalStep step = {.reduces = true, .from = {}, .to = pieces.part(result, piece)};
    for (std::uint32_t m = 0; m < n_; ++m) {
      step.from.push_back(m == rank_ ? pieces.part(own, piece) : arrived_from(m, pieces, piece, step.to.count));
    }
    if (step.to.count != 0) {
      schedule_.stages.back().steps.push_back(std::move(step));
    }
  }

  void reduce_scatter_in_order() {
    const auto given = [this](std::uint32_t i) {
      const Block block = send_block(op_, rank_, i);
      return BufferRegion{OpBuffer::send, block.offset, block.count};
    };
    exchange_and_reduce(given, {OpBuffer::recv, 0, given(rank_).count}, largest_block(op_, n_));
  }

  void all_reduce_in_order() {
    const auto given = [this](std::uint32_t i) {
      const BufferRegion block = even_block(i);
      return BufferRegion{OpBuffer::send, block.offset, block.count};
    };
    exchange_and_reduce(given, even_block(rank_), largest_block(op_, n_));
    const auto block = [this](std::uint32_t i) { return even_block(i); };
    pass_around(block, block, 0);
  }

  void reduce_in_order() {
    const auto given = [this](std::uint32_t i) {
      return BufferRegion{OpBuffer::send, 0, i == op_.peer ? op_.count : 0};
    };
    exchange_and_reduce(given, {OpBuffer::recv, 0, given(rank_).count}, op_.count);
  }

  /// Sends every block directly to its destination.
  void exchange() {
    stage();
    for (std::uint32_t distance = 1; distance < n_; ++distance) {
      const std::uint32_t to = member(distance);
      const std::uint32_t from = member(n_ - distance);
      const Block sent = send_block(op_, rank_, to);
      const Block received = recv_block(op_, rank_, from);
      send(to, 0, {OpBuffer::send, sent.offset, sent.count});
      receive(from, 0, {OpBuffer::recv, received.offset, received.count});
    }
    const Block kept = send_block(op_, rank_, rank_);
    const Block place = recv_block(op_, rank_, rank_);
    copy({OpBuffer::send, kept.offset, kept.count}, {OpBuffer::recv, place.offset, place.count});
  }

  const OpSpec& op_;
  std::uint32_t rank_;
  std::uint32_t n_;
  Schedule schedule_;
};

}  // namespace detail

/// The schedule of an op that runs in order. REQUIRES: check(op, n) passed.
[[nodiscard]] inline Schedule schedule_in_order_of(const OpSpec& op, std::uint32_t rank, std::uint32_t n) {
  detail::Scheduler scheduler(op, rank, n);
  if (detail::is_small(op, n)) {
    return scheduler.write_small();
  }
  return n == 1 ? scheduler.write() : scheduler.write_in_order();
}

/// Whether schedule_of() makes the schedule in order: for small ops, and for those with wide partial results.
[[nodiscard]] inline bool runs_in_order(const OpSpec& op, std::uint32_t n) {
  return has_wide_partials(op, n) || detail::is_small(op, n);
}

/// The schedule of member `rank` of n for a collective. REQUIRES: check(op, n) passed.
[[nodiscard]] inline Schedule schedule_of(const OpSpec& op, std::uint32_t rank, std::uint32_t n) {
  return runs_in_order(op, n) ? schedule_in_order_of(op, rank, n) : detail::Scheduler(op, rank, n).write();
}

/// The flags of sr_op_info that hold for this schedule.
[[nodiscard]] inline std::uint32_t rounding_flags(const OpSpec& op, std::uint32_t n) {
  if (!find_opcode(op.opcode)->reduces) {
    return 0;
  }
  return SR_OP_INFO_ROUNDED_ONCE | (runs_in_order(op, n) ? SR_OP_INFO_ORDERED | SR_OP_INFO_STEPWISE : 0);
}

/// The scratch bytes of an op that runs in order, for the member that needs most. REQUIRES: check(op, n) passed.
[[nodiscard]] inline std::uint64_t scratch_bytes_in_order_of(const OpSpec& op, std::uint32_t n);

/// The scratch bytes for the member that needs most. REQUIRES: check(op, n) passed.
[[nodiscard]] inline std::uint64_t scratch_bytes_of(const OpSpec& op, std::uint32_t n) {
  if (n == 1) {
    return 0;
  }
  if (runs_in_order(op, n)) {
    return scratch_bytes_in_order_of(op, n);
  }
  const std::uint64_t size = dtype_size(op.dtype);
  const std::uint64_t blocks = n == 2 ? 1 : 2;
  switch (op.opcode) {
    case SR_OP_BARRIER: return 2;
    case SR_OP_REDUCE: return (n < 4 ? 1 : 2) * op.count * size;
    case SR_OP_ALL_REDUCE: return detail::largest_block(op, n) * size;
    case SR_OP_REDUCE_SCATTER:
    case SR_OP_REDUCE_SCATTERV: return blocks * detail::largest_block(op, n) * size;
    default: return 0;
  }
}

inline std::uint64_t scratch_bytes_in_order_of(const OpSpec& op, std::uint32_t n) {
  const bool is_small = detail::is_small(op, n);
  if (is_small && op.opcode == SR_OP_BARRIER) {
    return n;
  }
  if (!find_opcode(op.opcode)->reduces) {
    return is_small ? 0 : scratch_bytes_of(op, n);
  }
  const std::uint64_t largest = is_small && op.opcode == SR_OP_ALL_REDUCE ? op.count : detail::largest_block(op, n);
  const detail::Pieces pieces(op.dtype, largest);
  return std::min<std::uint64_t>(pieces.count, 2) * (n - 1) * pieces.elements * dtype_size(op.dtype);
}

}  // namespace shardrun::sdk
