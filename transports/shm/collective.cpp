#include <algorithm>
#include <cstring>
#include <shardrun/sdk/transport/reduce.hpp>
#include <vector>

#include "transports/shm/group.h"

// Collectives over memory that all members can access, in numbered steps. A member enters a step, which tells the
// others that its data is ready. It leaves the step once the members for which it waits have entered it.
//
// Mapped: all members' buffers are mapped. Entering step 0 says that a member's buffers are ready; each member then
// accesses what it needs in place. Entering step 1 says that it has finished. In all_reduce and reduce, each member
// reduces its share of all members' buffers and writes the result into the buffers of all who receive it.
//
// Staged: for few bytes, and for memory that others cannot map. Each member copies its data, one piece per step, into
// its staging buffers in turn. It reuses a buffer once all its readers have entered a later step. No final step is
// needed, because no member accesses another's own buffers. In an all_reduce of several pieces with more than two
// members, each member reduces its share of the piece within its staging buffer, and one more step gathers the shares.

namespace shardrun::shm_transport {
namespace {

using shardrun::sdk::Block;

class Collective final : public shardrun::sdk::Op, private Worker::Task {
 public:
  Collective(ShmGroup& group, const OpSpec& op, sdk::Deadline deadline)
      : group_(group),
        control_(group.control()),
        op_(op),
        rank_(control_.rank()),
        size_(control_.size()),
        element_bytes_(shardrun::sdk::dtype_size(op.dtype)),
        in_background_((op.flags & SR_OP_FLAG_BLOCKING) == 0),
        all_read_all_(!shardrun::sdk::find_opcode(op.opcode)->has_root) {
    const std::uint64_t sent = shardrun::sdk::send_elements(op, rank_, size_) * element_bytes_;
    const std::uint64_t received = shardrun::sdk::recv_elements(op, rank_, size_) * element_bytes_;
    user_send_ = sent == 0 ? nullptr : static_cast<std::byte*>(op.send->data);
    user_recv_ = received == 0 ? nullptr : static_cast<std::byte*>(op.recv->data);
    agreed_ = group_.agree(op, offer(sent, received), deadline);
    if (shardrun::sdk::find_opcode(op.opcode)->reduces) {
      reducer_ = shardrun::sdk::Reducer(op.dtype, op.reduction);
    }
    by_shares_ = op.opcode == SR_OP_ALL_REDUCE && (agreed_.is_mapped || (agreed_.rounds > 1 && size_ > 2));
    steps_ = agreed_.is_mapped ? 2 : by_shares_ ? 2 * agreed_.rounds : agreed_.rounds;
    runs_ahead_ = !all_read_all_ && !agreed_.is_mapped && agreed_.is_small();
    wire_bytes_ = given_to_others(sent);
    sources_.reserve(size_);
    targets_.reserve(size_);
  }
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;
  ~Collective() override {
    group_.worker().drop(*this);
    if (step_count_before_ > 0 && step_ < steps_) {
      group_.fail({SR_ABORTED, what() + " was freed before it was complete"});
      if (agreed_.is_mapped) {
        group_.await_untouched();
      }
    }
  }

  void start(void*, sdk::Deadline deadline) override {
    group_.check();  // if the group has failed, an earlier run may not have ended
    step_ = 0;
    has_entered_ = false;
    times_on_caller_ = {};
    first_number_ += step_count_before_;
    step_count_before_ = steps_;
    deadline_ = deadline;
    group_.state().wire_bytes.fetch_add(wire_bytes_, std::memory_order_relaxed);
    if (may_enter()) {
      enter();
    }
    if (in_background_) {
      group_.start(*this, deadline);
    }
  }

  bool test() override {
    if (in_background_) {
      return group_.worker().test(*this);
    }
    return advance_on_caller(sdk::Deadline::past());
  }

  bool wait(sdk::Deadline deadline) override {
    if (in_background_) {
      return group_.wait(*this, deadline);
    }
    return advance_on_caller(deadline);
  }

  std::optional<shardrun::sdk::OpTimes> times() const override {
    return in_background_ ? std::optional(group_.times(*this)) : ShmGroup::known(times_on_caller_);
  }

