#include "core/device/threads.h"

#include <fmt/core.h>
#include <sched.h>

#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

#include "core/base/error.h"

namespace shardrun::device {

namespace {

/// A thread yields this often before it sleeps. On an idle core that takes about 50 µs, the gap between two kernels.
/// With more threads than cores, a yield hands the core over, so that no time slice is wasted.
constexpr int yields_before_sleep = 200;

/// Waits until the value differs from `old`, and returns it.
std::uint32_t wait_while(const std::atomic<std::uint32_t>& value, std::uint32_t old) {
  for (int i = 0; i < yields_before_sleep; ++i) {
    const std::uint32_t now = value.load(std::memory_order_acquire);
    if (now != old) {
      return now;
    }
    sched_yield();
  }
  while (value.load(std::memory_order_acquire) == old) {
    value.wait(old, std::memory_order_acquire);
  }
  return value.load(std::memory_order_acquire);
}

/// The first part that a thread runs. It also runs every count-th part after it.
int first_part(int thread, int rotated, int count) noexcept { return (thread - rotated + count) % count; }

}  // namespace

/// A run raises the ticket of each worker that takes part in it, and ends when these workers have finished. The other
/// workers do not read the fields below, so that the next run can change the fields at once.
struct Threads::Pool {
  struct alignas(64) Worker {
    std::atomic<std::uint32_t> ticket = 0;  ///< raised once for each run in which the worker takes part
    std::thread thread;
  };

  void (*body)(const void*, int) = nullptr;
  const void* self = nullptr;
  int parts = 0;
  int rotated = 0;
  bool stop = false;
  alignas(64) std::atomic<std::uint32_t> running = 0;  ///< workers that have not finished the current run
  std::vector<Worker> workers;                         ///< worker w is thread w + 1; the caller is thread 0

  explicit Pool(int count) : workers(static_cast<std::size_t>(count - 1)) {
    try {
      for (int w = 0; w < count - 1; ++w) {
        workers[static_cast<std::size_t>(w)].thread = std::thread([this, w, count] { work(w, count); });
      }
    } catch (const std::system_error& error) {
      end();
      throw Error(ErrorCode::io, fmt::format("starting {} threads: {}; ask for fewer", count, error.what()));
    }
  }

  ~Pool() { end(); }

  void end() {
    stop = true;
    start(workers.size());
    for (Worker& worker : workers) {
      if (worker.thread.joinable()) {
        worker.thread.join();
      }
    }
  }

  void start(std::size_t count) {
    for (std::size_t w = 0; w < count; ++w) {
      workers[w].ticket.fetch_add(1, std::memory_order_release);
      workers[w].ticket.notify_one();
    }
  }

  void work(int w, int count) {
    std::uint32_t seen = 0;
    for (;;) {
      seen = wait_while(workers[static_cast<std::size_t>(w)].ticket, seen);
      if (stop) {
        return;
      }
      for (int part = first_part(w + 1, rotated, count); part < parts; part += count) {
        body(self, part);
      }
      if (running.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        running.notify_one();
      }
    }
  }
};

Threads::Threads(int count) : count_(count < 1 ? 1 : count) {
  if (count_ > 1) {
    pool_ = std::make_unique<Pool>(count_);
  }
}

Threads::~Threads() = default;

void Threads::run_parts(int parts, void (*body)(const void*, int), const void* self) {
  const int helpers = parts == 1 ? 0 : rotated_ != 0 || parts > count_ ? count_ - 1 : parts - 1;
  const int rotated = helpers > 0 ? rotated_ : 0;
  if (helpers > 0) {
    pool_->body = body;
    pool_->self = self;
    pool_->parts = parts;
    pool_->rotated = rotated;
    pool_->running.store(static_cast<std::uint32_t>(helpers), std::memory_order_relaxed);
    pool_->start(static_cast<std::size_t>(helpers));
  }
  for (int part = first_part(0, rotated, count_); part < parts; part += count_) {
    body(self, part);
  }
  if (helpers > 0) {
    for (std::uint32_t left = pool_->running.load(std::memory_order_acquire); left != 0;) {
      left = wait_while(pool_->running, left);
    }
  }
}

}  // namespace shardrun::device
