#include <chrono>
#include <condition_variable>
#include <algorithm>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/conformance/member.h"
#include "core/conformance/trial.h"
#include "plugins/loader/transport_queue.h"

namespace shardrun::conformance {
namespace {

/// A queue of the host: a thread that executes its work in order.
class HostQueue final : public plugins::TransportQueue {
 public:
  /// `at_once`: an idle queue executes work inside call(), which the interface allows.
  explicit HostQueue(bool at_once = false)
      : TransportQueue(SR_QUEUE_HOST), at_once_(at_once), thread_([this] { work(); }) {}
  ~HostQueue() override {
    {
      const std::lock_guard lock(mutex_);
      are_open_ = true;
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void add(std::function<void()> act) {
    {
      const std::lock_guard lock(mutex_);
      work_.push_back(std::move(act));
    }
    changed_.notify_all();
  }
  void call(void (*run)(void* argument), void* argument) override {
    {
      std::unique_lock lock(mutex_);
      if (at_once_ && is_idle()) {
        do_work([=] { run(argument); }, lock);
        return;
      }
    }
    add([=] { run(argument); });
  }
  std::uint64_t add_gate() override {
    const std::uint64_t gate = ++gates_;
    add([this, gate] {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return are_open_ || open_.contains(gate); });
    });
    return gate;
  }
  void open_gate(std::uint64_t gate) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      open_.insert(gate);
    }
    changed_.notify_all();
  }

  void open_all() noexcept {
    {
      const std::lock_guard lock(mutex_);
      are_open_ = true;
    }
    changed_.notify_all();
  }

  /// Waits for all work. Returns false if it is not done within `seconds`.
  [[nodiscard]] bool finish(double seconds) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return is_idle(); });
  }
  [[nodiscard]] bool is_finished() {
    const std::lock_guard lock(mutex_);
    return is_idle();
  }

 private:
  [[nodiscard]] bool is_idle() const noexcept { return work_.empty() && !is_working_; }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !is_working_ && (stopping_ || !work_.empty()); });
      if (work_.empty()) {
        return;
      }
      const std::function<void()> act = std::move(work_.front());
      work_.pop_front();
      do_work(act, lock);
    }
  }

  void do_work(const std::function<void()>& act, std::unique_lock<std::mutex>& lock) {
    is_working_ = true;
    lock.unlock();
    act();
    lock.lock();
    is_working_ = false;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  std::set<std::uint64_t> open_;
  std::uint64_t gates_ = 0;
  const bool at_once_;
  bool is_working_ = false;
  bool are_open_ = false;
  bool stopping_ = false;
  std::thread thread_;  // the last member, because the thread uses the others
};

/// Opens the queue's gate at the end of a case, even after an exception, so that the case's ops can end.
struct OpensAtEnd {
  HostQueue& queue;
  ~OpensAtEnd() { queue.open_all(); }
};

constexpr std::int64_t nanoseconds(double seconds) { return static_cast<std::int64_t>(seconds * 1e9); }

/// An op begins only when its queue reaches it. A queue into which the op is joined waits for the op's end.
void enqueued(Member& member) {
  MemberGroup& group = member.first(4);
  std::uint64_t id = 0;
  for (const std::uint32_t opcode : {SR_OP_ALL_REDUCE, SR_OP_REDUCE_SCATTERV, SR_OP_ALL_GATHER, SR_OP_ALL_TO_ALLV}) {
    for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{100}, std::uint64_t{100'000}}) {
      HostQueue before;
      HostQueue behind;
      Trial trial(member, group, {.opcode = opcode, .members = 4, .count = count}, {.in_place = id % 2 == 0}, id + 1);
      const OpensAtEnd opens_at_end{before};
      ++id;
      for (std::uint32_t round = 0; round < 3; ++round) {
        std::string problem;
        const std::uint64_t gate = before.add_gate();
        before.add([&] { trial.fill(round); });
        trial.op().enqueue(before, nanoseconds(timeout_s));
        trial.op().join(behind);
        behind.add([&] {
          try {
            trial.verify();
          } catch (const Failure& failure) {
            problem = failure.what();
          }
        });
        require(!trial.test(), "an op was complete before its queue had come to it");
        require(!behind.is_finished(), "a queue did not wait for an op that was joined into it");
        before.open_gate(gate);
        require(behind.finish(timeout_s), "a queue still waits for an op that was joined into it");
        require(problem.empty(), "behind an op that was joined into its queue: " + problem);
        trial.wait();
      }
    }
    member.forget();
  }
}

/// An op begins in its turn even if the queue reaches it before `enqueue` has returned.
void enqueued_when_idle(Member& member) {
  MemberGroup& group = member.first(4);
  HostQueue queue(true);
  Trial trial(member, group, sum_of(1000, group.size), {}, 1);
  for (std::uint32_t round = 0; round < 3; ++round) {
    trial.fill(round);
    trial.op().enqueue(queue, nanoseconds(timeout_s));
    trial.op().join(queue);
    require(queue.finish(timeout_s), "a queue still waits for an op that was enqueued in it when it had no work");
    trial.wait();
    trial.verify();
  }
  member.forget();
}

/// Prepares an op that only copies, because its group has one member.
plugins::TransportOp copying(MemberGroup& alone, std::uint64_t id, const sdk::Buffer& from, const sdk::Buffer& to) {
  const sdk::OpSpec op = {.opcode = SR_OP_ALL_REDUCE,
                          .dtype = SR_DTYPE_F32,
                          .reduction = SR_REDUCE_SUM,
                          .id = id,
                          .count = from.bytes / sizeof(float),
                          .send = from,
                          .recv = to,
                          .label = "a copy"};
  return alone.group.prepare({op}, after(timeout_s));
}

