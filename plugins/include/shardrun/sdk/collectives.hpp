#pragma once

/// Every collective as sends and receives: a pure function from an op and a member to what that member does.
///
/// n members, B bytes of the larger buffer of an op. What a member gives to others, and in how many stages:
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
/// Every element of a result is reduced by one member alone, which all others copy: all have the same bits.

#include <shardrun/sdk/op.hpp>
#include <shardrun/sdk/reduce.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace shardrun::sdk {

enum class Place { send, recv, scratch };

/// Elements of one of an op's buffers.
struct Region {
  Place place = Place::send;
  std::uint64_t offset = 0;
  std::uint64_t count = 0;
};

struct Movement {
  std::uint32_t peer = 0;
  std::uint32_t tag = 0;  ///< the same on both sides, and no other message of the op between the two has it
  Region region;
};

/// What is done once the transfers of a stage are complete.
struct LocalStep {
  bool reduces = false;  ///< `to` is reduced with `from`; else it becomes a copy of it
  Region from;
  Region to;
};

/// Transfers without order among them, at most one to and one from each peer; then local steps, one after the other.
struct Stage {
  std::vector<Movement> sends = {};
  std::vector<Movement> receives = {};
  std::vector<LocalStep> steps = {};
};

struct Schedule {
  std::uint32_t dtype = 0;             ///< of the regions
  std::uint64_t scratch_elements = 0;  ///< what this member uses of the op's scratch
  std::vector<Stage> stages;
};

namespace detail {

/// Writes a member's schedule. Regions without elements are left out on both sides, which both know.
class Scheduler {
 public:
  Scheduler(const OpSpec& op, std::uint32_t rank, std::uint32_t n) : op_(op), rank_(rank), n_(n) {
    schedule_.dtype = op.opcode == SR_OP_BARRIER ? SR_DTYPE_U8 : op.dtype;
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
    std::erase_if(schedule_.stages, [](const Stage& stage) {
      return stage.sends.empty() && stage.receives.empty() && stage.steps.empty();
    });
    return std::move(schedule_);
  }

 private:
  [[nodiscard]] std::uint32_t member(std::uint32_t distance) const noexcept { return (rank_ + distance) % n_; }

  [[nodiscard]] Region scratch(std::uint64_t offset, std::uint64_t count) {
    schedule_.scratch_elements = std::max(schedule_.scratch_elements, offset + count);
    return {Place::scratch, offset, count};
  }

  void stage() { schedule_.stages.emplace_back(); }
  void send(std::uint32_t peer, std::uint32_t tag, const Region& region) {
    if (region.count != 0) {
      schedule_.stages.back().sends.push_back({peer, tag, region});
    }
  }
  void receive(std::uint32_t peer, std::uint32_t tag, const Region& region) {
    if (region.count != 0) {
      schedule_.stages.back().receives.push_back({peer, tag, region});
    }
  }
  void copy(const Region& from, const Region& to) {
    if (to.count != 0) {
      schedule_.stages.back().steps.push_back({false, from, to});
    }
  }
  void add(const Region& from, const Region& to) {
    if (to.count != 0) {
      schedule_.stages.back().steps.push_back({true, from, to});
    }
  }

  void barrier() {
    for (std::uint32_t distance = 1; distance < n_; distance *= 2) {
      stage();
      send(member(distance), distance, scratch(0, 1));
      receive(member(n_ - distance), distance, scratch(1, 1));
    }
  }

