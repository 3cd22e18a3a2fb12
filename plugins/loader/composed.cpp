#include "plugins/loader/composed.h"

#include <fmt/format.h>
#include <shardrun/sdk/transport/agreement.hpp>
#include <shardrun/sdk/transport/border.hpp>
#include <shardrun/sdk/transport/collectives.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "core/device/hash.h"
#include "plugins/loader/background.h"
#include "plugins/loader/call.h"
#include "plugins/loader/transport_queue.h"

namespace shardrun::plugins {
namespace {

using sdk::OpSpec;
using sdk::TransportError;

/// A send or receive of one range of memory.
OpSpec transfer(std::uint32_t opcode, std::uint32_t peer, std::uint64_t id, std::uint32_t dtype, std::uint64_t count,
                const sdk::Buffer& buffer, const std::string& label) {
  OpSpec op = {.opcode = opcode, .dtype = dtype, .peer = peer, .id = id, .count = count, .label = label};
  (opcode == SR_OP_SEND ? op.send : op.recv) = buffer;
  return op;
}

/// The schedule of a member for an op: a collective, a single send, or a single receive.
sdk::Schedule part_in(const OpSpec& op, std::uint32_t rank, std::uint32_t members) {
  if (sdk::find_opcode(op.opcode)->collective) {
    return is_in_order(op) ? sdk::schedule_in_order_of(op, rank, members) : sdk::schedule_of(op, rank, members);
  }
  sdk::Schedule schedule{.dtype = op.dtype, .stages = {{}}};
  const bool sends = op.opcode == SR_OP_SEND;
  (sends ? schedule.stages[0].sends : schedule.stages[0].receives)
      .push_back({op.peer, 0, {sends ? sdk::OpBuffer::send : sdk::OpBuffer::recv, 0, op.count}});
  return schedule;
}

/// The hashes of a stage's messages, in the order of its sends and receives.
struct StageHashes {
  explicit StageHashes(const sdk::ScheduleStage& stage) : sent(stage.sends.size()), received(stage.receives.size()) {}

  std::vector<std::uint64_t> sent;
  std::vector<std::uint64_t> received;
};

class ComposedOp final : public TransportOp::State, private sdk::Worker::Task {
 public:
  ComposedOp(std::shared_ptr<TransportGroup::State> group, const OpSpec& op, std::vector<std::byte> scratch)
      : group_(std::move(group)),
        op_(op),
        schedule_(part_in(op, group_->spec.rank, group_->spec.size())),
        buffers_(op, schedule_.dtype),
        scratch_(std::move(scratch)),
        what_(fmt::format("group {}, {}", group_->spec.name, sdk::describe(op))) {
    for (std::size_t s = 0; group_->transport->setup.checked && s < schedule_.stages.size(); ++s) {
      hashes_.emplace_back(schedule_.stages[s]);
    }
    if (op.scratch && op.scratch->bytes > 0) {
      // The plan has the same scratch for every member, although some use less of it. All of it is touched here, so
      // that measured memory equals planned memory.
      std::memset(op.scratch->data, 0, op.scratch->bytes);
    }
  }
  ComposedOp(const ComposedOp&) = delete;
  ComposedOp& operator=(const ComposedOp&) = delete;

  ~ComposedOp() override {
    ComposedGroup* const composed = group_->composed();
    if (composed == nullptr) {
      return;
    }
    composed->worker().drop(*this);
    Errand free("freeing", [&](sdk::Deadline) {
      for (const std::uint64_t batch : batches_) {
        composed->free(batch);
      }
    });
    composed->worker().clean_up(free);
  }

  void prepare(std::int64_t deadline) {
    if (group_->spec.size() == 1) {
      return;
    }
    ComposedGroup& composed = group_->composing(deadline);
    std::optional<std::string> difference;
    Errand errand("preparing " + what_, [&](sdk::Deadline latest) {
      const std::uint64_t id = composed.next_serial() << 32U;
      if (sdk::find_opcode(op_.opcode)->collective) {
        difference = compare(id, latest);
      }
      if (!difference) {
        prepare_stages(id, latest);
      }
    });
    wait_for(errand, deadline);
    if (difference) {
      throw TransportError(SR_INVALID, *difference);
    }
  }