 private:
  /// Describes this member's buffers to the others.
  [[nodiscard]] Offer offer(std::uint64_t sent, std::uint64_t received) const {
    Offer offer;
    const bool has_target =
        received > 0 && (op_.opcode == SR_OP_ALL_REDUCE || op_.opcode == SR_OP_REDUCE);  // others write to it
    const std::optional<MemoryRef> send = sent > 0 ? mappable(group_.state(), *op_.send, sent) : MemoryRef{};
    const std::optional<MemoryRef> recv = has_target ? mappable(group_.state(), *op_.recv, received) : MemoryRef{};
    offer.is_mappable = send.has_value() && recv.has_value();
    offer.send = send.value_or(MemoryRef{});
    offer.recv = recv.value_or(MemoryRef{});
    offer.sent_bytes = sent;
    for (std::uint32_t to = 0; sent > 0 && to < blocks_of(op_.opcode, size_); ++to) {
      offer.block_bytes = std::max(offer.block_bytes, sent_block(to).count * element_bytes_);
    }
    return offer;
  }

  void run(sdk::Deadline) override {
    if (!advance(deadline_)) {
      throw past_deadline();
    }
  }
  [[nodiscard]] std::string what() const override { return shardrun::sdk::describe(op_); }

  bool advance_on_caller(sdk::Deadline until) {
    return step_ == steps_ ||
           group_.on_caller(
               until, deadline_, times_on_caller_, [&](sdk::Deadline latest) { return advance(latest); },
               [this] { return past_deadline(); });
  }

  /// Runs the remaining steps. Returns false if `until` passed first; a later call continues.
  bool advance(sdk::Deadline until) {
    while (step_ < steps_) {
      if (!has_entered_) {
        if (!wait_for([this] { return may_enter(); }, until)) {
          return false;
        }
        enter();
      }
      if (!wait_for([this] { return may_leave(); }, until)) {
        return false;
      }
      leave();
      ++step_;
      has_entered_ = false;
    }
    return true;
  }

  template <class Ready>
  bool wait_for(const Ready& ready, sdk::Deadline until) {
    // If there is no root, every member is needed: none completes before all have done their part.
    const auto needs = [this](std::uint32_t m) {
      return all_read_all_ || (waits_for(m) && !has_reached(m, awaited()));
    };
    return control_.wait(until, next_check_, group_.cancelled(), needs, ready);
  }

  [[nodiscard]] std::uint64_t number() const noexcept { return first_number_ + step_ + 1; }
  /// The step that others must have entered: this one or, before a staging buffer is reused, the one after the buffer's
  /// last use.
  [[nodiscard]] std::uint64_t awaited() const noexcept {
    return has_entered_ ? number() : number() - std::min<std::uint64_t>(number(), agreed_.staging_buffers - 1);
  }

  /// Whether this member has to wait for member m now.
  [[nodiscard]] bool waits_for(std::uint32_t m) const noexcept {
    if (m == rank_) {
      return false;
    }
    if (all_read_all_ || (agreed_.is_mapped && op_.opcode == SR_OP_REDUCE)) {
      return true;
    }
    const bool spreads = op_.opcode == SR_OP_BROADCAST || op_.opcode == SR_OP_SCATTER;
    const bool reads = has_entered_ && !(agreed_.is_mapped && step_ == 1);
    // Readers wait for writers. Writers wait for their readers before they write again or complete.
    return spreads == reads ? m == op_.peer : rank_ == op_.peer;
  }

  [[nodiscard]] bool has_reached(std::uint32_t m, std::uint64_t number) const noexcept {
    return agreed_.progress(m, number).reached.load() >= number;
  }
  [[nodiscard]] bool have_reached(std::uint64_t number) const noexcept {
    for (std::uint32_t m = 0; m < size_; ++m) {
      if (waits_for(m) && !has_reached(m, number)) {
        return false;
      }
    }
    return true;
  }
  /// Whether the next staging buffer is free. Others are mostly further ahead, so `seen_` saves half of the checks.
  [[nodiscard]] bool may_enter() noexcept {
    if (agreed_.is_mapped || all_read_all_ || awaited() <= seen_) {
      return true;
    }
    const std::uint64_t further = awaited() + agreed_.staging_buffers / 2;
    seen_ = have_reached(further) ? further : have_reached(awaited()) ? awaited() : seen_;
    return awaited() <= seen_;
  }
  [[nodiscard]] bool may_leave() const noexcept { return have_reached(awaited()); }

