#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "tests/support/allocations.h"
#include "tests/support/cuda/fake_cuda.h"

/// The state of the fake CUDA (fake_cuda.h): streams, events, memory, and the thread that does the work.
namespace shardrun::test::fake_cuda {

struct Work {
  std::function<void()> run = {};
  std::shared_ptr<JointWork> joint = {};
  FakeStream* after = nullptr;  ///< the stream whose work up to `position` must be done first
  std::uint64_t position = 0;
  const std::uint32_t* gate = nullptr;  ///< a word that must be at least `least` first
  std::uint32_t least = 0;
  bool is_on_host = false;
};

}  // namespace shardrun::test::fake_cuda

struct FakeStream {
  int device = 0;
  int priority = 0;
  std::deque<shardrun::test::fake_cuda::Work> work;
  std::uint64_t given = 0;
  std::uint64_t done = 0;
};

struct FakeEvent {
  FakeStream* stream = nullptr;  ///< null: the event is not recorded
  std::uint64_t position = 0;
  std::chrono::steady_clock::time_point time;
};

namespace shardrun::test::fake_cuda {

/// The whole state of the fake. Every fake function of CUDA locks `mutex`.
class Fake {
 public:
  Fake();
  Fake(const Fake&) = delete;
  Fake& operator=(const Fake&) = delete;
  ~Fake();

  void give(FakeStream* stream, Work work);
  /// Tells the thread that someone polls, so it may do any one work.
  void nudge();
  /// Waits until the stream has done its work up to `position`.
  cudaError_t await(std::unique_lock<std::mutex>& lock, FakeStream* stream, std::uint64_t position);

  /// Whether one allocation of a GPU contains these bytes.
  [[nodiscard]] bool is_on_gpu(const void* memory, std::size_t bytes) const { return holds(device, memory, bytes); }
  [[nodiscard]] bool is_pinned(const void* memory, std::size_t bytes) const { return holds(pinned, memory, bytes); }
  [[nodiscard]] std::uint64_t used() const {
    std::uint64_t bytes = taken;
    for (const auto& [begin, size] : device) {
      bytes += mapped.contains(begin) ? 0 : size;
    }
    return bytes;
  }

  std::mutex mutex;
  std::condition_variable changed;
  Settings settings;
  std::mt19937_64 random;
  std::map<const std::byte*, std::size_t> device;  ///< allocations that are not freed, with their sizes
  std::map<const std::byte*, std::size_t> pinned;
  std::set<const std::byte*> mapped;  ///< which of `device` are virtual memory
  std::uint64_t taken = 0;            ///< bytes of virtual memory that are in use
  std::set<const void*> kernels;      ///< the kernels that are loaded
  std::vector<FakeStream*> streams;
  // Destroyed streams and events. They are kept because others may still query their progress.
  std::vector<std::unique_ptr<FakeStream>> old_streams;
  std::vector<std::unique_ptr<FakeEvent>> old_events;
  std::int64_t events = 0;
  std::int64_t waits = 0;
  Counts counts;
  std::int64_t done = 0;  ///< number of works done
  cudaError_t sticky = cudaSuccess;
  std::function<void()> before_host_function;

 private:
  [[nodiscard]] static bool holds(const std::map<const std::byte*, std::size_t>& ranges, const void* memory,
                                  std::size_t bytes) {
    const auto* const first = static_cast<const std::byte*>(memory);
    const auto after = ranges.upper_bound(first);
    return after != ranges.begin() && first + bytes <= std::prev(after)->first + std::prev(after)->second;
  }

  void protect(int access) const;
  FakeStream* any_ready();
  void drop_all();
  void run();
  bool perform(const Work& work, std::unique_lock<std::mutex>& lock);

  int waiting_ = 0;
  int nudges_ = 0;
  int joint_ = 0;  ///< number of joint works in streams
  bool ends_ = false;
  bool is_calling_ = false;  ///< a host function is running
  std::thread thread_;
};

[[nodiscard]] Fake& state();

/// Ends the program if a host function in a stream calls this.
void refuse_in_host_function();

/// Calls `act(fake, lock)` with the lock held. If CUDA has failed before, returns that error instead.
template <typename Act>
cudaError_t with(const Act& act) {
  refuse_in_host_function();
  const Uncounted own;
  Fake& fake = state();
  std::unique_lock lock(fake.mutex);
  return fake.sticky != cudaSuccess ? fake.sticky : act(fake, lock);
}

/// The unit in which memory is protected, in bytes.
inline constexpr std::size_t page = 4096;
[[nodiscard]] constexpr std::size_t rounded(std::size_t bytes) { return (bytes + page - 1) / page * page; }

}  // namespace shardrun::test::fake_cuda
