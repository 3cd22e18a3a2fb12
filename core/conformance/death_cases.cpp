#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "core/conformance/member.h"
#include "core/conformance/trial.h"

namespace shardrun::conformance {
namespace {

/// Requires that ranks notice the death of rank 2. A rank that waits for rank 2 notices it by itself. A rank that waits
/// only for the other survivor may need its host, which aborts the group once a rank has reported a failure.
void require_noticed(Member& member, MemberGroup& group, plugins::TransportOp& op, bool polled = false) {
  std::thread host([&] {
    try {
      if (member.hear("found", 1 - member.rank()) == "yes") {
        group.group.abort("the other survivor has reported a failure");
      }
    } catch (const Failure&) {
      // The other survivor told nothing. Its own report says why.
    }
  });
  const auto act = [&] {
    const Error error = error_of("an op that a dead rank is to take part in", [&] {
      op.start(after(10 * timeout_s));
      const std::int64_t latest = after(timeout_s);
      while (!(polled ? op.test() : op.wait(latest))) {
        require(plugins::transport_clock() < latest, "an op that a dead rank is to take part in does not end");
        std::this_thread::yield();
      }
    });
    const bool found = error.code() == ErrorCode::peer_lost && error.message().find("rank 2") != std::string::npos &&
                       (error.awaited() == 2 || !member.knows_awaited());
    member.tell("found", found ? "yes" : error.message());
    require(error.code() == ErrorCode::peer_lost || error.code() == ErrorCode::aborted,
            "the error of an op with a dead rank is neither SR_PEER_LOST nor SR_ABORTED: " + error.message());
    require(
        found || member.hear("found", 1 - member.rank()) == "yes",
        "neither of two survivors says SR_PEER_LOST, 'rank 2' and, in sr_error::awaited, 2 of the rank that died: " +
            error.message());
  };
  try {
    act();
  } catch (...) {
    host.join();
    throw;
  }
  host.join();
  member.meet("both know", 2);
}

[[noreturn]] void die(Member& member) {
  member.tell("started", "");
  kill(getpid(), SIGKILL);
  std::abort();
}

/// A rank dies in the middle of an op.
void death(Member& member) {
  MemberGroup& group = member.first(3);
  Trial under_way(member, group, sum_of(300'000, 3), {}, 1);
  Trial never(member, group, sum_of(500, 3), {}, 2);
  under_way.run(0);
  under_way.fill(1);
  under_way.start();
  if (member.rank() == 2) {
    die(member);
  }
  (void)member.hear("started", 2);
  require_noticed(member, group, never.op());
}

void death_before_blocking(Member& member, bool polled) {
  MemberGroup& group = member.first(3);
  Trial trial(member, group, sum_of(10, 3), {}, 1, SR_OP_FLAG_BLOCKING);
  trial.run(0);
  if (member.rank() == 2) {
    die(member);
  }
  (void)member.hear("started", 2);
  require_noticed(member, group, trial.op(), polled);
}

sdk::OpSpec request_of(std::uint32_t opcode, std::uint32_t peer, std::uint64_t id, std::uint32_t flags,
                       std::vector<float>& data) {
  sdk::OpSpec request;
  request.opcode = opcode;
  request.dtype = SR_DTYPE_F32;
  request.peer = peer;
  request.flags = flags;
  request.id = id;
  request.count = data.size();
  (opcode == SR_OP_SEND ? request.send : request.recv) = sdk::Buffer{data.data(), data.size() * sizeof(float)};
  return request;
}

void death_of_a_sender(Member& member) {
  MemberGroup& group = member.first(3);
  if (member.rank() == 2) {
    die(member);
  }
  std::vector<float> data(100);
  plugins::TransportOp op = group.group.prepare({request_of(SR_OP_RECV, 2, 1, 0, data)}, after(timeout_s));
  (void)member.hear("started", 2);
  require_noticed(member, group, op);
}

/// Short and long messages between ranks 1 and 2.
class Messages {
 public:
  Messages(MemberGroup& group, std::uint64_t id) {
    const std::uint32_t peer = 3 - group.rank;
    for (const std::size_t size : {std::size_t{100}, std::size_t{200'000}}) {
      sent_.emplace_back(size);
      received_.emplace_back(size);
    }
    for (std::size_t i = 0; i < sent_.size(); ++i) {
      ops_.push_back(group.group.prepare(
          {request_of(SR_OP_SEND, peer, id + i, 0, sent_[i]), request_of(SR_OP_RECV, peer, id + i, 0, received_[i])},
          after(timeout_s)));
      ops_.push_back(group.group.prepare({request_of(group.rank == 1 ? SR_OP_SEND : SR_OP_RECV, peer, id + 10 + i,
                                                     SR_OP_FLAG_BLOCKING, group.rank == 1 ? sent_[i] : received_[i])},
                                         after(timeout_s)));
    }
  }

  void exchange(float value) {
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      start(i, value);
      finish(i, value);
    }
  }

  /// Rank 1 starts only after rank 2 has waited for a while.
  void exchange_slowly(Member& member, float value) {
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      const std::string place = fmt::format("message {} of {}", i, value);
      if (member.rank() == 2) {
        start(i, value);
        require(!ops_[i].wait(after(0.25)), "a message arrived before it was sent");
        member.tell(place, "");
      } else {
        (void)member.hear(place, 2);
        start(i, value);
      }
      finish(i, value);
    }
  }

 private:
  void start(std::size_t i, float value) {
    sent_[i / 2].assign(sent_[i / 2].size(), value);
    received_[i / 2].assign(received_[i / 2].size(), -1);
    ops_[i].start(after(timeout_s));
  }

  void finish(std::size_t i, float value) {
    require(ops_[i].wait(after(2 * timeout_s)), "a message between two members does not arrive once a third has left");
    const bool is_sent_only = i % 2 == 1 && received_[i / 2][0] == -1;
    require(is_sent_only || received_[i / 2] == std::vector<float>(received_[i / 2].size(), value),
            "another message arrived than was sent");
  }

  std::vector<std::vector<float>> sent_;
  std::vector<std::vector<float>> received_;
  std::vector<plugins::TransportOp> ops_;
};

/// Waits until the process has ended.
void wait_for_end(pid_t pid) {
  pollfd process = {.fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0)), .events = POLLIN, .revents = 0};
  if (process.fd >= 0) {  // the system call fails if the process has been reaped already
    require(poll(&process, 1, static_cast<int>(timeout_s * 1000)) == 1, "the rank that leaves does not end");
    close(process.fd);
  }
}

/// Ops without rank 0 go on after the process of rank 0 has ended.
void exchange_after_exit(Member& member) {
  MemberGroup& group = member.first(3);
  Trial(member, group, sum_of(1000, 3), {}, 1).run(0);
  if (member.rank() == 0) {
    member.meet("all is prepared", 3);
    member.tell("leaving", std::to_string(getpid()));
    std::_Exit(0);
  }
  Messages early(group, 100);
  early.exchange(1);
  member.meet("all is prepared", 3);
  wait_for_end(std::stoi(member.hear("leaving", 0)));
  early.exchange(2);
  early.exchange_slowly(member, 3);
  Messages(group, 200).exchange(4);
  const std::optional<std::string> error = group.group.error();
  require(!error, "a group failed because a member left that nobody waited for: " + error.value_or(""));
}

/// Ops without rank 0 go on after rank 0 has only destroyed the group.
void exchange_after_destroy(Member& member) {
  if (member.rank() == 3) {
    return;
  }
  if (member.rank() == 0) {
    {
      const MemberGroup group = member.connect("left early", 210, {0, 1, 2});
      member.meet("all are connected", 3);
    }
    member.meet("one has left", 3);
    return;
  }
  MemberGroup group = member.connect("left early", 210, {0, 1, 2});
  Messages messages(group, 100);
  member.meet("all are connected", 3);
  messages.exchange(1);
  member.meet("one has left", 3);
  messages.exchange(2);
}

}  // namespace

void add_death_cases(std::vector<Case>& cases) {
  cases.push_back({.name = "a member that lets go of a group", .run = exchange_after_destroy});
  cases.push_back({.name = "a member that has left", .run = exchange_after_exit, .ranks = 3, .victim = 0});
  cases.push_back({.name = "the death of a rank", .run = death, .ranks = 3, .victim = 2});
  for (const bool polled : {false, true}) {
    cases.push_back({.name = fmt::format("the death of a rank before a BLOCKING op{}", polled ? " that is polled" : ""),
                     .run = [polled](Member& member) { death_before_blocking(member, polled); },
                     .ranks = 3,
                     .victim = 2});
  }
  cases.push_back({.name = "the death of a rank that is to send", .run = death_of_a_sender, .ranks = 3, .victim = 2});
}

}  // namespace shardrun::conformance
