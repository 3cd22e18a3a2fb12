#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/transport_ranks.h"
#include "tests/unit/transports_gloo/system.h"
#include "transports/gloo/socket.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;
using Catch::EndsWith;

/// LeakSanitizer asks the program for this. Gloo's lookup of an address that it then refuses forgets its 64 bytes.
extern "C" const char* __lsan_default_suppressions() { return "leak:gloo::transport::tcp::CreateDevice"; }

namespace {

/// What two members are told that start two all_reduces, of ids 70 and 71, in different orders.
std::array<std::string, 2> start_across(std::array<std::uint64_t, 2> counts, double seconds) {
  std::array<std::string, 2> errors;
  run_ranks("gloo", 2, [&](Rank& rank) {
    auto group = rank.group();
    std::array<std::vector<float>, 2> data;
    std::vector<plugins::TransportOp> ops;
    for (std::uint64_t i = 0; i < 2; ++i) {
      data[i].resize(counts[i]);
      ops.push_back(group.prepare({request_of(SR_OP_ALL_REDUCE, 70 + i, counts[i], data[i])}, after(30)));
    }
    rank.meet("all is prepared");
    errors[rank.rank()] = error_of([&] {
      plugins::TransportOp& first = ops[rank.rank()];
      plugins::TransportOp& second = ops[1 - rank.rank()];
      first.start(after(seconds));
      second.start(after(seconds));
      (void)first.wait(INT64_MAX);
      (void)second.wait(INT64_MAX);
    });
    rank.meet("end");
  });
  return errors;
}

}  // namespace

TEST_CASE("gloo: members that start two short collectives in different orders hear of both ops") {
  const std::array<std::string, 2> errors = start_across({10, 20}, 30);
  // Whoever finds out first leaves the other without its peer.
  const std::string& told = errors[0].find("which sent") != std::string::npos ? errors[0] : errors[1];
  CHECK_THAT(told, Contains("of 10 f32 (id 70)") && Contains("of 20 f32 (id 71)") && Contains("in one order"));
}