/// An op that moves nothing between members also waits for its turn: of several copies, each reads what the previous
/// one wrote.
void in_order_alone(Member& member) {
  MemberGroup alone = member.connect("alone in queues", 220 + member.rank(), {member.rank()});
  for (const std::size_t count : {std::size_t{1}, std::size_t{1000}}) {
    const auto numbers = [&] { return member.registered(count * sizeof(float)); };
    const sdk::Buffer x = numbers();
    const sdk::Buffer y = numbers();
    const sdk::Buffer z = numbers();
    HostQueue queue;
    HostQueue behind;
    plugins::TransportOp first = copying(alone, 1, x, y);
    plugins::TransportOp second = copying(alone, 2, y, z);
    const OpensAtEnd opens_at_end{queue};
    for (std::uint32_t round = 0; round < 3; ++round) {
      const auto number = static_cast<float>(round + 1);
      std::fill_n(static_cast<float*>(x.data), count, number);
      std::fill_n(static_cast<float*>(y.data), count, -1.0F);
      const std::uint64_t gate = queue.add_gate();
      first.enqueue(queue, nanoseconds(timeout_s));
      second.start(after(timeout_s));
      second.join(behind);
      require(!second.test(), "an op was complete before the queue had come to the op that was started before it");
      require(!behind.is_finished(), "a queue did not wait for an op that was joined into it");
      queue.open_gate(gate);
      require(behind.finish(timeout_s), "a queue still waits for an op that was joined into it");
      require(second.wait(after(timeout_s)) && first.wait(after(timeout_s)), "an op in a group of one did not end");
      const auto* const copied = static_cast<const float*>(z.data);
      require(std::all_of(copied, copied + count, [&](float each) { return each == number; }),
              "an op began before the op that was started before it");
      second.start(after(timeout_s));
      require(second.wait(after(timeout_s)), "an op in a group of one did not end");
    }
  }
  member.forget();
}

/// Ops of a group begin in the order of their starts, even if their queues reach them in another order.
void in_order_of_start(Member& member) {
  MemberGroup& group = member.first(4);
  HostQueue first;
  HostQueue second;
  Trial a(member, group, sum_of(1000, group.size), {}, 1);
  Trial b(member, group, {.opcode = SR_OP_ALL_GATHER, .members = group.size, .count = 500}, {}, 2);
  Trial c(member, group, sum_of(20, group.size), {}, 3);
  const OpensAtEnd first_at_end{first};
  const OpensAtEnd second_at_end{second};
  for (std::uint32_t round = 0; round < 3; ++round) {
    for (Trial* each : {&a, &b, &c}) {
      each->fill(round);
    }
    const std::uint64_t gate_of_a = first.add_gate();
    const std::uint64_t gate_of_b = second.add_gate();
    a.op().enqueue(first, nanoseconds(timeout_s));
    b.op().enqueue(second, nanoseconds(timeout_s));
    c.start();
    const bool b_is_first = (member.rank() + round) % 2 == 0;
    (b_is_first ? second : first).open_gate(b_is_first ? gate_of_b : gate_of_a);
    (b_is_first ? first : second).open_gate(b_is_first ? gate_of_a : gate_of_b);
    for (Trial* each : {&c, &a, &b}) {
      each->wait();
      each->verify();
    }
  }
  member.forget();
}

/// If an op fails, queues into which it was joined go on, and the host learns of the failure. An op can be freed if the
/// queue in which it was enqueued never reached it.
void failed_in_queue(Member& member, bool by_abort) {
  const std::string name = by_abort ? "abort of an op in a queue" : "deadline of an op in a queue";
  MemberGroup doomed = member.connect(name, by_abort ? 210 : 211, {0, 1});
  {
    HostQueue before;
    HostQueue behind;
    HostQueue late;
    std::optional<Trial> trial(std::in_place, member, doomed, sum_of(1000, 2), BufferLayout(), 1);
    const OpensAtEnd opens_at_end{before};
    trial->fill(0);
    if (member.rank() == 0) {
      const std::uint64_t gate = before.add_gate();
      trial->op().enqueue(before, nanoseconds(by_abort ? timeout_s : 0.05));
      trial->op().join(behind);
      if (by_abort) {
        require(!behind.is_finished(), "a queue did not wait for an op that was joined into it");
        doomed.group.abort(name);
      } else {
        before.open_gate(gate);
      }
      require(behind.finish(failure_limit_s), "a queue still waits for an op that has failed: " + name);
      require(failure_of(trial->op(), name) == (by_abort ? ErrorCode::aborted : ErrorCode::timeout),
              name + ": it failed with another status than " + (by_abort ? "SR_ABORTED" : "SR_TIMEOUT"));
      try {
        trial->op().join(late);
      } catch (const Error&) {
        // A transport is allowed to refuse to join an op that has failed.
      }
      require(late.finish(failure_limit_s), "a queue waits for an op that had failed when it was joined: " + name);
      trial.reset();
      before.open_gate(gate);
    }
    member.meet(name, 2);
    doomed.group.abort(name);
  }
  member.forget();
}

void failed_in_queues(Member& member) {
  if (member.rank() < 2) {
    failed_in_queue(member, true);
    failed_in_queue(member, false);
  }
}

}  // namespace

void add_queue_cases(std::vector<Case>& cases) {
  cases.push_back({.name = "ops in queues", .run = enqueued});
  cases.push_back({.name = "ops in queues without work", .run = enqueued_when_idle});
  cases.push_back({.name = "ops in queues, in their order", .run = in_order_of_start});
  cases.push_back({.name = "ops in queues, in groups of one", .run = in_order_alone});
  cases.push_back({.name = "ops in queues that fail", .run = failed_in_queues});
}

}  // namespace shardrun::conformance
