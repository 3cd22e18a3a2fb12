#include <fmt/format.h>

#include <thread>

#include "core/conformance/member.h"
#include "core/conformance/trial.h"

namespace shardrun::conformance {
namespace {

/// How an op that has succeeded is started again and fails.
struct Ending {
  std::uint64_t count = 0;
  std::uint32_t flags = 0;
  bool polled = false;   ///< the op is polled by op_test instead of op_wait
  bool aborted = false;  ///< the other rank aborts; otherwise the op's deadline passes

  [[nodiscard]] std::string name() const {
    return fmt::format("{}op of {} elements that went well before and {}, {},", flags != 0 ? "BLOCKING " : "", count,
                       aborted ? "is aborted" : "is late", polled ? "polled" : "waited for");
  }
};

void finish(Trial& trial, bool polled) {
  const std::int64_t latest = after(timeout_s);
  while (polled && !trial.test()) {
    require(plugins::transport_clock() < latest, "op_test alone never says that an op is complete");
    std::this_thread::yield();
  }
  trial.wait();
  trial.verify();
}

/// Runs both ops with success, so that the tested op is not the only one of its group.
void go_well(Trial& trial, Trial& other, bool polled) {
  for (Trial* each : {&other, &trial}) {
    each->fill(0);
    each->start();
  }
  finish(trial, polled);
  finish(other, false);
}

/// Starts the op, which fails because the other rank does not start it.
void fail(Member& member, MemberGroup& group, plugins::TransportOp& op, const Ending& ending) {
  const std::string name = ending.name();
  const auto failure = [&] { return ending.polled ? polled_failure_of(op, name) : failure_of(op, name); };
  if (ending.aborted) {
    op.start(after(10 * timeout_s));
    // Acts as the host, which aborts the group once a rank has reported a failure.
    std::thread host([&] {
      (void)member.hear("given up: " + name, 1);
      group.group.abort("rank 1 has given up");
    });
    try {
      const ErrorCode code = failure();
      require(code == ErrorCode::aborted || code == ErrorCode::peer_lost,
              name + " failed with another status than SR_ABORTED or SR_PEER_LOST");
    } catch (...) {
      host.join();
      throw;
    }
    host.join();
  } else {
    op.start(after(0.05));
    require(failure() == ErrorCode::timeout, name + " failed with another status than SR_TIMEOUT");
  }
  (void)code_of("after its failure, op_test of an " + name, [&] { (void)op.test(); });
  (void)code_of("after its failure, op_wait of an " + name, [&] { (void)op.wait(after(failure_limit_s)); });
}

void restart(Member& member, const Ending& ending, std::uint64_t id) {
  MemberGroup doomed = member.connect("restarted", id, {0, 1});
  {
    Trial other(member, doomed, sum_of(20'000, 2), {}, 1);
    Trial trial(member, doomed, sum_of(ending.count, 2), {}, 2, ending.flags);
    go_well(trial, other, ending.polled);
    member.meet("went well: " + ending.name(), 2);
    if (member.rank() == 0) {
      fail(member, doomed, trial.op(), ending);
    } else if (ending.aborted) {
      doomed.group.abort("this rank gives up");
      member.tell("given up: " + ending.name(), "");
    }
    member.meet("end: " + ending.name(), 2);
    doomed.group.abort("over");
  }
  member.forget();
}

void restarts(Member& member) {
  if (member.rank() >= 2) {
    return;
  }
  std::uint64_t id = 300;
  for (const std::uint64_t count : {std::uint64_t{10}, std::uint64_t{20'000}}) {
    for (const std::uint32_t flags : {std::uint32_t{0}, SR_OP_FLAG_BLOCKING}) {
      for (const bool polled : {false, true}) {
        for (const bool aborted : {false, true}) {
          restart(member, {count, flags, polled, aborted}, ++id);
        }
      }
    }
  }
}

}  // namespace

void add_restart_cases(std::vector<Case>& cases) {
  cases.push_back({.name = "an op that goes well, is started again and fails", .run = restarts});
}

}  // namespace shardrun::conformance
