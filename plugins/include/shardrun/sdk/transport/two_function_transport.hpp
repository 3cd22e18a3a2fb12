#pragma once

/// A transport from two functions:
///
///     class Pipes {
///      public:
///       Pipes(const Config& config, const GroupSpec& group, const Cancel& cancel);  // connects the group's members
///       void send(std::uint32_t peer, const void* data, std::size_t bytes, Deadline deadline);
///       void receive(std::uint32_t peer, void* data, std::size_t bytes, Deadline deadline);
///     };
///     SHARDRUN_EXPORT_TWO_FUNCTION_TRANSPORT(Pipes, "pipes", "1.0")
///
/// There is one object per group; `peer` is an index into GroupSpec::members. Both functions return when all bytes are
/// passed on, and keep the order of the bytes from one member to another. Each function is called by one thread at a
/// time, but one thread can call `send` while another calls `receive`. Wherever they or the constructor wait, they
/// check `cancel` at least ten times a second. They throw TransportError{SR_TIMEOUT} past the deadline, and
/// {SR_PEER_LOST} if the peer has ended. The class can declare options and Props, as any transport does, by the static
/// functions `std::vector<Option> options()` and `Props props()`.
///
/// A link that never blocks has three functions instead, and is faster: one thread serves both directions. For a
/// blocking op, that is the caller's thread.
///
///       std::size_t try_send(std::uint32_t peer, std::span<const iovec> parts);
///       std::size_t try_receive(std::uint32_t peer, std::span<const iovec> parts);
///       void wait(std::span<const std::uint32_t> to, std::span<const std::uint32_t> from, Deadline deadline);
///
/// The first two pass on what they can of `parts` (POSIX; not empty), and return how many bytes. A send that was passed
/// on in part is repeated with the rest. `wait` returns once something can be sent to a member of `to` or received from
/// one of `from`, at the deadline, or after at most a tenth of a second. One thread at a time calls them.
///
/// All collectives are built from these functions (collectives.hpp), and run in the background (worker.hpp).

#include <shardrun/sdk/transport/collectives.hpp>
#include <shardrun/sdk/transport/link_group.hpp>
#include <shardrun/sdk/transport/group.hpp>
#include <shardrun/sdk/transport/worker.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardrun::sdk {

namespace detail {

/// The messages of a stage, and local steps around them. Each step runs as early as the steps before it and the
/// messages allow.
struct MessageStage {
  std::vector<LinkMessage> sends = {};
  std::vector<LinkMessage> receives = {};
  std::vector<LocalStep> early = {};                      ///< run while messages are on their way
  std::optional<LocalStep> as_it_arrives = std::nullopt;  ///< reduces the only receive, piece by piece
  std::vector<LocalStep> late = {};
};

/// Makes stages of messages from the stages of a schedule.
class StageWriter {
 public:
  StageWriter(const OpBuffers& buffers, std::uint64_t id) : buffers_(buffers), id_(id) {}

  [[nodiscard]] MessageStage write(const ScheduleStage& from) const {
    MessageStage stage = {.sends = messages(from.sends), .receives = messages(from.receives)};
    for (const LocalStep& step : from.steps) {
      if (!stage.late.empty() || stage.as_it_arrives) {
        stage.late.push_back(step);
      } else if (is_free(stage, step)) {
        stage.early.push_back(step);
      } else if (follows_arrival(stage, step)) {
        stage.as_it_arrives = step;
      } else {
        stage.late.push_back(step);
      }
    }
    return stage;
  }

 private:
  [[nodiscard]] std::vector<LinkMessage> messages(const std::vector<Movement>& movements) const {
    std::vector<LinkMessage> found;
    for (const Movement& movement : movements) {
      found.emplace_back(movement.peer, id_, buffers_.data(movement.region), buffers_.bytes(movement.region));
    }
    return found;
  }

  [[nodiscard]] bool touches(const BufferRegion& region, const std::vector<LinkMessage>& messages) const {
    const auto* const first = reinterpret_cast<const std::byte*>(buffers_.data(region));
    const auto* const last = first + buffers_.bytes(region);
    const std::less<const std::byte*> before;
    return std::any_of(messages.begin(), messages.end(), [&](const LinkMessage& message) {
      return before(first, message.data + message.header.bytes) && before(message.data, last);
    });
  }

  /// Whether a step neither accesses received blocks nor writes sent ones.
  [[nodiscard]] bool is_free(const MessageStage& stage, const LocalStep& step) const {
    return std::none_of(step.from.begin(), step.from.end(),
                        [&](const BufferRegion& from) { return touches(from, stage.receives); }) &&
           !touches(step.to, stage.receives) && !touches(step.to, stage.sends);
  }

  /// Whether a step reduces exactly the received block with something else.
  [[nodiscard]] bool follows_arrival(const MessageStage& stage, const LocalStep& step) const {
    if (stage.receives.size() != 1 || !step.reduces) {
      return false;
    }
    const LinkMessage& message = stage.receives[0];
    return std::any_of(step.from.begin(), step.from.end(),
                       [&](const BufferRegion& region) {
                         return reinterpret_cast<const std::byte*>(buffers_.data(region)) == message.data &&
                                buffers_.bytes(region) == message.header.bytes;
                       }) &&
           !touches(step.to, stage.sends);
  }

