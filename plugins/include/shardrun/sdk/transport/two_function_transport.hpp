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
/// passed on, and keep the order of the bytes from one member to another. Two threads may call them at the same time;
/// each function is called by one thread at a time. Wherever they (or the constructor) wait, they check `cancel` at
/// least ten times a second. They throw TransportError{SR_TIMEOUT} past the deadline, {SR_PEER_LOST} where the peer has
/// ended. Options and Props may be declared as for any transport: `static std::vector<Option> options()`, `static Props
/// props()`.
///
/// All collectives are built from these two (collectives.hpp) and run in the background (worker.hpp).

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
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardrun::sdk {

namespace detail {

/// A prepared op or batch: stages of messages.
template <TwoFunctionLink Link>
class LinkOp final : public Op, private Worker::Task {
 public:
  LinkOp(LinkGroup<Link>& group, std::span<const OpSpec> ops)
      : group_(group), what_(describe(ops[0])), buffers_(ops[0], ops[0].dtype) {
    if (find_opcode(ops[0].opcode)->collective) {
      add_collective(ops[0]);
    } else {
      add_batch(ops);
    }
  }
  ~LinkOp() override { group_.worker().drop(*this); }

  void start(void*, Deadline deadline) override {
    is_on_worker_ = communicates_ || group_.worker().is_busy();
    if (is_on_worker_) {
      group_.worker().start(*this, deadline);
      return;
    }
    if (group_.worker().failed()) {
      throw TransportError(*group_.worker().failure());
    }
    run(deadline);
  }
  void enqueue(const Queue& queue, std::chrono::nanoseconds timeout) override {
    is_on_worker_ = true;
    group_.worker().start_in(queue, *this, timeout);
  }
  void join(const Queue& queue) override { group_.worker().join(*this, queue); }
  bool test() override { return !is_on_worker_ || group_.worker().test(*this); }
  bool wait(Deadline deadline) override { return !is_on_worker_ || group_.worker().wait(*this, deadline); }

 private:
  struct MessageStage {
    std::vector<LinkMessage> sends;
    std::vector<LinkMessage> receives;
    std::vector<LocalStep> steps;
  };

  void add_collective(const OpSpec& op) {
    const Schedule schedule = schedule_of(op, group_.rank(), group_.size());
    require_scratch(op, schedule);
    buffers_ = OpBuffers(op, schedule.dtype);
    const auto messages = [&](const std::vector<Movement>& movements) {
      std::vector<LinkMessage> found;
      for (const Movement& movement : movements) {
        found.push_back({movement.peer, op.id, buffers_.data(movement.region), buffers_.bytes(movement.region)});
      }
      return found;
    };
    for (const ScheduleStage& stage : schedule.stages) {
      add({messages(stage.sends), messages(stage.receives), stage.steps});
    }
  }

  /// Messages between two members are in the same order on both sides: by id, then as given. Peers are served in the
  /// order of their distance, so that at any time some message can be passed on.
  void add_batch(std::span<const OpSpec> ops) {
    MessageStage stage;
    const std::uint32_t n = group_.size();
    for (const OpSpec& op : ops) {
      if (op.count != 0) {
        const bool sends = op.opcode == SR_OP_SEND;
        (sends ? stage.sends : stage.receives)
            .push_back({op.peer, op.id, sends ? op.send->data : op.recv->data, op.count * dtype_size(op.dtype)});
      }
    }
    const auto by = [&](auto distance) {
      return [=](const LinkMessage& a, const LinkMessage& b) {
        return std::pair(distance(a.peer), a.id) < std::pair(distance(b.peer), b.id);
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
    naming(what_, [&] {
      for (const MessageStage& stage : stages_) {
        group_.exchange(stage.sends, stage.receives, deadline);
        for (const LocalStep& step : stage.steps) {
          buffers_.run(step);
        }
      }
    });
  }
  [[nodiscard]] std::string what() const override { return what_; }

  LinkGroup<Link>& group_;
  std::string what_;
  OpBuffers buffers_;
  std::vector<MessageStage> stages_;
  bool communicates_ = false;
  bool is_on_worker_ = false;  ///< the latest run
};

template <TwoFunctionLink Link>
class TwoFunctionGroup final : public Group {
 public:
  TwoFunctionGroup(const Config& config, const GroupSpec& spec, std::atomic<std::uint64_t>& wire_bytes)
      : group_(config, spec, wire_bytes) {}

  std::unique_ptr<Op> prepare(std::span<const OpSpec> ops, Deadline deadline) override {
    if (group_.size() > 1 && find_opcode(ops[0].opcode)->collective) {
      AgreeTask<Link>(group_, ops[0]).finish(deadline);
    }
    return std::make_unique<LinkOp<Link>>(group_, ops);
  }
  void abort(std::string_view reason) noexcept override { group_.worker().fail({SR_ABORTED, std::string(reason)}); }
  std::optional<TransportError> error() override { return group_.worker().failure(); }

 private:
  LinkGroup<Link> group_;
};

}  // namespace detail

/// The whole transport over an author's link.
template <TwoFunctionLink Link>
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

  void open(const Config& config) { config_ = config; }
  void close() {}
  std::uint64_t wire_bytes() const { return wire_bytes_.load(std::memory_order_relaxed); }
  std::uint64_t mem_register(const sr_memory&) { return ++registrations_; }
  void mem_deregister(std::uint64_t) {}

  std::unique_ptr<Group> group(const GroupSpec& spec) {
    return std::make_unique<detail::TwoFunctionGroup<Link>>(config_, spec, wire_bytes_);
  }

 private:
  Config config_;
  std::atomic<std::uint64_t> wire_bytes_ = 0;
  std::uint64_t registrations_ = 0;
};

}  // namespace shardrun::sdk

/// Exports the transport that `Link` makes; like SHARDRUN_EXPORT_TRANSPORT.
#define SHARDRUN_EXPORT_TWO_FUNCTION_TRANSPORT(Link, plugin_name, ...) \
  SHARDRUN_EXPORT_TRANSPORT(shardrun::sdk::TwoFunctionTransport<Link>, plugin_name, __VA_ARGS__)
