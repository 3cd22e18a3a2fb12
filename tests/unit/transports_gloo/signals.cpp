#include <sched.h>
#include <signal.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/transport_ranks.h"
#include "tests/unit/transports_gloo/system.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;

/// Whether a peer has just died is a matter of luck. Whether the thread that writes to it is ready for that is not.
TEST_CASE("gloo: every thread that writes to a socket blocks SIGPIPE") {
  REQUIRE_FALSE(is_sigpipe_blocked());
  writes().count = writes().exposed = 0;
  run_ranks("gloo", 3, [](Rank& rank) {
    auto group = rank.group();
    for (const std::uint64_t count : {10U, 100'000U}) {
      std::vector<float> data(count);
      auto op = group.prepare({request_of(SR_OP_ALL_REDUCE, 1, count, data)}, after(30));
      run(op);
    }
    rank.meet("end");
    group.abort("enough");
  });
  CHECK(writes().count > 0);
  CHECK(writes().exposed == 0);
}

TEST_CASE("gloo: waking Gloo's thread preempts no thread that uses a connection") {
  const auto policies = [] {
    std::map<int, int> of_threads;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
      const int thread = std::stoi(entry.path().filename());
      of_threads[thread] = sched_getscheduler(thread);
    }
    return of_threads;
  };
  const std::map<int, int> before = policies();
  SharedHost host;

  const Rank rank(host, "gloo", 0, 2);

  const std::map<int, int> now = policies();
  REQUIRE(now.size() > before.size());
  for (const auto& [thread, policy] : now) {
    const auto found = before.find(thread);
    CHECK(policy == (found == before.end() ? SCHED_BATCH : found->second));
  }
}

TEST_CASE("gloo: a connection broken within a message fails the other side without a SIGPIPE") {
  struct sigaction action = {};
  REQUIRE(sigaction(SIGPIPE, nullptr, &action) == 0);
  const struct sigaction by_default = {};
  REQUIRE(sigaction(SIGPIPE, &by_default, nullptr) == 0);
  constexpr std::size_t begins = 1'000'000;
  const std::uint32_t breaks = GENERATE(0U, 1U);  // the rank that breaks the connection: the sender or the receiver
  writes().room = 2 * begins * sizeof(float);
  std::string error;
  run_ranks("gloo", 2, [&](Rank& rank) {
    auto group = rank.group();
    const bool sends = rank.rank() == 0;
    std::vector<float> data(4 * begins, sends ? 1.0F : 0.0F);
    auto op =
        group.prepare({request_of(sends ? SR_OP_SEND : SR_OP_RECV, 1, data.size(), data, sends ? 1 : 0)}, after(1000));
    op.start(after(1000));
    if (!sends) {
      while (std::atomic_ref<float>(data[begins]).load() == 0.0F) {
        std::this_thread::yield();
      }
    }
    rank.meet("the message is on its way");
    if (rank.rank() == breaks) {
      group.abort("enough");
    }
    const std::string message = error_of([&] { (void)op.wait(INT64_MAX); });
    if (rank.rank() != breaks) {
      error = message;
    }
    rank.meet("end");
  });
  writes().room = INT64_MAX;
  CHECK_THAT(error, Contains("member " + std::to_string(breaks)) && Contains("is lost"));
  CHECK_FALSE(is_sigpipe_blocked());
  CHECK(sigaction(SIGPIPE, &action, nullptr) == 0);
}