  void start(std::int64_t deadline) override {
    is_on_worker_ = !batches_.empty() || (group_->composed() != nullptr && group_->composed()->worker().is_busy());
    if (!is_on_worker_) {
      require_alive();
      run(sdk::Deadline::from_border(deadline));
      return;
    }
    (void)naming([&] {
      group_->composed()->check_parent();
      worker().start(*this, sdk::Deadline::from_border(deadline));
      return true;
    });
  }

  void enqueue(const TransportQueue& queue, std::int64_t timeout) override {
    is_on_worker_ = true;
    ComposedGroup& composed = group_->composing((sdk::Deadline::now() + std::chrono::nanoseconds(timeout)).to_border());
    (void)naming([&] {
      composed.check_parent();
      worker().start_in(sdk::Queue(queue.raw()), *this, std::chrono::nanoseconds(timeout));
      return true;
    });
  }
  void join(const TransportQueue& queue) override {
    (void)naming([&] {
      if (is_on_worker_) {
        worker().join(*this, sdk::Queue(queue.raw()));
      }
      return true;
    });
  }

  bool test() override {
    return naming([&] { return !is_on_worker_ || worker().test(*this); });
  }
  bool wait(std::int64_t deadline) override {
    return naming([&] { return !is_on_worker_ || worker().wait(*this, sdk::Deadline::from_border(deadline)); });
  }
  std::optional<sdk::OpTimes> times() override {
    return is_on_worker_ ? std::optional(worker().times(*this)) : std::nullopt;
  }

 private:
  /// REQUIRES: there are several members, or an op has been enqueued: a group of one has the worker only for queues.
  sdk::Worker& worker() { return group_->composed()->worker(); }

  template <class Act>
  bool naming(Act act) {
    try {
      return act();
    } catch (const TransportError& error) {
      fail(group_->transport->what(what_), error);
    }
  }

  void require_alive() const {
    const TransportState& transport = *group_->transport;
    sr_error error = empty_error();
    const std::int32_t status = transport.functions.group_error(transport.self, group_->handle, &error);
    if (status != SR_OK) {
      fail(transport.what(what_), failure_of(status, error));
    }
  }

  /// Runs `errand` on the worker. When this returns, the errand has ended, with or without an error.
  template <class Act>
  void wait_for(Errand<Act>& errand, std::int64_t deadline) {
    try {
      worker().start(errand, sdk::Deadline::from_border(deadline));
      (void)worker().wait(errand, sdk::Deadline::never());
    } catch (const TransportError&) {
      worker().drop(errand);
      throw;
    }
  }

  /// Why the members' ops do not match; nothing if they do.
  std::optional<std::string> compare(std::uint64_t id, sdk::Deadline deadline) {
    sdk::Agreement agreement(op_, group_->spec.rank, group_->spec.size());
    for (std::uint32_t round = 0; round < sdk::Agreement::rounds; ++round) {
      std::vector<OpSpec> batch;
      const std::uint64_t bytes = agreement.bytes(round);
      for (std::uint32_t peer = 0; peer < group_->spec.size(); ++peer) {
        if (peer != group_->spec.rank) {
          batch.push_back(transfer(SR_OP_SEND, peer, id, SR_DTYPE_U8, bytes,
                                   {.data = agreement.outgoing(round, peer), .bytes = bytes}, op_.label));
          batch.push_back(transfer(SR_OP_RECV, peer, id, SR_DTYPE_U8, bytes,
                                   {.data = agreement.incoming(round, peer), .bytes = bytes}, op_.label));
        }
      }
      run_once(batch, deadline);
      agreement.conclude(round);
    }
    return agreement.difference();
  }

  void run_once(const std::vector<OpSpec>& batch, sdk::Deadline deadline) {
    struct Held {
      ComposedGroup& group;
      std::uint64_t handle;
      ~Held() { group.free(handle); }
    };
    ComposedGroup& composed = *group_->composed();
    const Held held{composed, composed.prepare(batch, deadline)};
    composed.start_and_wait(held.handle, deadline);
  }

