#include <algorithm>
#include <array>
#include <cstring>
#include <shardrun/sdk/reduce.hpp>

#include "group.h"

// Collectives over memory that all members can read. Each member says that its buffers are ready (stage 1), reads what
// it needs from the others', says so (stage 2), and is complete when all have: then nobody reads its buffers any more.
// To all_reduce, each reduces its own share over all members' buffers (Rabenseifner 2004's reduce-scatter, without
// messages), and gathers the others' shares in a stage more. A few elements go through mailboxes instead, which every
// member reduces for itself: one synchronisation.

namespace shm {
namespace {

using shardrun::sdk::Block;

/// All of it is reduced by every member where it has no more bytes.
constexpr std::uint64_t mailbox_bytes = 2048;

/// Reductions go through the cache in pieces.
constexpr std::uint64_t tile_bytes = 32768;

class Collective final : public shardrun::sdk::Op, private Worker::Task {
 public:
  Collective(Group& group, const OpSpec& op, std::int64_t deadline)
      : group_(group),
        control_(group.control()),
        op_(op),
        rank_(control_.rank()),
        size_(control_.size()),
        element_bytes_(shardrun::sdk::dtype_size(op.dtype)),
        in_background_((op.flags & SR_OP_FLAG_BLOCKING) == 0) {
    const std::uint64_t sent = shardrun::sdk::send_elements(op, rank_, size_) * element_bytes_;
    const std::uint64_t received = shardrun::sdk::recv_elements(op, rank_, size_) * element_bytes_;
    user_send_ = sent == 0 ? nullptr : static_cast<std::byte*>(op.send->data);
    user_recv_ = received == 0 ? nullptr : static_cast<std::byte*>(op.recv->data);
    by_mailbox_ = op.opcode == SR_OP_ALL_REDUCE && sent <= mailbox_bytes;
    const bool by_shares = op.opcode == SR_OP_ALL_REDUCE && !by_mailbox_;
    std::array<ToExpose, 2> wanted;
    if (sent > 0 && !by_mailbox_) {
      wanted[0] = {&*op.send, sent};
    }
    if (by_shares) {
      wanted[1] = {&*op.recv, received};
    }
    const std::vector<Exposed> exposed = expose(group.shared(), wanted);
    send_ = exposed[0];
    recv_ = exposed[1];
    last_stage_ = op.opcode == SR_OP_BARRIER || by_mailbox_ ? 1 : by_shares ? 3 : 2;
    mail_bytes_ = by_mailbox_ ? sent : 0;
    const std::size_t progress_bytes = size_ * sizeof(Progress);
    agreed_ = group_.agree(op, {send_.ref(), recv_.ref(), progress_bytes + 2 * size_ * mail_bytes_}, deadline);
    send_.close_descriptor();
    recv_.close_descriptor();
    progress_ = reinterpret_cast<Progress*>(agreed_.place.data());
    mail_ = agreed_.place.data() + progress_bytes;
    wire_bytes_ = read_by_others(sent);
  }
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;
  ~Collective() override { group_.worker().drop(*this); }

  void start(void*, std::int64_t deadline) override {
    group_.check();
    ++generation_;
    stage_ = 0;
    deadline_ = deadline;
    if (by_mailbox_ && mail_bytes_ > 0) {
      std::memcpy(mailbox(rank_), user_send_, mail_bytes_);
    } else if (send_.is_copy()) {
      std::memcpy(send_.data(), user_send_, send_.ref().bytes);
    }
    group_.shared().wire_bytes.fetch_add(wire_bytes_, std::memory_order_relaxed);
    reach(1);
    if (in_background_) {
      group_.start(*this, deadline);
    }
  }

  bool test() override {
    if (in_background_) {
      return group_.worker().test(*this);
    }
    return guarded(0);
  }

  bool wait(std::int64_t deadline) override {
    if (in_background_) {
      return group_.wait(*this, deadline_, deadline);
    }
    return guarded(std::min(deadline, deadline_));
  }

 private:
  void run(std::int64_t) override {
    if (!advance(deadline_)) {
      throw TransportError(SR_TIMEOUT, past_deadline());
    }
  }
  [[nodiscard]] std::string what() const override { return shardrun::sdk::describe(op_); }