  const OpBuffers& buffers_;
  std::uint64_t id_;
};

/// A prepared op or batch: stages of messages.
template <class Link>
class LinkOp final : public Op, private Worker::Task {
 public:
  LinkOp(LinkGroup<Link>& group, LinkOp*& deferred, std::span<const OpSpec> ops)
      : group_(group),
        deferred_(deferred),
        what_(describe(ops[0])),
        buffers_(ops[0], ops[0].dtype),
        is_blocking_((ops[0].flags & SR_OP_FLAG_BLOCKING) != 0) {
    if (find_opcode(ops[0].opcode)->collective) {
      add_collective(ops[0]);
    } else {
      add_batch(ops);
    }
  }
  ~LinkOp() override {
    if (deferred_ == this) {
      deferred_ = nullptr;
      group_.worker().fail({SR_ABORTED, what_ + " was freed before it was complete"});
    }
    group_.worker().drop(*this);
  }

  /// Gives the worker an op that was left for its `wait` to run, because another op is about to follow it.
  static void hand_over(LinkGroup<Link>& group, LinkOp*& deferred) {
    if (LinkOp* const op = std::exchange(deferred, nullptr)) {
      group.worker().start(*op, op->own_deadline_);
    }
  }

  void start(void*, Deadline deadline) override {
    hand_over();
    own_deadline_ = deadline;
    forget_run();
    const bool is_idle = !group_.worker().is_busy();
    if (is_idle && !communicates_) {
      run_on_caller();
    } else if (UnblockedLink<Link> && is_idle && is_blocking_) {
      throw_failure();
      deferred_ = this;
    } else {
      group_.worker().start(*this, deadline);
    }
  }
  void enqueue(const Queue& queue, std::chrono::nanoseconds timeout) override {
    hand_over();
    forget_run();
    group_.worker().start_in(queue, *this, timeout);
  }
  void join(const Queue& queue) override {
    hand_over();
    group_.worker().join(*this, queue);
  }
  bool test() override {
    hand_over();
    return ran_on_caller_ || group_.worker().test(*this);
  }
  bool wait(Deadline deadline) override {
    if (deferred_ == this && deadline >= own_deadline_) {
      deferred_ = nullptr;
      run_on_caller();
    }
    hand_over();
    return ran_on_caller_ || group_.worker().wait(*this, deadline);
  }
  std::optional<OpTimes> times() const override { return ran_on_caller_ ? times_ : group_.worker().times(*this); }

 private:
  void hand_over() { hand_over(group_, deferred_); }

  void forget_run() {
    ran_on_caller_ = false;
    group_.worker().reset(*this);
  }

  void run_on_caller() {
    throw_failure();
    times_.begun = monotonic_now();
    try {
      run(own_deadline_);
    } catch (const TransportError& error) {
      group_.worker().fail(error);
    } catch (const std::exception& error) {
      group_.worker().fail({SR_INTERNAL, error.what()});
    }
    throw_failure();
    times_.ended = monotonic_now();
    ran_on_caller_ = true;
  }

  void throw_failure() {
    if (group_.worker().failed()) {
      throw TransportError(*group_.worker().failure());
    }
  }

  void add_collective(const OpSpec& op) {
    const Schedule schedule = schedule_of(op, group_.rank(), group_.size());
    require_scratch(op, schedule);
    buffers_ = OpBuffers(op, schedule.dtype);
    element_bytes_ = dtype_size(schedule.dtype);
    const StageWriter writer(buffers_, op.id);
    for (const ScheduleStage& stage : schedule.stages) {
      add(writer.write(stage));
    }
  }

  /// Adds sends and receives. Messages between two members have the same order on both sides: by id, then as given.
  /// Peers are served in the order of their distance, so that at any time some message can be passed on.
  void add_batch(std::span<const OpSpec> ops) {
    MessageStage stage;
    const std::uint32_t n = group_.size();
    for (const OpSpec& op : ops) {
      if (op.count != 0) {
        const bool sends = op.opcode == SR_OP_SEND;
        (sends ? stage.sends : stage.receives)
            .emplace_back(op.peer, op.id, sends ? op.send->data : op.recv->data, op.count * dtype_size(op.dtype));
      }
    }
    const auto by = [&](auto distance) {
      return [=](const LinkMessage& a, const LinkMessage& b) {
        return std::pair(distance(a.peer), a.header.id) < std::pair(distance(b.peer), b.header.id);
      };
    };
    const std::uint32_t rank = group_.rank();
    std::stable_sort(stage.sends.begin(), stage.sends.end(),
                     by([=](std::uint32_t peer) { return (peer + n - rank) % n; }));
    std::stable_sort(stage.receives.begin(), stage.receives.end(),
                     by([=](std::uint32_t peer) { return (rank + n - peer) % n; }));
    add(std::move(stage));
  }