  void enter() noexcept {
    if (!agreed_.is_mapped && !(by_shares_ && step_ % 2 == 1)) {
      fill_staging();
    }
    agreed_.progress(rank_, number()).reached.store(number());
    control_.notify();
    has_entered_ = true;
    if (runs_ahead_) {
      prefetch_to_write(agreed_.progress(rank_, number() + 1));
    }
  }

  void leave() {
    if (agreed_.is_mapped) {
      return step_ == 0 ? run_mapped() : void();
    }
    if (by_shares_) {
      return step_ % 2 == 0 ? reduce_share_of_staging() : gather_from_staging();
    }
    read_staging();
  }

  [[nodiscard]] TransportError past_deadline() const {
    std::vector<std::uint32_t> missing;
    for (std::uint32_t m = 0; m < size_; ++m) {
      if (waits_for(m) && !has_reached(m, awaited())) {
        missing.push_back(m);
      }
    }
    return control_.past_deadline(what() + " is past its deadline", missing);
  }

  // Blocks.

  /// This member's block for member `to`. If all members share one block, that block.
  [[nodiscard]] Block sent_block(std::uint32_t to) const {
    return blocks_of(op_.opcode, size_) == 1 ? Block{0, shardrun::sdk::send_elements(op_, rank_, size_)}
                                             : shardrun::sdk::send_block(op_, rank_, to);
  }

  /// Offset of this member's block in member m's send buffer.
  [[nodiscard]] std::uint64_t offset_in_send_of(std::uint32_t m) const {
    if (op_.opcode == SR_OP_ALL_TO_ALLV) {
      return agreed_.offsets[m];
    }
    return shardrun::sdk::send_block(op_, m, rank_).offset;
  }

  /// The part of `count` elements that member m reduces. Shares begin at cache lines.
  [[nodiscard]] Block share(std::uint32_t m, std::uint64_t count) const noexcept {
    const std::uint64_t line = 64 / element_bytes_;
    const auto begin = [&](std::uint64_t i) {
      const std::uint64_t lines = (count + line - 1) / line;
      return std::min(count, (lines / size_ * i + std::min<std::uint64_t>(i, lines % size_)) * line);
    };
    return {begin(m), begin(m + 1) - begin(m)};
  }

  static void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) noexcept {
    if (to != from && bytes > 0) {
      std::memcpy(to, from, bytes);
    }
  }

  /// Reduces `count` elements of `sources_`, which are in the order of the members, into `targets_`.
  void reduce(std::uint64_t count) const noexcept {
    reducer_.run(
        sources_.size(), [this](std::size_t i) { return sources_[i]; }, targets_.size(),
        [this](std::size_t i) { return targets_[i]; }, count);
  }

  // Mapped collectives.

  /// Member m's send buffer and receive buffer, as mapped in this process.
  [[nodiscard]] std::byte* send_of(std::uint32_t m) const { return m == rank_ ? user_send_ : agreed_.sends[m].get(); }
  [[nodiscard]] std::byte* recv_of(std::uint32_t m) const { return m == rank_ ? user_recv_ : agreed_.recvs[m].get(); }

  void run_mapped() {
    switch (op_.opcode) {
      case SR_OP_ALL_REDUCE:
      case SR_OP_REDUCE: return reduce_mapped(share(rank_, op_.count));
      case SR_OP_REDUCE_SCATTER:
      case SR_OP_REDUCE_SCATTERV: return reduce_mapped(shardrun::sdk::send_block(op_, rank_, rank_));
      default: return copy_mapped();
    }
  }