  /// `advance` on the caller's thread: what goes wrong there is the group's end too.
  bool guarded(std::int64_t until) {
    group_.check();
    try {
      if (advance(until)) {
        return true;
      }
      if (shardrun::sdk::steady_now() < deadline_) {
        return false;
      }
      throw TransportError(SR_TIMEOUT, past_deadline());
    } catch (const TransportError& error) {
      group_.fail(error.status(), error.what());
      throw TransportError(*group_.worker().failure());
    }
  }

  /// Goes from stage to stage. False where `until` passed before the last; it can go on from there.
  bool advance(std::int64_t until) {
    while (stage_ < last_stage_) {
      const std::uint64_t target = number(stage_ + 1);
      if (!control_.wait(until, group_.cancelled(), Control::everyone, [&] { return all_reached(target); })) {
        return false;
      }
      ++stage_;
      work();
      if (stage_ < last_stage_) {
        reach(stage_ + 1);
      }
    }
    return true;
  }

  [[nodiscard]] std::uint64_t number(std::uint32_t stage) const noexcept { return 4 * generation_ + stage; }

  void reach(std::uint32_t stage) noexcept {
    progress_[rank_].reached.store(number(stage));
    control_.ring();
  }

  [[nodiscard]] bool all_reached(std::uint64_t target) const noexcept {
    for (std::uint32_t m = 0; m < size_; ++m) {
      if (progress_[m].reached.load(std::memory_order_acquire) < target) {
        return false;
      }
    }
    return true;
  }

  [[nodiscard]] std::string past_deadline() const {
    std::string missing;
    for (std::uint32_t m = 0; m < size_; ++m) {
      if (progress_[m].reached.load() < number(stage_ + 1)) {
        missing += (missing.empty() ? "" : ", ") + control_.name_of(m);
      }
    }
    return what() + " is past its deadline, waiting for " + missing;
  }

  /// What there is to do once all members have reached the present stage.
  void work() {
    if (stage_ == 1 && by_mailbox_) {
      return reduce_mail();
    }
    if (stage_ == 2 && last_stage_ == 3) {
      return gather_shares();
    }
    if (stage_ != 1) {
      return;
    }
    switch (op_.opcode) {
      case SR_OP_ALL_REDUCE: return reduce_block(share(rank_), recv_.data() + share(rank_).offset * element_bytes_);
      case SR_OP_REDUCE: return rank_ == op_.peer ? reduce_block({0, op_.count}, user_recv_) : void();
      case SR_OP_REDUCE_SCATTER:
      case SR_OP_REDUCE_SCATTERV: return reduce_block(shardrun::sdk::send_block(op_, rank_, rank_), user_recv_);
      case SR_OP_BARRIER: return;
      default: return copy_blocks();
    }
  }

  /// Block `m` of what member m sends to this one, of the ops that move and do not reduce.
  void copy_blocks() {
    for (std::uint32_t m = 0; m < size_; ++m) {
      const Block to = shardrun::sdk::recv_block(op_, rank_, m);
      if (to.count == 0) {
        continue;
      }
      copy(user_recv_ + to.offset * element_bytes_, send_of(m) + offset_in_send_of(m) * element_bytes_,
           to.count * element_bytes_);
    }
  }

  /// Every member's, in this process.
  [[nodiscard]] std::byte* send_of(std::uint32_t m) const { return m == rank_ ? send_.data() : agreed_.sends[m].get(); }
  [[nodiscard]] std::byte* recv_of(std::uint32_t m) const { return m == rank_ ? recv_.data() : agreed_.recvs[m].get(); }

  /// Where in member m's send buffer that lies which is meant for this one.
  [[nodiscard]] std::uint64_t offset_in_send_of(std::uint32_t m) const {
    if (op_.opcode == SR_OP_ALL_TO_ALLV) {
      return agreed_.offsets[m];
    }
    return shardrun::sdk::send_block(op_, m, rank_).offset;
  }

  static void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) {
    if (to != from && bytes > 0) {
      std::memcpy(to, from, bytes);
    }
  }