  void prepare_stages(std::uint64_t id, sdk::Deadline deadline) {
    batches_.reserve(schedule_.stages.size());
    for (std::size_t s = 0; s < schedule_.stages.size(); ++s) {
      const sdk::ScheduleStage& stage = schedule_.stages[s];
      std::vector<OpSpec> batch;
      for (const sdk::Movement& movement : stage.sends) {
        batch.push_back(moving(SR_OP_SEND, movement, id));
      }
      for (const sdk::Movement& movement : stage.receives) {
        batch.push_back(moving(SR_OP_RECV, movement, id));
      }
      if (!hashes_.empty()) {
        add_hashes(SR_OP_SEND, stage.sends, hashes_[s].sent, id, batch);
        add_hashes(SR_OP_RECV, stage.receives, hashes_[s].received, id, batch);
      }
      batches_.push_back(batch.empty() ? 0 : group_->composed()->prepare(batch, deadline));
    }
  }

  [[nodiscard]] OpSpec moving(std::uint32_t opcode, const sdk::Movement& movement, std::uint64_t id) const {
    const std::optional<sdk::Buffer>& whole = movement.region.buffer == sdk::OpBuffer::send   ? op_.send
                                              : movement.region.buffer == sdk::OpBuffer::recv ? op_.recv
                                                                                              : op_.scratch;
    sdk::Buffer part = *whole;
    part.data = buffers_.data(movement.region);
    part.bytes = buffers_.bytes(movement.region);
    return transfer(opcode, movement.peer, id + 1 + movement.tag, schedule_.dtype, movement.region.count, part,
                    op_.label);
  }

  /// Adds, for each of a stage's sends or receives, a second message that carries the hash of the first.
  void add_hashes(std::uint32_t opcode, const std::vector<sdk::Movement>& movements, std::vector<std::uint64_t>& hashes,
                  std::uint64_t id, std::vector<OpSpec>& batch) const {
    constexpr std::uint64_t tags_of_hashes = std::uint64_t{1} << 31U;
    for (std::size_t i = 0; i < movements.size(); ++i) {
      batch.push_back(transfer(opcode, movements[i].peer, id + tags_of_hashes + movements[i].tag, SR_DTYPE_U8,
                               sizeof(hashes[i]), {.data = &hashes[i], .bytes = sizeof(hashes[i])}, op_.label));
    }
  }

  /// The hash of a message. It is not 0 for a message of zeros: if the message and its hash are lost, zeros can arrive
  /// for both, and they must not match.
  [[nodiscard]] std::uint64_t hash_of(const sdk::BufferRegion& region) const {
    constexpr std::uint64_t of_nothing = 0x9E3779B97F4A7C15;
    return of_nothing +
           device::hash_of({reinterpret_cast<const std::byte*>(buffers_.data(region)), buffers_.bytes(region)});
  }

  void compare_hashes(std::size_t s) const {
    const std::vector<sdk::Movement>& receives = schedule_.stages[s].receives;
    for (std::size_t i = 0; i < receives.size(); ++i) {
      const std::uint64_t expected = hashes_[s].received[i];
      const std::uint64_t found = hash_of(receives[i].region);
      if (found != expected) {
        throw TransportError(
            SR_INTERNAL,
            fmt::format(
                "bits changed between member {} (rank {}) and this member {} (rank {}): the hash of what was "
                "sent is {:016x}, and of what arrived {:016x}. The transport, the network or a memory has "
                "changed them. Nothing of this step is saved. Run the job again from its newest checkpoint, and "
                "without that link if it happens again",
                receives[i].peer, group_->spec.members[receives[i].peer], group_->spec.rank,
                group_->spec.members[group_->spec.rank], expected, found));
      }
    }
  }

  void run(sdk::Deadline deadline) override {
    for (std::size_t i = 0; i < schedule_.stages.size(); ++i) {
      if (!hashes_.empty()) {
        const std::vector<sdk::Movement>& sends = schedule_.stages[i].sends;
        std::ranges::transform(sends, hashes_[i].sent.begin(),
                               [this](const sdk::Movement& movement) { return hash_of(movement.region); });
      }
      if (!batches_.empty() && batches_[i] != 0) {
        group_->composed()->start_and_wait(batches_[i], deadline);
      }
      if (!hashes_.empty()) {
        compare_hashes(i);
      }
      for (const sdk::LocalStep& step : schedule_.stages[i].steps) {
        buffers_.run(step);
      }
    }
  }
  [[nodiscard]] std::string what() const override { return what_; }