  void copy_mapped() {
    const auto is_read = [this](std::uint32_t m) { return shardrun::sdk::recv_block(op_, rank_, m).count > 0; };
    control_.touch(is_read, [this] {
      // Each member begins with its own data, so that not all read the same member's at the same time.
      for (std::uint32_t i = 0; i < size_; ++i) {
        const std::uint32_t m = (rank_ + i) % size_;
        const Block to = shardrun::sdk::recv_block(op_, rank_, m);
        if (to.count > 0) {
          copy(user_recv_ + to.offset * element_bytes_, send_of(m) + offset_in_send_of(m) * element_bytes_,
               to.count * element_bytes_);
        }
      }
    });
  }

  void reduce_mapped(const Block& block) {
    if (block.count == 0) {
      return;
    }
    const std::uint64_t offset = block.offset * element_bytes_;
    sources_.clear();
    targets_.clear();
    for (std::uint32_t m = 0; m < size_; ++m) {
      sources_.push_back(send_of(m) + offset);
      if (op_.opcode == SR_OP_ALL_REDUCE || (op_.opcode == SR_OP_REDUCE && m == op_.peer)) {
        targets_.push_back(recv_of(m) + offset);
      }
    }
    if (targets_.empty()) {
      targets_.push_back(user_recv_);
    }
    control_.touch(Control::everyone, [&] { reduce(block.count); });
  }

  // Staged collectives.

  [[nodiscard]] std::uint32_t round() const noexcept { return by_shares_ ? step_ / 2 : step_; }
  /// The piece of a block that this round moves.
  [[nodiscard]] Block piece_of(const Block& block) const noexcept {
    const std::uint64_t most = agreed_.piece_bytes / std::max<std::uint64_t>(1, element_bytes_);
    const std::uint64_t begin = std::min(block.count, round() * most);
    return {block.offset + begin, std::min(most, block.count - begin)};
  }
  /// If members reduce shares, the two steps of a round use the same buffer.
  [[nodiscard]] std::byte* staging_of(std::uint32_t m) const noexcept {
    return agreed_.staging(m, by_shares_ ? (number() - 1) / 2 : number());
  }

  void fill_staging() noexcept {
    if (user_send_ == nullptr) {
      return;
    }
    const std::uint32_t blocks = blocks_of(op_.opcode, size_);
    for (std::uint32_t to = 0; to < blocks; ++to) {
      if (blocks == 1 || to != rank_) {
        const Block piece = piece_of(sent_block(to));
        copy(staging_of(rank_) + to * agreed_.piece_bytes, user_send_ + piece.offset * element_bytes_,
             piece.count * element_bytes_);
      }
    }
  }

  /// Member m's piece for this member. This member's own piece is read from its send buffer.
  [[nodiscard]] const std::byte* piece_from(std::uint32_t m, const Block& own) const noexcept {
    return m == rank_ ? user_send_ + own.offset * element_bytes_
                      : staging_of(m) + (blocks_of(op_.opcode, size_) == 1 ? 0 : rank_ * agreed_.piece_bytes);
  }

  void read_staging() noexcept {
    switch (op_.opcode) {
      case SR_OP_BARRIER: return;
      case SR_OP_REDUCE: return rank_ == op_.peer ? reduce_staging({0, op_.count}, 0) : void();
      case SR_OP_ALL_REDUCE: return reduce_staging({0, op_.count}, 0);
      case SR_OP_REDUCE_SCATTER:
      case SR_OP_REDUCE_SCATTERV: {
        const Block block = shardrun::sdk::send_block(op_, rank_, rank_);
        return reduce_staging(block, block.offset);
      }
      default: return copy_staging();
    }
  }

  void copy_staging() noexcept {
    for (std::uint32_t m = 0; m < size_; ++m) {
      const Block to = piece_of(shardrun::sdk::recv_block(op_, rank_, m));
      if (to.count > 0) {
        const Block own =
            m == rank_ ? piece_of({offset_in_send_of(m), shardrun::sdk::recv_block(op_, rank_, m).count}) : Block{};
        copy(user_recv_ + to.offset * element_bytes_, piece_from(m, own), to.count * element_bytes_);
      }
    }
  }

