#include <shardrun/sdk/transport/clock.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/catch.h"

using namespace shardrun::sdk;

namespace {

constexpr std::int64_t ms = 1'000'000;

/// A clock that a test sets, and that may be looked at only a while after it was asked for.
struct Time {
  std::atomic<std::int64_t> now = 1000 * ms;
  std::function<void()> before_look = {};
};

struct Source {
  Time* time;

  std::int64_t operator()() const {
    if (const std::function<void()> act = std::exchange(time->before_look, {})) {
      act();
    }
    return time->now;
  }
};

struct SharedSource {
  std::atomic<std::int64_t>* now;

  std::int64_t operator()() const { return *now; }
};

}  // namespace

TEST_CASE("the clock of deadlines skips the part of a gap beyond the longest allowed", "[sdk]") {
  Time time;
  detail::RunningClock clock(Source{&time});
  REQUIRE(clock.now() == 1000 * ms);

  time.now += 100 * ms;
  CHECK(clock.now() == 1100 * ms);
  time.now += 6000 * ms;
  CHECK(clock.now() == 1200 * ms);
  CHECK(clock.behind() == 5900 * ms);
  time.now += 40 * ms;
  CHECK(clock.now() == 1240 * ms);
  time.now += 1;
  CHECK(clock.now() == 1240 * ms + 1);
}

TEST_CASE("a late look skips no time in which other threads looked", "[sdk]") {
  Time time;
  detail::RunningClock clock(Source{&time});
  REQUIRE(clock.now() == 1000 * ms);
  std::int64_t of_others = 0;
  time.before_look = [&] {
    for (int i = 0; i < 15; ++i) {
      time.now += 10 * ms;
      of_others = clock.now();
    }
  };

  const std::int64_t late = clock.now();

  CHECK(of_others == 1150 * ms);
  CHECK(late == 1150 * ms);
  CHECK(clock.now() == 1150 * ms);
  CHECK(clock.behind() == 0);
}

TEST_CASE("two threads skip the same gap only once", "[sdk]") {
  Time time;
  detail::RunningClock clock(Source{&time});
  REQUIRE(clock.now() == 1000 * ms);
  time.before_look = [&] {
    time.now += 6000 * ms;
    CHECK(clock.now() == 1100 * ms);
  };

  CHECK(clock.now() == 1100 * ms);
  CHECK(clock.behind() == 5900 * ms);
}

TEST_CASE("the clock of deadlines never goes backwards, whichever thread looks", "[sdk]") {
  std::atomic<std::int64_t> time = 0;
  detail::RunningClock clock(SharedSource{&time});
  std::atomic<std::int64_t> latest = INT64_MIN;
  std::atomic<int> backwards = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 20'000; ++i) {
        if (thread == 0) {
          time += i % 100 == 0 ? 300 * ms : ms / 3;
        }
        const std::int64_t before = latest;
        const std::int64_t now = clock.now();
        backwards += now < before ? 1 : 0;
        for (std::int64_t seen = latest; seen < now && !latest.compare_exchange_weak(seen, now);) {
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(backwards == 0);
  CHECK(clock.behind() > 0);
}

TEST_CASE("deadlines keep their remaining time across the border", "[sdk]") {
  Time time;
  detail::RunningClock clock(Source{&time});
  REQUIRE(clock.now() == 1000 * ms);
  time.now += 6000 * ms;  // a jump that is 5900 ms too long
  const std::int64_t deadline = time.now + 30 * ms;

  CHECK(clock.from_border(deadline) == clock.now() + 30 * ms);
  CHECK(clock.to_border(clock.now() + 30 * ms) == deadline);
  for (const std::int64_t fixed : {INT64_MAX, std::int64_t{0}, std::int64_t{-1}, INT64_MIN}) {
    CHECK(clock.from_border(fixed) == fixed);
    CHECK(clock.to_border(fixed) == fixed);
  }
}

TEST_CASE("waits are cut into slices of half the longest gap, and a passed deadline leaves none", "[sdk]") {
  constexpr std::chrono::nanoseconds none{};
  CHECK(Deadline::never().slice() == longest_gap / 2);
  CHECK((Deadline::now() + std::chrono::hours(1)).slice() == longest_gap / 2);
  CHECK(Deadline::now().slice() == none);
  CHECK(Deadline::past().slice() == none);
}

TEST_CASE("a deadline has passed from its time on", "[sdk]") {
  CHECK(Deadline::past().passed());
  CHECK(Deadline::now().passed());
  CHECK_FALSE((Deadline::now() + std::chrono::hours(1)).passed());
  CHECK_FALSE(Deadline::never().passed());
  CHECK(Deadline::never().left() == std::chrono::nanoseconds::max());
  CHECK(Deadline::now() + std::chrono::nanoseconds::max() == Deadline::never());
}

TEST_CASE("deadlines that are long ago or never are the same in the C interface", "[sdk]") {
  CHECK(Deadline::never().to_border() == INT64_MAX);
  CHECK(Deadline::past().to_border() == 0);
  CHECK(Deadline::from_border(INT64_MAX) == Deadline::never());
  for (const std::int64_t past : {std::int64_t{0}, std::int64_t{-1}, INT64_MIN}) {
    CHECK(Deadline::from_border(past) == Deadline::past());
  }
}
