#include "core/launch/store_host.h"

#include <future>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "core/launch/rank.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace shardrun::launch;
using Catch::Matchers::Contains;
using shardrun::test::error_of;
using std::chrono::milliseconds;

namespace {

constexpr const char* job = "[train]\nsteps = 5\n";

Rank::Deadline soon() { return Rank::Clock::now() + std::chrono::seconds(60); }

/// A host of two ranks, and what it tells.
struct Hosted {
  explicit Hosted(HostSettings settings = {}) : host(complete(std::move(settings))) { host.start(); }

  HostSettings complete(HostSettings settings) {
    settings.address = "127.0.0.1";
    settings.ranks = 2;
    settings.token = token;
    settings.job = job;
    settings.run = "0123456789abcdef";
    settings.on_notice = [this](std::string_view line) {
      const std::lock_guard lock(mutex);
      notices += std::string(line) + "\n";
    };
    return settings;
  }

  [[nodiscard]] RankContext context(int rank) const {
    return {.rank = rank,
            .world_size = 2,
            .address = "127.0.0.1",
            .port = host.port(),
            .token = token,
            .heartbeat = milliseconds(20),
            .is_hosted = true};
  }

  std::string told() {
    const std::lock_guard lock(mutex);
    return notices;
  }

  const Token token = random_token();
  std::mutex mutex;
  std::string notices;
  StoreHost host;
};

}  // namespace

TEST_CASE("a host names the ranks it waits for, and times none out before they are expected", "[launch]") {
  Hosted hosted(
      HostSettings{.join_timeout = milliseconds(400), .first_reminder = milliseconds(50), .grace = milliseconds(10)});
  std::this_thread::sleep_for(milliseconds(600));  // longer than the join timeout, which must not have begun
  CHECK(hosted.told().empty());
  hosted.host.expect_ranks();
  const LaunchResult result = hosted.host.wait();
  REQUIRE(result.cause);
  CHECK_THAT(result.cause->text, Contains("has not joined the job within"));
  CHECK_THAT(hosted.told(), Contains("waiting for ranks 0, 1 to join at 127.0.0.1 port"));
}

TEST_CASE("a rank with the right token but another job ends the job with that reason", "[launch]") {
  Hosted hosted(HostSettings{.grace = milliseconds(10)});
  hosted.host.expect_ranks();
  CHECK_THAT(error_of([&] { Rank(hosted.context(1), "[train]\nsteps = 6\n", soon()); }),
             Contains("came with another job") && Contains("the first difference is [train] steps = 6 here, 5 there"));
  const LaunchResult result = hosted.host.wait();
  REQUIRE(result.cause);
  CHECK(result.cause->rank == 1);
  CHECK_THAT(result.cause->text, Contains("must be the same on all hosts; its own error says where it differs"));
}

TEST_CASE("a callback of a host that throws fails the job, not the process", "[launch]") {
  Hosted hosted(HostSettings{.grace = milliseconds(10),
                             .on_message = [](const RankMessage&) { throw std::runtime_error("no"); }});
  hosted.host.expect_ranks();
  auto other = std::async(std::launch::async, [&] { return std::make_unique<Rank>(hosted.context(1), job, soon()); });
  Rank rank(hosted.context(0), job, soon());
  const auto second = other.get();
  second->message("kind", "bytes");
  const LaunchResult result = hosted.host.wait();
  REQUIRE(result.cause);
  CHECK_THAT(result.cause->text, Contains("could not take what rank 1 reported: no"));
}

TEST_CASE("a rank that waits without a deadline loses a host that has fallen silent", "[launch]") {
  std::promise<void> go_on;
  const auto stuck = go_on.get_future().share();
  Hosted hosted(HostSettings{.grace = milliseconds(10), .on_message = [stuck](const RankMessage&) { stuck.wait(); }});
  hosted.host.expect_ranks();
  RankContext watching = hosted.context(1);
  watching.silence = milliseconds(400);
  auto other = std::async(std::launch::async, [&] { return std::make_unique<Rank>(watching, job, soon()); });
  Rank rank(hosted.context(0), job, soon());
  const auto second = other.get();
  std::this_thread::sleep_for(milliseconds(800));  // longer than a host may be silent: its heartbeats are heard
  CHECK_FALSE(second->aborted());
  rank.message("kind", "bytes");
  CHECK_THAT(error_of([&] { (void)second->get("never", Rank::no_deadline); }), Contains("rank 0 has not answered for"));
  CHECK_FALSE(second->fail(FailureKind::own, "nobody hears this"));
  go_on.set_value();
}

TEST_CASE("a port that is taken is an error that asks for another port", "[launch]") {
  Hosted hosted;
  HostSettings same = hosted.complete({});
  same.port = hosted.host.port();
  CHECK_THAT(error_of([&] { const StoreHost another(same); }), Contains("choose another port (MASTER_PORT)"));
}