  // Of the trees: members are counted from the root; a member's parent lacks its lowest bit, its children have one more
  // bit below that.
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
    const Region whole = {is_root ? Place::send : Place::recv, 0, op_.count};
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
      copy(whole, {Place::recv, 0, op_.count});
    }
  }

  void reduce() {
    const bool is_root = rank_ == op_.peer;
    const std::uint32_t mine = lowest_bit();
    const Region given = {Place::send, 0, op_.count};
    const bool is_leaf = mine == 1 || from_root() + 1 >= n_;
    Region sum = given;
    if (is_root) {
      sum = {Place::recv, 0, op_.count};
    } else if (!is_leaf) {
      sum = scratch(op_.count, op_.count);
    }
    if (sum.place != Place::send) {
      stage();
      copy(given, sum);
    }
    for (std::uint32_t bit = 1; bit < mine && from_root() + bit < n_; bit *= 2) {
      const Region arrived = scratch(0, op_.count);
      stage();
      receive(tree_member(from_root() + bit), bit, arrived);
      add(arrived, sum);
    }
    if (!is_root) {
      stage();
      send(tree_member(from_root() - mine), mine, sum);
    }
  }

  /// Block i of the result where it is split evenly, the first ones being one larger where it must.
  [[nodiscard]] Region even_block(std::uint32_t i) const noexcept {
    const std::uint64_t size = op_.count / n_;
    const std::uint64_t larger = op_.count % n_;
    return {Place::recv, size * i + std::min<std::uint64_t>(i, larger), size + (i < larger ? 1 : 0)};
  }

  void all_reduce() {
    stage();
    copy({Place::send, 0, op_.count}, {Place::recv, 0, op_.count});
    for (std::uint32_t s = 0; s + 1 < n_; ++s) {
      const Region mine = even_block(member(n_ - s - 1));
      const Region arrived = scratch(0, mine.count);
      stage();
      send(member(1), s, even_block(member(n_ - s)));
      receive(member(n_ - 1), s, arrived);
      add(arrived, mine);
    }
    pass_around([this](std::uint32_t i) { return even_block(i); }, 1);
  }

  void all_gather() {
    const auto block = [this](std::uint32_t i) {
      const Block from = recv_block(op_, rank_, i);
      return Region{Place::recv, from.offset, from.count};
    };
    stage();
    copy({Place::send, 0, block(rank_).count}, block(rank_));
    pass_around(block, 0);
  }

  /// Around the ring, from a member that has block rank + `ahead` to all that have all.
  template <class BlockOf>
  void pass_around(BlockOf block, std::uint32_t ahead) {
    for (std::uint32_t s = 0; s + 1 < n_; ++s) {
      stage();
      send(member(1), n_ + s, block(member(n_ + ahead - s)));
      receive(member(n_ - 1), n_ + s, block(member(n_ + ahead - s - 1)));
    }
  }

  /// Block i begins at member i + 1 and comes to member i last; everyone on its way adds its own.
  void reduce_scatter() {
    const auto given = [this](std::uint32_t i) {
      const Block block = send_block(op_, rank_, i);
      return Region{Place::send, block.offset, block.count};
    };
    const Region result = {Place::recv, 0, given(rank_).count};
    std::uint64_t largest = 0;
    for (std::uint32_t i = 0; i < n_; ++i) {
      largest = std::max(largest, given(i).count);
    }
    stage();
    copy(given(rank_), result);
    Region partial = given(member(n_ - 1));
    for (std::uint32_t s = 0; s + 1 < n_; ++s) {
      const Region own = given(member(2 * n_ - s - 2));
      const Region arrived = scratch((s % 2) * largest, own.count);
      stage();
      send(member(1), s, partial);
      receive(member(n_ - 1), s, arrived);
      if (s + 2 < n_) {
        add(own, arrived);
      } else {
        add(arrived, result);
      }
      partial = arrived;
    }
  }

  /// Every block straight to where it belongs.
  void exchange() {
    stage();
    for (std::uint32_t distance = 1; distance < n_; ++distance) {
      const std::uint32_t to = member(distance);
      const std::uint32_t from = member(n_ - distance);
      const Block sent = send_block(op_, rank_, to);
      const Block received = recv_block(op_, rank_, from);
      send(to, 0, {Place::send, sent.offset, sent.count});
      receive(from, 0, {Place::recv, received.offset, received.count});
    }
    const Block kept = send_block(op_, rank_, rank_);
    const Block place = recv_block(op_, rank_, rank_);
    copy({Place::send, kept.offset, kept.count}, {Place::recv, place.offset, place.count});
  }

  const OpSpec& op_;
  std::uint32_t rank_;
  std::uint32_t n_;
  Schedule schedule_;
};

}  // namespace detail

/// What member `rank` of n does for a collective. REQUIRES: check(op, n) passed.
[[nodiscard]] inline Schedule schedule_of(const OpSpec& op, std::uint32_t rank, std::uint32_t n) {
  return detail::Scheduler(op, rank, n).write();
}

/// The scratch of the member that needs most. REQUIRES: check(op, n) passed.
[[nodiscard]] inline std::uint64_t scratch_bytes_of(const OpSpec& op, std::uint32_t n) {
  if (n == 1) {
    return 0;
  }
  const std::uint64_t size = dtype_size(op.dtype);
  const std::uint64_t blocks = n == 2 ? 1 : 2;
  switch (op.opcode) {
    case SR_OP_BARRIER: return 2;
    case SR_OP_REDUCE: return (n < 4 ? 1 : 2) * op.count * size;
    case SR_OP_ALL_REDUCE: return (op.count / n + (op.count % n != 0 ? 1 : 0)) * size;
    case SR_OP_REDUCE_SCATTER: return blocks * op.count * size;
    case SR_OP_REDUCE_SCATTERV: return blocks * *std::max_element(op.recv_counts.begin(), op.recv_counts.end()) * size;
    default: return 0;
  }
}

/// Where a region of a prepared op lies.
class Places {
 public:
  /// The buffers are those of `op`, with `scratch_bytes` of scratch at least.
  Places(const OpSpec& op, std::uint32_t dtype) : reduction_(op.reduction), dtype_(dtype), size_(dtype_size(dtype)) {
    bases_[0] = op.send ? static_cast<unsigned char*>(op.send->data) : nullptr;
    bases_[1] = op.recv ? static_cast<unsigned char*>(op.recv->data) : nullptr;
    bases_[2] = op.scratch ? static_cast<unsigned char*>(op.scratch->data) : nullptr;
  }

  [[nodiscard]] unsigned char* data(const Region& region) const noexcept {
    return bases_[static_cast<std::size_t>(region.place)] + region.offset * size_;
  }
  [[nodiscard]] std::uint64_t bytes(const Region& region) const noexcept { return region.count * size_; }

  void run(const LocalStep& step) const noexcept {
    unsigned char* to = data(step.to);
    const unsigned char* from = data(step.from);
    if (step.reduces) {
      sdk::reduce(dtype_, reduction_, to, from, step.to.count);
    } else if (to != from) {
      std::memmove(to, from, bytes(step.to));
    }
  }

 private:
  unsigned char* bases_[3];
  std::uint32_t reduction_;
  std::uint32_t dtype_;
  std::uint64_t size_;
};

/// Refuses with TransportError{SR_INVALID} an op whose scratch is too small for `schedule`.
inline void require_scratch(const OpSpec& op, const Schedule& schedule) {
  const std::uint64_t needed = schedule.scratch_elements * dtype_size(schedule.dtype);
  if (needed != 0 && (!op.scratch || op.scratch->data == nullptr || op.scratch->bytes < needed)) {
    detail::refuse(op, "it needs " + std::to_string(needed) + " bytes of scratch and has " +
                           std::to_string(op.scratch ? op.scratch->bytes : 0));
  }
}

}  // namespace shardrun::sdk
