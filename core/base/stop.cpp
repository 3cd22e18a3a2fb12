#include "core/base/stop.h"

#include <atomic>

namespace shardrun {
namespace {

std::atomic<int> requested = 0;
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler sets it");

std::atomic<int> runs_with_steps = 0;

std::atomic<Results> known_results = Results::none;
static_assert(std::atomic<Results>::is_always_lock_free, "a signal handler reads it");

}  // namespace

void request_stop(int signal) noexcept {
  int none = 0;
  requested.compare_exchange_strong(none, signal, std::memory_order_relaxed);
}

void forget_stop() noexcept { requested.store(0, std::memory_order_relaxed); }

int stop_requested() noexcept { return requested.load(std::memory_order_relaxed); }

void stop_point() {
  const int signal = stop_requested();
  if (signal != 0 && runs_with_steps.load(std::memory_order_relaxed) == 0) {
    throw Stopped(signal);
  }
}

StepsUnderWay::StepsUnderWay() noexcept { runs_with_steps.fetch_add(1, std::memory_order_relaxed); }

StepsUnderWay::~StepsUnderWay() { runs_with_steps.fetch_sub(1, std::memory_order_relaxed); }

void note_results(Results results) noexcept { known_results.store(results, std::memory_order_relaxed); }

Results results() noexcept { return known_results.load(std::memory_order_relaxed); }

const char* text_of(Results results) noexcept {
  switch (results) {
    case Results::saved: return "the results were saved before";
    case Results::being_written: return "the results were being written, and may be missing";
    default: return "the results are not saved";
  }
}

}  // namespace shardrun
