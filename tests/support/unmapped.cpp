// A device for tests, `unmapped`. It computes with the kernels of cpu, but behaves like a device whose memory the host
// cannot address:
// - Its addresses are not mapped, so dereferencing one raises SIGSEGV.
// - Its queues do nothing until the host waits for an event. Then one thread does the work that the event needs, and
//   some other work: it repeatedly picks a random queue whose next work is ready. So a missing event causes wrong
//   numbers.
// - Its memory and queues have the kind `cuda`, so that transports can move its data. Tests use transports that know
//   where the bytes are.
// A program has the device if it is linked with this file.

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "core/device/apart.h"
#include "core/device/elements.h"
#include "core/device/host_device.h"
#include "core/device/host_memory.h"
#include "core/device/queue.h"

namespace shardrun::test {
namespace {

using device::Device;
using device::Event;
using device::HostMemory;
using device::Memory;
using device::PreparedKernel;
using device::Queue;
using device::StridedCopy;
using device::TensorView;

/// Maps addresses of the device to the memory that has their bytes. Any thread may call it.
class Mappings {
 public:
  void add(const std::byte* address, std::byte* real) {
    const std::lock_guard lock(mutex_);
    real_[address] = real;
  }
  void remove(const std::byte* address) {
    const std::lock_guard lock(mutex_);
    real_.erase(address);
  }
  [[nodiscard]] std::byte* real(const void* address) const {
    if (address == nullptr) {
      return nullptr;
    }
    const auto* const byte = static_cast<const std::byte*>(address);
    const std::lock_guard lock(mutex_);
    const auto after = real_.upper_bound(byte);
    if (after == real_.begin()) {
      throw Error(ErrorCode::internal, "an address that is not the device's was given to it");
    }
    const auto& [begin, real] = *std::prev(after);
    return real + (byte - begin);
  }

 private:
  mutable std::mutex mutex_;
  std::map<const std::byte*, std::byte*> real_;
};

Mappings& mappings() {
  static Mappings all;
  return all;
}

/// A reserved range of addresses that cannot be accessed. Its bytes are elsewhere (Mappings).
class UnmappedMemory final : public Memory {
 public:
  explicit UnmappedMemory(std::uint64_t bytes) : real_(bytes), reserved_(std::max<std::uint64_t>(bytes, 1)) {
    void* const range = mmap(nullptr, reserved_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) {
      throw Error(ErrorCode::io, "no range of addresses to reserve");
    }
    set_range(static_cast<std::byte*>(range), bytes);
    mappings().add(data(), real_.data());
  }
  ~UnmappedMemory() override {
    mappings().remove(data());
    munmap(data(), reserved_);
  }

  [[nodiscard]] std::uint64_t touched_bytes() const override { return real_.touched_bytes(); }

 private:
  HostMemory real_;
  std::uint64_t reserved_;
};

class LateQueue;

/// Does the work of all queues on one thread.
class Worker {
 public:
  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) {
      thread_.join();
    }
  }

  void add(LateQueue* queue) {
    const std::lock_guard lock(mutex_);
    queues_.push_back(queue);
    if (!thread_.joinable()) {
      thread_ = std::thread([this] { run(); });
    }
  }
  void remove(LateQueue* queue) {
    const std::lock_guard lock(mutex_);
    std::erase(queues_, queue);
  }
  [[nodiscard]] std::mutex& mutex() noexcept { return mutex_; }
  void finish(LateQueue& queue, std::uint64_t number);
  void open(LateQueue& queue, std::uint64_t gate) noexcept;

 private:
  void run();
  [[nodiscard]] bool is_past(const Event& event) const;
  [[nodiscard]] LateQueue* any_ready();

  std::mutex mutex_;  ///< also guards the queues' contents
  std::condition_variable changed_;
  std::vector<LateQueue*> queues_;
  std::multiset<std::pair<LateQueue*, std::uint64_t>> awaited_;
  std::mt19937 random_{1};
  std::thread thread_;
  bool ends_ = false;
};

Worker& worker() {
  static Worker only;
  return only;
}

TensorView real_view(TensorView view) {
  view.data = mappings().real(view.data);
  return view;
}

class LateQueue final : public Queue {
 public:
  LateQueue(const Device& device, device::Threads& threads) : Queue(device), threads_(threads) { worker().add(this); }
  ~LateQueue() override {
    try {
      finish();
    } catch (...) {
      // Errors do not matter here: whoever uses the results has waited for them.
    }
    worker().remove(this);
  }

  void run(const PreparedKernel& kernel, bool accumulate, const device::Scalars& scalars) override {
    give([this, &kernel, accumulate, scalars] { device::run_on_host(kernel, accumulate, scalars, threads_); });
  }
  void copy(const StridedCopy& copy) override {
    StridedCopy real = copy;
    real.from = mappings().real(copy.from);
    real.to = mappings().real(copy.to);
    give([real] { device::copy_on_host(real); });
  }
  void read(const void* from, std::span<std::byte> to) override {
    give([from = mappings().real(from), to] { move(from, to.data(), to.size()); });
  }
  void write(std::span<const std::byte> from, void* to) override {
    give([from, to = mappings().real(to)] { move(from.data(), to, from.size()); });
  }
  void fill(const TensorView& tensor, double value) override {
    give([this, view = real_view(tensor), value] { device::fill_on_host(view, value, threads_); });
  }
  void check_finite(const TensorView& tensor, bool& finite) override {
    give([view = real_view(tensor), &finite] { finite = !device::has_non_finite(view); });
  }
  void stamp(std::int64_t& time) override {
    give([&time] {
      time = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
                 .count();
    });
  }
  [[nodiscard]] Event record() override {
    const std::lock_guard lock(worker().mutex());
    return {this, given_};
  }
  void wait(const Event& event) override { give({}, event); }
  void finish(const Event& event) override { worker().finish(*this, event.number); }
  using Queue::finish;
  void call(void (*act)(void* argument), void* argument) override {
    give([act, argument] { act(argument); });
  }
  [[nodiscard]] std::uint64_t add_gate() override {
    give({}, {}, ++gates_);
    return gates_;
  }
  void open_gate(std::uint64_t gate) noexcept override { worker().open(*this, gate); }

