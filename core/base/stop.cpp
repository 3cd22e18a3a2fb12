#include "core/base/stop.h"

#include <atomic>

namespace shardrun {
namespace {

std::atomic<int> requested = 0;
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler sets it");

}  // namespace

void request_stop(int signal) noexcept {
  int none = 0;
  requested.compare_exchange_strong(none, signal, std::memory_order_relaxed);
}

int stop_requested() noexcept { return requested.load(std::memory_order_relaxed); }

void stop_point() {
  if (const int signal = stop_requested()) {
    throw Stopped(signal);
  }
}

}  // namespace shardrun
