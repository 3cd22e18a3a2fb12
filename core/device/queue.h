#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/device/device.h"

namespace shardrun::device {

class Queue;

/// Marks the end of all work that a queue had been given when the event was recorded.
struct Event {
  Queue* queue = nullptr;
  std::uint64_t number = 0;
};

/// A strided box of elements to copy to another strided box. Strides are in elements.
struct StridedCopy {
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t element_bytes = 0;
  std::span<const std::int64_t> shape;
  std::span<const std::int64_t> from_strides;
  std::span<const std::int64_t> to_strides;
};

/// Does work on a device in the order in which it was given. Only events order the work of different queues. A queue is
/// used by one thread.
///
/// Work can run long after the call that gave it. Until then its arguments in host memory must stay valid. Scalars and
/// StridedCopy are copied, but not the memory to which they point. A later call throws an error of the work.
class Queue {
 public:
  explicit Queue(const Device& device) : device_(device) {}
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  /// Waits until all work is done.
  virtual ~Queue() = default;

  [[nodiscard]] const Device& device() const noexcept { return device_; }

  /// Tells the step, counted from 0, of the kernels that run from now on. Error messages name the step.
  virtual void begin_step(std::int64_t /*step*/) {}
  /// Runs a kernel. With `accumulate`, the kernel adds to its first result instead of overwriting it.
  virtual void run(const PreparedKernel& kernel, bool accumulate, const Scalars& scalars) = 0;
  virtual void copy(const StridedCopy& copy) = 0;
  /// Copies from the device to the host.
  virtual void read(const void* from, std::span<std::byte> to) = 0;
  /// Copies from the host to the device.
  virtual void write(std::span<const std::byte> from, void* to) = 0;
  /// Sets every element to this value, rounded as run_kernel() rounds results.
  virtual void fill(const TensorView& tensor, double value) = 0;
  /// Sets `finite` to whether every element is finite. Integers always are.
  virtual void check_finite(const TensorView& tensor, bool& finite) = 0;
  /// Sets `time` to the time at which all earlier work is done, in nanoseconds of the monotonic clock.
  virtual void stamp(std::int64_t& time) = 0;

  [[nodiscard]] virtual Event record() = 0;
  /// Makes later work of this queue wait for an event of any queue of the device.
  virtual void wait(const Event& event) = 0;
  /// Makes the calling thread wait for an event of this queue. Throws an error of the work.
  virtual void finish(const Event& event) = 0;
  void finish() { finish(record()); }

  /// Calls `act(argument)` once all earlier work is done, on any thread, perhaps before this function returns. `act`
  /// must return soon, and must neither give the queue work nor throw.
  virtual void call(void (*act)(void* argument), void* argument) = 0;
  /// Adds a closed gate, and returns its number. Later work of the queue waits until open_gate() opens the gate.
  [[nodiscard]] virtual std::uint64_t add_gate() = 0;
  /// Opens a gate. Call it once for each gate, from any thread.
  virtual void open_gate(std::uint64_t gate) noexcept = 0;

  /// A handle with which libraries can enqueue work on the device, such as a GPU's stream. Null if there is none.
  [[nodiscard]] virtual void* native() noexcept { return nullptr; }

 private:
  const Device& device_;
};

/// Runs Queue::check_finite() and waits for the answer.
[[nodiscard]] inline bool is_finite(Queue& queue, const TensorView& tensor) {
  bool finite = true;
  queue.check_finite(tensor, finite);
  queue.finish();
  return finite;
}

}  // namespace shardrun::device