  /// This member's own elements first, then the others' in their order: each block is reduced by one member alone.
  void reduce_block(const Block& block, std::byte* to) {
    const std::uint64_t tile = std::max<std::uint64_t>(1, tile_bytes / element_bytes_);
    for (std::uint64_t done = 0; done < block.count; done += tile) {
      const std::uint64_t count = std::min(tile, block.count - done);
      const std::uint64_t from = (block.offset + done) * element_bytes_;
      std::byte* const into = to + done * element_bytes_;
      copy(into, send_of(rank_) + from, count * element_bytes_);
      for (std::uint32_t m = 0; m < size_; ++m) {
        if (m != rank_) {
          shardrun::sdk::reduce(op_.dtype, op_.reduction, into, send_of(m) + from, count);
        }
      }
    }
  }

  /// Member m's share of an all_reduce.
  [[nodiscard]] Block share(std::uint32_t m) const noexcept {
    const std::uint64_t each = op_.count / size_;
    const std::uint64_t larger = op_.count % size_;
    return {m * each + std::min<std::uint64_t>(m, larger), each + (m < larger ? 1 : 0)};
  }

  void gather_shares() {
    for (std::uint32_t m = 0; m < size_; ++m) {
      const std::uint64_t offset = share(m).offset * element_bytes_;
      copy(user_recv_ + offset, recv_of(m) + offset, share(m).count * element_bytes_);
    }
  }

  [[nodiscard]] std::byte* mailbox(std::uint32_t m) const noexcept {
    return mail_ + ((generation_ % 2) * size_ + m) * mail_bytes_;
  }

  /// In the members' order, so that all get the same bits. A mailbox is written again two generations on: then all have
  /// started the one between, and read this one before.
  void reduce_mail() {
    if (mail_bytes_ == 0) {
      return;
    }
    std::memcpy(user_recv_, mailbox(0), mail_bytes_);
    for (std::uint32_t m = 1; m < size_; ++m) {
      shardrun::sdk::reduce(op_.dtype, op_.reduction, user_recv_, mailbox(m), op_.count);
    }
  }

  /// Bytes of this member that others read in one execution.
  [[nodiscard]] std::uint64_t read_by_others(std::uint64_t sent) const {
    if (by_mailbox_) {
      return (size_ - 1) * sent;
    }
    if (op_.opcode == SR_OP_ALL_REDUCE) {
      const std::uint64_t own = share(rank_).count * element_bytes_;
      return sent - own + (size_ - 1) * own;
    }
    std::uint64_t bytes = 0;
    for (std::uint32_t m = 0; m < size_; ++m) {
      bytes += m == rank_ ? 0 : shardrun::sdk::send_block(op_, rank_, m).count * element_bytes_;
    }
    return bytes;
  }

  Group& group_;
  Control& control_;
  const OpSpec op_;
  std::uint32_t rank_;
  std::uint32_t size_;
  std::uint64_t element_bytes_;
  bool in_background_;
  bool by_mailbox_ = false;
  std::uint32_t last_stage_ = 0;
  std::byte* user_send_ = nullptr;
  std::byte* user_recv_ = nullptr;
  Exposed send_;
  Exposed recv_;  ///< of an all_reduce by shares, whose results others gather
  Agreed agreed_;
  Progress* progress_ = nullptr;
  std::byte* mail_ = nullptr;
  std::uint64_t mail_bytes_ = 0;
  std::uint64_t wire_bytes_ = 0;
  std::uint64_t generation_ = 0;
  std::uint32_t stage_ = 0;  ///< that all members have reached, and whose work is done
  std::int64_t deadline_ = 0;
};

/// A group of one: what is sent is what is received.
class Alone final : public shardrun::sdk::Op {
 public:
  Alone(Group& group, const OpSpec& op) : group_(group) {
    const std::uint64_t received = shardrun::sdk::recv_elements(op, 0, 1);
    bytes_ = received * shardrun::sdk::dtype_size(op.dtype);
    if (bytes_ > 0) {
      send_ = op.send->data;
      recv_ = op.recv->data;
    }
  }

  void start(void*, std::int64_t) override {
    group_.check();
    if (send_ != recv_) {
      std::memcpy(recv_, send_, bytes_);
    }
  }
  bool test() override { return true; }
  bool wait(std::int64_t) override { return true; }

 private:
  Group& group_;
  const void* send_ = nullptr;
  void* recv_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace

std::unique_ptr<shardrun::sdk::Op> make_collective(Group& group, const OpSpec& op, std::int64_t deadline) {
  if (group.control().size() == 1) {
    return std::make_unique<Alone>(group, op);
  }
  return std::make_unique<Collective>(group, op, deadline);
}

}  // namespace shm