  /// `before`: elements of the send buffer before the first one of the result.
  void reduce_staging(const Block& block, std::uint64_t before) noexcept {
    const Block piece = piece_of(block);
    if (piece.count == 0) {
      return;
    }
    sources_.clear();
    for (std::uint32_t m = 0; m < size_; ++m) {
      sources_.push_back(piece_from(m, piece));
    }
    targets_.assign(1, user_recv_ + (piece.offset - before) * element_bytes_);
    reduce(piece.count);
  }

  void reduce_share_of_staging() noexcept {
    const Block piece = piece_of({0, op_.count});
    const Block own = share(rank_, piece.count);
    const std::uint64_t offset = own.offset * element_bytes_;
    sources_.clear();
    for (std::uint32_t m = 0; m < size_; ++m) {
      sources_.push_back(staging_of(m) + offset);
    }
    targets_.assign(1, staging_of(rank_) + offset);
    reduce(own.count);
  }

  void gather_from_staging() noexcept {
    const Block piece = piece_of({0, op_.count});
    for (std::uint32_t m = 0; m < size_; ++m) {
      const Block part = share(m, piece.count);
      copy(user_recv_ + (piece.offset + part.offset) * element_bytes_, staging_of(m) + part.offset * element_bytes_,
           part.count * element_bytes_);
    }
  }

  /// Bytes per run that others read from this member, or that this member writes to them.
  [[nodiscard]] std::uint64_t given_to_others(std::uint64_t sent) const {
    if (by_shares_ || (agreed_.is_mapped && op_.opcode == SR_OP_REDUCE)) {
      std::uint64_t own = 0;
      for (std::uint64_t done = 0; done < op_.count;) {
        const std::uint64_t piece = agreed_.is_mapped ? op_.count : agreed_.piece_bytes / element_bytes_;
        own += share(rank_, std::min(piece, op_.count - done)).count * element_bytes_;
        done += piece;
      }
      const std::uint64_t readers = op_.opcode == SR_OP_ALL_REDUCE ? size_ - 1 : rank_ == op_.peer ? 0 : 1;
      return sent - own + readers * own;
    }
    if (op_.opcode == SR_OP_ALL_REDUCE) {
      return (size_ - 1) * sent;
    }
    std::uint64_t bytes = 0;
    for (std::uint32_t m = 0; m < size_; ++m) {
      bytes += m == rank_ ? 0 : shardrun::sdk::send_block(op_, rank_, m).count * element_bytes_;
    }
    return bytes;
  }

  ShmGroup& group_;
  Control& control_;
  const OpSpec op_;
  std::uint32_t rank_;
  std::uint32_t size_;
  std::uint64_t element_bytes_;
  bool in_background_;
  bool all_read_all_;  ///< there is no root: no member continues before all have entered
  bool by_shares_ = false;
  bool runs_ahead_ = false;  ///< no other member yet reads the cache line that this one writes next
  bool has_entered_ = false;
  std::byte* user_send_ = nullptr;
  std::byte* user_recv_ = nullptr;
  Agreed agreed_;
  shardrun::sdk::Reducer reducer_;
  std::vector<const std::byte*> sources_;  ///< reserved, so that a reduction allocates nothing
  std::vector<std::byte*> targets_;
  std::uint64_t wire_bytes_ = 0;
  std::uint32_t steps_ = 0;
  std::uint32_t step_ = 0;  ///< the current step of this run
  std::uint32_t step_count_before_ = 0;
  std::uint64_t first_number_ = 0;  ///< number of steps in all earlier runs
  std::uint64_t seen_ = 0;          ///< all members that this one waits for are known to have entered this step
  sdk::Deadline deadline_;
  shardrun::sdk::OpTimes times_on_caller_;
  Control::NextCheck next_check_ = sdk::Deadline::past();
};

}  // namespace

std::unique_ptr<shardrun::sdk::Op> make_collective(ShmGroup& group, const OpSpec& op, sdk::Deadline deadline) {
  return std::make_unique<Collective>(group, op, deadline);
}

}  // namespace shardrun::shm_transport