 private:
  friend class Worker;
  struct Work {
    std::function<void()> run;
    Event after;
    std::uint64_t gate = 0;  ///< the gate that must be open first; 0: none
  };

  void give(std::function<void()> run, const Event& after = {}, std::uint64_t gate = 0) {
    const std::lock_guard lock(worker().mutex());
    work_.push_back({std::move(run), after, gate});
    ++given_;
  }
  static void move(const void* from, void* to, std::size_t bytes) {
    if (bytes > 0) {
      std::memcpy(to, from, bytes);
    }
  }

  device::Threads& threads_;
  std::deque<Work> work_;
  std::uint64_t given_ = 0;
  std::uint64_t done_ = 0;
  std::uint64_t gates_ = 0;
  std::set<std::uint64_t> open_;
  std::exception_ptr error_;
};

bool Worker::is_past(const Event& event) const {
  const bool lives = std::find(queues_.begin(), queues_.end(), event.queue) != queues_.end();
  return !lives || static_cast<const LateQueue*>(event.queue)->done_ >= event.number;
}

/// A random queue whose next work is ready; null if there is none.
LateQueue* Worker::any_ready() {
  std::vector<LateQueue*> ready;
  std::copy_if(queues_.begin(), queues_.end(), std::back_inserter(ready), [&](const LateQueue* queue) {
    if (queue->work_.empty()) {
      return false;
    }
    const LateQueue::Work& next = queue->work_.front();
    return (next.after.queue == nullptr || is_past(next.after)) && (next.gate == 0 || queue->open_.contains(next.gate));
  });
  return ready.empty() ? nullptr : ready[random_() % ready.size()];
}

void Worker::finish(LateQueue& queue, std::uint64_t number) {
  std::unique_lock lock(mutex_);
  const auto awaited = awaited_.emplace(&queue, number);
  changed_.notify_all();
  changed_.wait(lock, [&] { return queue.done_ >= number; });
  awaited_.erase(awaited);
  if (queue.error_ != nullptr) {
    std::rethrow_exception(std::exchange(queue.error_, nullptr));
  }
}

void Worker::open(LateQueue& queue, std::uint64_t gate) noexcept {
  const std::lock_guard lock(mutex_);
  queue.open_.insert(gate);
  changed_.notify_all();
}

void Worker::run() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    const bool is_needed =
        std::any_of(awaited_.begin(), awaited_.end(), [](const auto& each) { return each.first->done_ < each.second; });
    LateQueue* const queue = is_needed ? any_ready() : nullptr;
    if (queue == nullptr) {
      changed_.wait(lock);
      continue;
    }
    const std::function<void()> run = std::move(queue->work_.front().run);
    queue->work_.pop_front();
    std::exception_ptr error;
    lock.unlock();
    try {
      if (run) {
        run();
      }
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    queue->error_ = queue->error_ == nullptr ? error : queue->error_;
    ++queue->done_;
    changed_.notify_all();
  }
}

class Unmapped final : public device::DeviceApart {
 public:
  Unmapped() : DeviceApart("unmapped", "cpu") {}

  [[nodiscard]] device::DeviceFacts facts() const override {
    return device::facts_of_host({graph::DType::f32, graph::DType::bf16});
  }
  [[nodiscard]] std::shared_ptr<const Memory> allocate(std::uint64_t bytes) const override {
    return std::make_shared<const UnmappedMemory>(bytes);
  }
  [[nodiscard]] device::MemoryKind memory_kind() const noexcept override { return device::MemoryKind::cuda; }
  [[nodiscard]] std::size_t unit() const override { return 0; }
  [[nodiscard]] std::unique_ptr<Queue> open_transfer_queue(device::Threads& threads) const override {
    return open_queue(threads);
  }
  [[nodiscard]] std::unique_ptr<Queue> open_queue(device::Threads& threads) const override {
    return std::make_unique<LateQueue>(*this, threads);
  }
  [[nodiscard]] std::unique_ptr<const PreparedKernel> prepare(const device::Kernel& kernel,
                                                              const graph::Attributes& attributes,
                                                              std::vector<TensorView> inputs,
                                                              std::vector<TensorView> outputs,
                                                              std::span<std::byte> scratch,
                                                              std::string_view makes) const override {
    std::ranges::transform(inputs, inputs.begin(), real_view);
    std::ranges::transform(outputs, outputs.begin(), real_view);
    return Device::prepare(kernel, attributes, std::move(inputs), std::move(outputs),
                           {mappings().real(scratch.data()), scratch.size()}, makes);
  }
};

const device::RegisterDevice registered(std::make_unique<const Unmapped>());

}  // namespace
}  // namespace shardrun::test

/// The memory with the bytes of a device address, for transports that move the device's data.
extern "C" __attribute__((visibility("default"))) void* shardrun_test_real_address(const void* address) {
  return shardrun::test::mappings().real(address);
}