TEST_CASE("gloo: members that start two long collectives in different orders wait until a deadline") {
  const std::array<std::uint64_t, 2> counts = {20'000, GENERATE(as<std::uint64_t>(), 20'000, 60'000, 10)};
  const std::array<std::string, 2> errors = start_across(counts, 0.1);
  CHECK_THAT(errors[0], Contains("all_reduce (sum) of 20000 f32"));
  CHECK_THAT(errors[1], Contains("all_reduce (sum) of " + std::to_string(counts[1]) + " f32"));
  CHECK_THAT(errors[0] + errors[1], Contains("is past its deadline"));
}

TEST_CASE("gloo: a message longer than its receive is refused") {
  std::string error;
  const std::uint64_t sent = GENERATE(as<std::uint64_t>(), 11, 100'000);
  run_ranks("gloo", 2, [&](Rank& rank) {
    auto group = rank.group();
    std::vector<float> data(100'000);
    auto op = rank.rank() == 0 ? group.prepare({request_of(SR_OP_SEND, 7, sent, data, 1)}, after(30))
                               : group.prepare({request_of(SR_OP_RECV, 7, 10, data, 0)}, after(30));
    const std::string message = error_of([&] { run(op); });
    if (rank.rank() == 1) {
      error = message;
    }
    rank.meet("end");
  });
  CHECK_THAT(error, Contains("recv of 10 f32 from member 0") && Contains("expected 40 bytes of op 7") &&
                        Contains(std::to_string(sent * 4)));
}

TEST_CASE("gloo: a member that aborts is named as lost by the others") {
  ErrorCode code = ErrorCode::internal;
  std::string message;
  run_ranks("gloo", 2, [&](Rank& rank) {
    auto group = rank.group();
    std::vector<float> data(1'000'000);
    auto op = group.prepare({request_of(SR_OP_ALL_REDUCE, 1, data.size(), data)}, after(30));
    if (rank.rank() == 1) {
      group.abort("enough");
      rank.meet("end");
      return;
    }
    try {
      run(op);
    } catch (const Error& error) {
      code = error.code();
      message = error.message();
    }
    rank.meet("end");
  });
  CHECK(code == ErrorCode::peer_lost);
  CHECK_THAT(message, Contains("all_reduce (sum) of 1000000 f32") && Contains("member 1 (rank 1) is lost"));
}

namespace {

/// Where rank 0 has published its address and is gone, or stands still.
class DeadPeerHost : public SharedHost {
 public:
  explicit DeadPeerHost(const gloo_transport::Socket& listener) : address_(gloo_transport::own_end(listener).text()) {}

  void store_set(const std::string& key, std::string value) override {
    SharedHost::store_set(key, std::move(value));
    SharedHost::store_set(key.substr(0, key.size() - 1) + "0", address_);
  }

 private:
  std::string address_;
};

/// Where, moreover, the job is to end while the rank's address is looked up.
class EndingHost final : public DeadPeerHost {
 public:
  using DeadPeerHost::DeadPeerHost;

  [[nodiscard]] std::string store_get(const std::string& key, std::int64_t deadline) override {
    abort();
    return SharedHost::store_get(key, deadline);
  }
};

}  // namespace

TEST_CASE("gloo: connecting to a stopped rank ends at the deadline or with the job") {
  const gloo_transport::Socket listener = gloo_transport::listen_on("127.0.0.1");
  DeadPeerHost host(listener);
  Rank rank(host, "gloo", 1, 2);
  SECTION("deadline") {
    CHECK_THAT(error_of([&] { (void)rank.group(1, 0.05); }),
               Contains("connecting the group 'all': past the deadline, waiting for member 0 (rank 0)"));
  }
  SECTION("job") {
    std::thread other([&] { host.abort(); });
    CHECK_THAT(error_of([&] { (void)rank.group(1, 1e6); }), Contains("the job ends"));
    other.join();
  }
}

TEST_CASE("gloo: a rank that died after publishing its address is lost") {
  gloo_transport::Socket listener = gloo_transport::listen_on("127.0.0.1");
  DeadPeerHost host(listener);
  listener = {};
  Rank rank(host, "gloo", 1, 2);
  CHECK_THAT(error_of([&] { (void)rank.group(1, 1e6); }),
             Contains("connecting the group 'all': member 0 (rank 0) is lost: Connection refused"));
}

TEST_CASE("gloo: a connection begun after the end of the job is not waited for") {
  const gloo_transport::Socket listener = gloo_transport::listen_on("127.0.0.1");
  EndingHost host(listener);
  Rank rank(host, "gloo", 1, 2);
  CHECK_THAT(error_of([&] { (void)rank.group(1, 1e6); }), Contains("the job ends"));
}

TEST_CASE("gloo: no member has its group before all members have completed their connections") {
  HeldConnection held;
  std::atomic<int> with_group = 0;
  int before = -1;
  std::jthread other([&](const std::stop_token& is_over) {
    while (!held.holds() && !is_over.stop_requested()) {
      std::this_thread::yield();
    }
    // Sleeps because no event tells that a group is not made: in this time a member would have it.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    before = with_group;
    held.release();
  });
  run_ranks("gloo", 2, [&](Rank& rank) {
    const auto group = rank.group();
    ++with_group;
    rank.meet("end");
  });
  other.join();
  CHECK(before == 0);
  CHECK(with_group == 2);
}

TEST_CASE("gloo: members that give up while one still connects get no group, and live on") {
  HeldConnection held;
  std::array<std::string, 2> errors;
  run_ranks("gloo", 2, [&](Rank& rank) {
    errors[rank.rank()] = error_of([&] { (void)rank.group(1, 0.1); });
    held.release();
    rank.meet("end");
  });
  CHECK(errors[0] != "nothing");
  CHECK(errors[1] != "nothing");
}

TEST_CASE("gloo: an op fails at its deadline even if nobody waits for it") {
  std::optional<std::string> error;
  run_ranks("gloo", 2, [&](Rank& rank) {
    auto group = rank.group();
    std::vector<float> data(10);
    auto op = group.prepare({request_of(SR_OP_ALL_REDUCE, 1, data.size(), data)}, after(30));
    if (rank.rank() == 0) {
      op.start(after(0.01));
      while (!error) {
        error = group.error();
        std::this_thread::yield();
      }
    }
    rank.meet("end");
  });
  CHECK_THAT(*error, Contains("all_reduce (sum) of 10 f32") && Contains("past its deadline"));
}

namespace {

/// What rank 0 says where it waits for so long, rank 1 takes part and rank 2 does not.
std::string said_of_waiting(double patience, bool is_prepared, std::uint64_t count, std::uint32_t flags) {
  std::string error;
  run_ranks("gloo", 3, [&](Rank& rank) {
    auto group = rank.group();
    std::vector<float> data(count);
    auto request = request_of(SR_OP_ALL_REDUCE, 1, count, data);
    request.flags = flags;
    std::vector<plugins::TransportOp> ops;
    const auto prepare = [&](double seconds) { ops.push_back(group.prepare({request}, after(seconds))); };
    const auto take_part = [&](double seconds) {
      if (is_prepared) {
        ops[0].start(after(seconds));
        finish(ops[0]);
      } else {
        prepare(seconds);
      }
    };
    if (is_prepared) {
      prepare(30);
    }
    rank.meet("all is prepared");
    if (rank.rank() == 0) {
      error = error_of([&] { take_part(patience); });
      rank.host().abort();  // which ends what rank 1 sends to rank 2
    } else if (rank.rank() == 1) {
      (void)error_of([&] { take_part(30); });
    }
    rank.meet("end");
  });
  return error;
}

}  // namespace

TEST_CASE("gloo: a member past its deadline names the rank it waited for") {
  const std::uint32_t flags = GENERATE(0U, SR_OP_FLAG_BLOCKING);
  const bool is_prepared = GENERATE(true, false);
  const std::uint64_t count = GENERATE(as<std::uint64_t>(), 10, 100'000);
  // Rank 1 may come later than rank 0 waits; then that is what it says.
  std::string error;
  for (double patience = 0.3; patience < 30; patience *= 4) {
    error = said_of_waiting(patience, is_prepared, count, flags);
    if (!error.ends_with("waiting for member 1 (rank 1)")) {
      break;
    }
  }
  CHECK_THAT(error, Contains(is_prepared ? "all_reduce" : "preparing all_reduce") &&
                        EndsWith(" is past its deadline, waiting for member 2 (rank 2)"));
  CHECK(error.find("all_reduce") == error.rfind("all_reduce"));
}

TEST_CASE("gloo: a group is not affected by an earlier failed group of the same id") {
  std::array<float, 2> sums = {};
  run_ranks("gloo", 2, [&](Rank& rank) {
    std::vector<float> data(10, 1.0F);
    {
      auto group = rank.group();
      rank.meet("all are connected");
      group.abort("once");
    }
    auto group = rank.group();
    auto op = group.prepare({request_of(SR_OP_ALL_REDUCE, 1, data.size(), data)}, after(30));
    run(op);
    sums[rank.rank()] = data[0];
    rank.meet("end");
  });
  CHECK(sums == std::array<float, 2>{2, 2});
}

TEST_CASE("gloo: an address of another machine is refused") {
  SharedHost host;
  const std::string error = error_of([&] {
    Rank rank(host, "gloo", 0, 2, "192.0.2.1");
    (void)rank.group(1, 1);
  });
  CHECK_THAT(error, Contains("192.0.2.1"));
}
