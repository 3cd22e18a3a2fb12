#include <fmt/format.h>

#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/conformance/member.h"
#include "core/conformance/trial.h"

namespace shardrun::conformance {
namespace {

/// Rank 0 waits for an op that rank 1 never starts, until another thread of rank 0 aborts the op's group.
void abort_pending(Member& member) {
  if (member.rank() >= 2) {
    return;
  }
  MemberGroup& group = member.first(2);
  MemberGroup doomed = member.connect("doomed", 200, {0, 1});
  {
    Trial first(member, doomed, sum_of(100'000, 2), {}, 1);
    Trial second(member, doomed, sum_of(10, 2), {}, 2);
    if (member.rank() == 0) {
      first.fill(0);
      first.start();
      second.start();
      require(!first.wait_until(after(0.02)), "an op was complete that the other rank never started");
      std::thread other([&] { doomed.group.abort("the test has seen enough"); });
      const ErrorCode code = failure_of(first.op(), "an op of an aborted group");
      other.join();
      require(code == ErrorCode::aborted, "an aborted op failed with another status than SR_ABORTED");
      require(failure_of(second.op(), "the second op of an aborted group") == ErrorCode::aborted,
              "the second op of an aborted group failed with another status than SR_ABORTED");
      const std::optional<std::string> reason = doomed.group.error();
      require(reason.has_value(), "group_error says that an aborted group is well");
      require(reason->find("the test has seen enough") != std::string::npos,
              fmt::format("the reason of an abort is lost: '{}'", *reason));
      (void)code_of("starting an op of an aborted group", [&] {
        first.start();
        require(first.wait_until(after(failure_limit_s)), "an op of an aborted group is under way");
      });
    }
    member.meet("aborted", 2);
    doomed.group.abort("the other rank has aborted");
  }
  Trial(member, group, sum_of(10, 2), {}, 3).run(0);
  member.forget();
}

/// A wait that times out does not change the op.
void wait_again(Member& member) {
  if (member.rank() >= 2) {
    return;
  }
  Trial trial(member, member.first(2), sum_of(1000, 2), {}, 1);
  trial.fill(4);
  if (member.rank() == 0) {
    trial.start();
    for (int i = 0; i < 3; ++i) {
      require(!trial.wait_until(after(0.01)), "an op was complete that the other rank had not started");
      require(!trial.test(), "op_test says that an op is complete that the other rank had not started");
    }
    require(!trial.wait_until(0), "a wait until long ago says that an op is complete");
  }
  member.meet("waited", 2);
  if (member.rank() == 1) {
    trial.start();
  }
  trial.wait();
  trial.verify();
  require(trial.wait_until(0), "a wait for a complete op asks for time");
  member.forget();
}

/// An op past its own deadline fails its group.
void own_deadline(Member& member) {
  if (member.rank() >= 2) {
    return;
  }
  MemberGroup doomed = member.connect("late", 201, {0, 1});
  {
    Trial trial(member, doomed, sum_of(1000, 2), {}, 1);
    Trial later(member, doomed, sum_of(1000, 2), {}, 2);
    trial.fill(0);
    if (member.rank() == 0) {
      trial.op().start(after(0.05));
      const ErrorCode code = failure_of(trial.op(), "an op past its own deadline");
      require(code == ErrorCode::timeout, "an op past its own deadline failed with another status than SR_TIMEOUT");
      require(doomed.group.error().has_value(), "group_error says that a group whose op came too late is well");
      (void)code_of("starting another op of a group that failed", [&] {
        later.start();
        require(later.wait_until(after(failure_limit_s)), "an op of a failed group is under way");
      });
    }
    member.meet("too late", 2);
    doomed.group.abort("the other rank's op was too late");
  }
  member.forget();
}

/// An abort ends a receive like any other op.
void receive_aborted(Member& member) {
  if (member.rank() >= 2) {
    return;
  }
  MemberGroup doomed = member.connect("silent", 202, {0, 1});
  {
    std::vector<float> data(100);
    sdk::OpSpec request;
    request.opcode = SR_OP_RECV;
    request.dtype = SR_DTYPE_F32;
    request.peer = 1 - member.rank();
    request.id = 1;
    request.count = data.size();
    request.recv = sdk::Buffer{data.data(), data.size() * sizeof(float)};
    plugins::TransportOp op = doomed.group.prepare({request}, after(timeout_s));
    op.start(after(timeout_s));
    require(!op.wait(after(0.02)), "a receive was complete that nobody had sent anything for");
    member.meet("silence", 2);
    doomed.group.abort("nobody sends anything");
    // If this rank notices the other rank's abort first, it is allowed to report that rank as lost.
    const ErrorCode code = failure_of(op, "a receive of an aborted group");
    require(code == ErrorCode::aborted || code == ErrorCode::peer_lost,
            "a receive of an aborted group failed with another status than SR_ABORTED or SR_PEER_LOST");
  }
}

/// A collective and a receive of the same group fail together, whichever of them passes its deadline.
void fail_together(Member& member, bool collective_is_late) {
  const std::string name = collective_is_late ? "late collective" : "late receive";
  MemberGroup doomed = member.connect(name, collective_is_late ? 204 : 205, {0, 1});
  {
    Trial sum(member, doomed, sum_of(1000, 2), {}, 1);
    sum.fill(0);
    std::vector<float> data(100);
    sdk::OpSpec request;
    request.opcode = SR_OP_RECV;
    request.dtype = SR_DTYPE_F32;
    request.peer = 1;
    request.id = 2;
    request.count = data.size();
    request.recv = sdk::Buffer{data.data(), data.size() * sizeof(float)};
    if (member.rank() == 0) {
      plugins::TransportOp receive = doomed.group.prepare({request}, after(timeout_s));
      plugins::TransportOp& late = collective_is_late ? sum.op() : receive;
      plugins::TransportOp& other = collective_is_late ? receive : sum.op();
      other.start(after(10 * timeout_s));
      late.start(after(0.05));
      require(failure_of(late, name) == ErrorCode::timeout, name + " failed with another status than SR_TIMEOUT");
      const ErrorCode code = failure_of(other, "another op of the group of a " + name);
      require(code == ErrorCode::timeout || code == ErrorCode::aborted,
              "another op of the group of a " + name + " failed with another status than SR_TIMEOUT or SR_ABORTED");
      require(doomed.group.error().has_value(), "group_error says that the group of a " + name + " is well");
      (void)code_of("starting an op again in the group of a " + name, [&] {
        other.start(after(10 * timeout_s));
        require(other.wait(after(failure_limit_s)), "an op of a failed group is under way");
      });
    }
    member.meet(name, 2);
    doomed.group.abort(name);
  }
  member.forget();
}

void failing_together(Member& member) {
  if (member.rank() < 2) {
    fail_together(member, true);
    fail_together(member, false);
  }
}

/// After an abort, freeing an op and destroying its group do not wait for peers, even while the op is in flight.
void free_pending(Member& member) {
  if (member.rank() >= 2) {
    return;
  }
  MemberGroup doomed = member.connect("left", 203, {0, 1});
  {
    Trial trial(member, doomed, sum_of(200'000, 2), {}, 1);
    trial.fill(0);
    if (member.rank() == 0) {
      trial.start();
    }
    member.meet("one has started", 2);
    doomed.group.abort("the op is given up");
  }
  member.forget();
}

/// Freeing an op waits for no peer while another op of the group is in flight and the group has not failed.
void free_during_another(Member& member) {
  if (member.rank() >= 2) {
    return;
  }
  MemberGroup& group = member.first(2);
  {
    Trial under_way(member, group, sum_of(1000, 2), {}, 1);
    under_way.fill(1);
    {
      Trial freed(member, group, sum_of(1000, 2), {}, 2);
      freed.run(0);
      if (member.rank() == 0) {
        under_way.start();
      }
    }
    member.meet("one op is freed", 2);
    if (member.rank() == 1) {
      under_way.start();
    }
    under_way.wait();
    under_way.verify();
  }
  member.forget();
}

/// Rank 0 waits in one group while an op of another group, which no thread polls, passes its deadline.
void late_elsewhere(Member& member) {
  if (member.rank() >= 2) {
    return;
  }
  MemberGroup doomed = member.connect("late elsewhere", 206, {0, 1});
  {
    Trial waited(member, member.first(2), sum_of(1000, 2), {}, 1);
    Trial late(member, doomed, sum_of(1000, 2), {}, 1);
    waited.fill(5);
    if (member.rank() == 0) {
      late.fill(0);
      late.op().start(after(0.05));
      waited.start();
      const std::int64_t latest = after(failure_limit_s);
      while (!doomed.group.error()) {
        require(!waited.wait_until(after(0.02)), "an op was complete that the other rank had not started");
        require(plugins::transport_clock() < latest, "an op past its deadline fails its group only if it is looked at");
      }
      require(failure_of(late.op(), "an op past its deadline") == ErrorCode::timeout,
              "an op that was late while its rank waited elsewhere failed with another status than SR_TIMEOUT");
    }
    member.meet("it was late elsewhere", 2);
    if (member.rank() == 1) {
      waited.start();
    }
    waited.wait();
    waited.verify();
    doomed.group.abort("the other rank's op was too late");
  }
  member.forget();
}

}  // namespace

void add_failure_cases(std::vector<Case>& cases) {
  cases.push_back({.name = "a wait that runs out of time", .run = wait_again});
  cases.push_back({.name = "an abort while ops are under way", .run = abort_pending});
  cases.push_back({.name = "an abort while a receive is under way", .run = receive_aborted});
  cases.push_back({.name = "an op freed after an abort", .run = free_pending});
  cases.push_back({.name = "an op freed while another is under way", .run = free_during_another});
  cases.push_back({.name = "an op past its own deadline", .run = own_deadline});
  cases.push_back({.name = "a collective and a receive that fail together", .run = failing_together});
  cases.push_back({.name = "an op that is late in another group", .run = late_elsewhere});
}

}  // namespace shardrun::conformance
