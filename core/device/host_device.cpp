#include "core/device/host_device.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/device/cores.h"
#include "core/device/elements.h"
#include "core/device/host_memory.h"
#include "core/device/machine_level.h"
#include "core/device/queue.h"
#include "core/device/threads.h"
#include "core/memory/machine.h"

namespace shardrun::device {
namespace {

/// Copies the dimensions `d` and later of a box, row by row.
void copy_box(const StridedCopy& copy, std::size_t d, const std::byte* from, std::byte* to) {
  const std::size_t bytes = copy.element_bytes;
  const bool consecutive = d + 1 == copy.shape.size() && copy.from_strides[d] == 1 && copy.to_strides[d] == 1;
  if (d == copy.shape.size() || consecutive) {
    const std::int64_t elements = consecutive ? copy.shape[d] : 1;
    std::memcpy(to, from, static_cast<std::size_t>(elements) * bytes);
    return;
  }
  for (std::int64_t i = 0; i < copy.shape[d]; ++i) {
    copy_box(copy, d + 1, from + i * copy.from_strides[d] * static_cast<std::int64_t>(bytes),
             to + i * copy.to_strides[d] * static_cast<std::int64_t>(bytes));
  }
}

/// A queue that does all work at once, on the thread that enqueues it. That thread waits while a gate is closed. When
/// record() returns an event, all work before the event is done.
class HostQueue final : public Queue {
 public:
  HostQueue(const Device& device, Threads& threads) : Queue(device), threads_(threads) {}

  void run(const PreparedKernel& kernel, bool accumulate, const Scalars& scalars) override {
    pass_gates();
    run_on_host(kernel, accumulate, scalars, threads_);
  }
  void copy(const StridedCopy& copy) override {
    pass_gates();
    copy_on_host(copy);
  }
  void read(const void* from, std::span<std::byte> to) override { move(from, to.data(), to.size()); }
  void write(std::span<const std::byte> from, void* to) override { move(from.data(), to, from.size()); }
  void fill(const TensorView& tensor, double value) override {
    pass_gates();
    fill_on_host(tensor, value, threads_);
  }
  void check_finite(const TensorView& tensor, bool& finite) override {
    pass_gates();
    finite = !has_non_finite(tensor);
  }
  void stamp(std::int64_t& time) override {
    pass_gates();
    time = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
               .count();
  }
  [[nodiscard]] Event record() override {
    pass_gates();
    return {this, 0};
  }
  void wait(const Event&) override {}
  void finish(const Event&) override {}
  using Queue::finish;

  void call(void (*act)(void* argument), void* argument) override {
    pass_gates();
    act(argument);
  }
  [[nodiscard]] std::uint64_t add_gate() override { return ++gates_; }
  void open_gate(std::uint64_t) noexcept override {
    const std::lock_guard lock(mutex_);
    ++opened_;
    changed_.notify_all();
  }

 private:
  /// Waits until all gates are open. Each gate is opened once, so it is enough to compare the numbers.
  void pass_gates() {
    if (passed_ != gates_) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return opened_ == gates_; });
      passed_ = gates_;
    }
  }

  void move(const void* from, void* to, std::size_t bytes) {
    pass_gates();
    if (bytes > 0) {
      std::memcpy(to, from, bytes);
    }
  }

  Threads& threads_;
  std::uint64_t gates_ = 0;   ///< gates added so far
  std::uint64_t passed_ = 0;  ///< gates known to be open
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t opened_ = 0;
};

}  // namespace

DeviceFacts HostDevice::facts() const {
  DeviceFacts facts =
      facts_of_host(stored(graph::DType::f32) == graph::DType::f32 ? std::vector{graph::DType::f32, graph::DType::bf16}
                                                                   : std::vector{stored(graph::DType::f32)});
  if (const Kernel& product = kernel("matmul"); product.bf16_products != nullptr) {
    facts.bf16_products = product.bf16_products();
  }
  return facts;
}

std::shared_ptr<const Memory> HostDevice::allocate(std::uint64_t bytes) const {
  return std::make_shared<const HostMemory>(bytes);
}

std::unique_ptr<Queue> HostDevice::open_queue(Threads& threads) const {
  return std::make_unique<HostQueue>(*this, threads);
}

DeviceFacts facts_of_host(std::vector<graph::DType> computes) {
  const std::optional<memory::MemoryRoom> room = memory::available_memory();
  const int level = machine_level();
  return {.kind = "cpu",
          .cores = usable_cores(),
          .memory = room ? std::optional(room->bytes) : std::nullopt,
          .vectors = level == 4   ? "AVX-512"
                     : level == 3 ? "AVX2"
                                  : "baseline",
          .computes = std::move(computes),
          .bf16_products = {}};
}

void run_on_host(const PreparedKernel& kernel, bool accumulate, const Scalars& scalars, Threads& threads) {
  run_kernel(*kernel.kernel, {.attributes = *kernel.attributes,
                              .inputs = kernel.inputs,
                              .outputs = kernel.outputs,
                              .accumulate = accumulate,
                              .scratch = kernel.scratch,
                              .scalars = scalars,
                              .threads = threads,
                              .prepared = kernel.prepared.get()});
}

void copy_on_host(const StridedCopy& copy) {
  copy_box(copy, 0, static_cast<const std::byte*>(copy.from), static_cast<std::byte*>(copy.to));
}

void fill_on_host(const TensorView& tensor, double value, Threads& threads) {
  threads.split(tensor.elements(), 4096, [&](std::int64_t begin, std::int64_t end) {
    std::array<double, 256> values = {};
    for (std::int64_t first = begin; first < end; first += static_cast<std::int64_t>(values.size())) {
      const auto count =
          static_cast<std::size_t>(std::min<std::int64_t>(end - first, static_cast<std::int64_t>(values.size())));
      std::fill_n(values.begin(), count, value);  // set again, because write_elements() rounds them
      write_elements(tensor, first, {values.data(), count});
    }
  });
}

}  // namespace shardrun::device