  void add(MessageStage stage) {
    communicates_ = communicates_ || !stage.sends.empty() || !stage.receives.empty();
    stages_.push_back(std::move(stage));
  }

  void run(Deadline deadline) override {
    const std::lock_guard lock(group_.in_use());
    naming(what_, [&] {
      for (MessageStage& stage : stages_) {
        run(stage, deadline);
      }
    });
  }

  void run(MessageStage& stage, Deadline deadline) {
    std::uint64_t reduced = 0;
    group_.exchange(
        stage.sends, stage.receives, deadline, [&] { run(stage.early); },
        [&](const LinkMessage& message) {
          if (stage.as_it_arrives) {
            const std::uint64_t bytes = message.bytes_passed();
            const std::uint64_t whole = message.is_complete() ? bytes : bytes / piece_bytes * piece_bytes;
            buffers_.run(*stage.as_it_arrives, reduced / element_bytes_, (whole - reduced) / element_bytes_);
            reduced = whole;
          }
        });
    run(stage.late);
  }

  void run(const std::vector<LocalStep>& steps) const {
    for (const LocalStep& step : steps) {
      buffers_.run(step);
    }
  }

  [[nodiscard]] std::string what() const override { return what_; }

  LinkGroup<Link>& group_;
  LinkOp*& deferred_;  ///< the group's started op that its `wait` will run, on the caller's thread; null: none
  std::string what_;
  OpBuffers buffers_;
  std::uint64_t element_bytes_ = 1;
  std::vector<MessageStage> stages_;
  bool communicates_ = false;
  bool is_blocking_;

  // State of the latest run:
  Deadline own_deadline_;
  bool ran_on_caller_ = false;
  OpTimes times_;
};

template <class Link>
class TwoFunctionGroup final : public Group {
 public:
  TwoFunctionGroup(const Config& config, const GroupSpec& spec, Traffic& traffic) : group_(config, spec, traffic) {}

  std::unique_ptr<Op> prepare(std::span<const OpSpec> ops, Deadline deadline) override {
    LinkOp<Link>::hand_over(group_, deferred_);
    if (group_.size() > 1 && find_opcode(ops[0].opcode)->collective) {
      AgreeTask<Link>(group_, ops[0]).finish(deadline);
    }
    return std::make_unique<LinkOp<Link>>(group_, deferred_, ops);
  }
  void abort(std::string_view reason) noexcept override { group_.worker().fail({SR_ABORTED, std::string(reason)}); }
  std::optional<TransportError> error() override { return group_.worker().failure(); }

 private:
  LinkGroup<Link> group_;
  LinkOp<Link>* deferred_ = nullptr;
};

}  // namespace detail

/// The whole transport over an author's link.
template <class Link>
requires TwoFunctionLink<Link> || UnblockedLink<Link>
class TwoFunctionTransport {
 public:
  static std::vector<Option> options() {
    if constexpr (detail::DeclaresOptions<Link>) {
      return Link::options();
    } else {
      return {};
    }
  }

  Props props() const {
    Props props;
    if constexpr (requires {
                    { Link::props() } -> std::same_as<Props>;
                  }) {
      props = Link::props();
    }
    props.queue_kinds |= std::uint32_t{1} << SR_QUEUE_HOST;
    return props;
  }

  std::optional<OpInfo> query(const OpSpec& op, std::uint32_t group_size) const {
    return OpInfo{.flags = SR_OP_INFO_ASYNC | rounding_flags(op, group_size),
                  .scratch_bytes = scratch_bytes_of(op, group_size)};
  }

  void open(const Config& config) {
    config_ = config;
    if (traffic_.from.empty()) {
      traffic_.from = std::vector<detail::Traffic::From>(config.world_size);
    }
  }
  void close() {}
  std::uint64_t wire_bytes() const { return traffic_.wire_bytes.load(std::memory_order_relaxed); }
  Arrivals arrivals(std::uint32_t rank) const {
    const detail::Traffic::From& from = traffic_.from.at(rank);
    return {from.bytes.load(std::memory_order_relaxed), from.nanoseconds.load(std::memory_order_relaxed)};
  }
  std::uint64_t mem_register(const sr_memory&) { return ++registrations_; }
  void mem_deregister(std::uint64_t) {}

  std::unique_ptr<Group> group(const GroupSpec& spec) {
    return std::make_unique<detail::TwoFunctionGroup<Link>>(config_, spec, traffic_);
  }

 private:
  Config config_;
  detail::Traffic traffic_;
  std::uint64_t registrations_ = 0;
};

}  // namespace shardrun::sdk

/// Exports the transport that `Link` makes; like SHARDRUN_EXPORT_TRANSPORT.
#define SHARDRUN_EXPORT_TWO_FUNCTION_TRANSPORT(Link, plugin_name, ...) \
  SHARDRUN_EXPORT_TRANSPORT(shardrun::sdk::TwoFunctionTransport<Link>, plugin_name, __VA_ARGS__)