  std::shared_ptr<TransportGroup::State> group_;
  OpSpec op_;
  sdk::Schedule schedule_;
  sdk::OpBuffers buffers_;
  std::vector<std::byte> scratch_;
  std::string what_;
  std::vector<StageHashes> hashes_;     ///< one per stage of a checked op
  std::vector<std::uint64_t> batches_;  ///< one per stage, 0 if the stage moves nothing; empty if none moves anything
  bool is_on_worker_ = false;           ///< the latest run is on the worker
};

/// Ids from here on belong to groups that run composed collectives.
constexpr std::uint64_t composed_ids = std::uint64_t{1} << 63U;

}  // namespace

ComposedGroup::ComposedGroup(const TransportGroup::State& parent, std::int64_t deadline)
    : parent_(parent), transport_(*parent.transport), worker_([this] { abort_both(); }) {
  sdk::GroupSpec spec = parent.spec;
  spec.id |= composed_ids;
  spec.deadline = sdk::Deadline::from_border(deadline);
  handle_ = create_group(transport_, spec);
}

ComposedGroup::~ComposedGroup() {
  sr_error error = empty_error();
  (void)transport_.functions.group_destroy(transport_.self, handle_, &error);
}

void ComposedGroup::abort_both() noexcept {
  const std::string reason = worker_.failure()->what();
  sr_error error = empty_error();
  (void)transport_.functions.group_abort(transport_.self, handle_, reason.c_str(), &error);
  (void)transport_.functions.group_abort(transport_.self, parent_.handle, reason.c_str(), &error);
}

std::optional<TransportError> ComposedGroup::parent_error() const {
  sr_error error = empty_error();
  const std::int32_t status = transport_.functions.group_error(transport_.self, parent_.handle, &error);
  return status == SR_OK ? std::nullopt : std::optional(failure_of(status, error));
}

void ComposedGroup::check_parent() {
  if (const std::optional<TransportError> failure = parent_error()) {
    worker_.fail(*failure);
  }
}

std::uint64_t ComposedGroup::prepare(std::vector<OpSpec> batch, sdk::Deadline deadline) {
  std::vector<std::uint64_t> needed;
  for (const OpSpec& op : batch) {
    needed.push_back(transport_.offered(op, parent_.spec.size())->scratch_bytes);
  }
  std::vector<std::byte> scratch = provide_scratch(batch, needed);
  const sdk::detail::WrittenOps raw(batch);
  sr_error error = empty_error();
  std::uint64_t handle = 0;
  const std::int32_t status = transport_.functions.op_prepare(transport_.self, handle_, raw.data(), raw.size(),
                                                              sizeof(sr_op), deadline.to_border(), &handle, &error);
  if (status != SR_OK) {
    throw failure_of(status, error);
  }
  if (!scratch.empty()) {
    scratch_[handle] = std::move(scratch);
  }
  return handle;
}

void ComposedGroup::start_and_wait(std::uint64_t batch, sdk::Deadline deadline) {
  run_in_background(transport_, batch, deadline, worker_, [this] { return parent_error(); });
}

void ComposedGroup::free(std::uint64_t batch) noexcept {
  if (batch != 0) {
    free_op(transport_, batch);
    scratch_.erase(batch);
  }
}

std::uint64_t hash_bytes(const OpSpec& op, std::uint32_t member, std::uint32_t members) {
  std::uint64_t messages = 0;
  if (members > 1) {
    for (const sdk::ScheduleStage& stage : part_in(op, member, members).stages) {
      messages += stage.sends.size();
    }
  }
  return messages * sizeof(std::uint64_t);
}

std::uint64_t composed_scratch_bytes(const OpSpec& op, std::uint32_t members) {
  return is_in_order(op) ? sdk::scratch_bytes_in_order_of(op, members) : sdk::scratch_bytes_of(op, members);
}

std::unique_ptr<TransportOp::State> compose_op(std::shared_ptr<TransportGroup::State> group, const OpSpec& op,
                                               std::vector<std::byte> scratch, std::int64_t deadline) {
  auto composed = std::make_unique<ComposedOp>(group, op, std::move(scratch));
  try {
    composed->prepare(deadline);
  } catch (const TransportError& error) {
    fail(group->transport->what(fmt::format("group {}, preparing {}", group->spec.name, sdk::describe(op))), error);
  }
  return composed;
}

}  // namespace shardrun::plugins
