#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/device/cuda/runtime/device.h"
#include "core/device/cuda/runtime/host_copies.h"
#include "core/device/queue.h"

namespace shardrun::device::cuda {

/// A first-in, first-out queue in a ring buffer. It allocates only when it becomes larger than ever before.
template <typename T>
class Ring {
 public:
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  /// The i-th element from the front.
  [[nodiscard]] const T& operator[](std::size_t i) const noexcept { return slots_[(first_ + i) % slots_.size()]; }
  [[nodiscard]] const T& front() const noexcept { return (*this)[0]; }
  [[nodiscard]] const T& back() const noexcept { return (*this)[count_ - 1]; }

  void push_back(const T& value) {
    if (count_ == slots_.size()) {
      std::rotate(slots_.begin(), slots_.begin() + static_cast<std::ptrdiff_t>(first_), slots_.end());
      first_ = 0;
      slots_.resize(std::max<std::size_t>(64, 2 * count_));
    }
    slots_[(first_ + count_++) % slots_.size()] = value;
  }
  void pop_front() noexcept {
    first_ = (first_ + 1) % slots_.size();
    --count_;
  }
  void pop_back() noexcept { --count_; }

 private:
  std::vector<T> slots_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

/// A stream of a GPU. One for transfers has the highest priority: the GPU starts its kernels as soon as those of
/// another stream leave room.
///
/// - Pinned host memory (Device::pin) is copied directly. Other host memory goes through the queue's pinned buffers
///   (host_copies.h).
/// - When the host finishes an event of any queue, it gets the times and the answers of check_finite() so far.
/// - A gate makes the stream wait for a word in pinned memory; no thread of CUDA blocks. If the driver lacks or refuses
///   such waits, only add_gate() fails. If it lacks or refuses writes of such words, progress is not recorded.
/// - Events and memory for pending work are made when there is more pending work than ever before, and then kept.
class CudaQueue final : public Queue {
 public:
  enum class Use : std::uint8_t { kernels, transfers };

  /// `device` and `threads` outlive it. Throws as Gpu::check() does.
  CudaQueue(const CudaDevice& device, Threads& threads, Use use);
  ~CudaQueue() override;

  void begin_step(std::int64_t step) override;
  void run(const PreparedKernel& kernel, bool accumulate, const Scalars& scalars) override;
  void copy(const StridedCopy& copy) override;
  void read(const void* from, std::span<std::byte> to) override;
  void write(std::span<const std::byte> from, void* to) override;
  void fill(const TensorView& tensor, double value) override;
  void check_finite(const TensorView& tensor, bool& finite) override;
  void stamp(std::int64_t& time) override;
  [[nodiscard]] Event record() override;
  void wait(const Event& event) override;
  void finish(const Event& event) override;
  using Queue::finish;
  void call(void (*act)(void* argument), void* argument) override;
  [[nodiscard]] std::uint64_t add_gate() override;
  void open_gate(std::uint64_t gate) noexcept override;
  [[nodiscard]] void* native() noexcept override { return stream_; }

  /// Stores the times and answers of finished work. Any thread may call it.
  void deliver();
  /// Makes the first call that has not been made. Returns false if there is none. Any thread may call it.
  bool make_next_call();
  /// See HostCopies::abandon.
  void abandon_copies() noexcept { host_copies_.abandon(); }

 private:
  static constexpr std::int64_t no_step = -1;

  struct Calls;
  /// An event that was recorded when `number` pieces of work had been given.
  struct Mark {
    cudaEvent_t event = nullptr;
    std::uint64_t number = 0;
  };
  /// A time or an answer that the host gets once `event` has passed.
  struct Pending {
    cudaEvent_t event = nullptr;
    std::int64_t* time = nullptr;
    bool* finite = nullptr;
    std::size_t flag = 0;
  };
  /// A kernel that was run, kept for messages.
  struct Run {
    std::string_view op;
    std::string_view makes;
    std::int64_t step = no_step;
    [[nodiscard]] std::string text() const;  ///< "gelu (layer.0/mlp/gelu)"
  };

  [[nodiscard]] KernelCall call_of(const Scalars& scalars) const;
  /// Calls `enqueue()`. If it fails, throws an error that names the device and the attempted work.
  template <typename Enqueue>
  void give(std::string_view attempted, const Enqueue& enqueue);
  void note_run(const PreparedKernel& kernel);
  /// Like Gpu::check(), but names also the ops whose earlier work may have caused the error.
  void check(cudaError_t result, std::string_view attempted);
  /// Call it before an error is thrown, because the error's handler may free host memory that is being copied.
  void handle_failure();
  /// Chooses the GPU for the calling thread.
  void use();
  [[nodiscard]] std::string suspects() const;
  /// Takes an event from `free`; makes more if there is none.
  [[nodiscard]] cudaEvent_t take(std::vector<cudaEvent_t>& free, unsigned flags);
  [[nodiscard]] const Mark* find(std::uint64_t number) const;
  void add_pending(Pending pending);
  /// Sets the GPU's clock to the host's. REQUIRES: the stream has no work.
  void set_clock();
  /// Calls `copy(is_pinned)` for host memory. `to` names the destination in messages.
  template <typename Copy>
  void copy_bytes(std::span<const std::byte> on_host, const char* to, const Copy& copy);
  void write_progress();
  /// Tries the driver's functions for waits and writes, and forgets those that fail, as they may on a virtual GPU.
  void try_stream_values();
  void release() noexcept;

  const CudaDevice& cuda_;
  const Gpu& gpu_;
  CudaDevice::StreamValues values_;
  Threads& threads_;
  const graph::Attributes no_attributes_;
  const Scalars no_scalars_;
  cudaStream_t stream_ = nullptr;
  std::uint64_t given_ = 0;  ///< pieces of work given so far

  Ring<Mark> marks_;  ///< by number
  std::vector<cudaEvent_t> free_marks_;
  std::size_t made_ = 0;  ///< events made so far

  std::mutex pending_mutex_;
  Ring<Pending> pending_;                ///< in the stream's order
  std::vector<cudaEvent_t> timers_;      ///< free events
  cudaEvent_t last_ = nullptr;           ///< the event of the last known time
  std::int64_t last_time_ = 0;           ///< nanoseconds of the monotonic clock
  bool stamped_ = false;                 ///< times were taken since the GPU's clock was set
  std::vector<std::size_t> free_flags_;  ///< free flags of Pinned::finite

  HostCopies host_copies_;

  std::unique_ptr<Calls> calls_;

  std::mutex gates_mutex_;
  std::uint64_t gates_ = 0;
  std::uint64_t opened_ = 0;          ///< all gates up to this number are open
  std::vector<std::uint64_t> early_;  ///< open gates behind one that is still closed

  static constexpr std::uint64_t runs_a_note = 16;
  std::int64_t step_ = no_step;
  std::uint64_t runs_ = 0;
  std::vector<Run> latest_;  ///< by number modulo its size

  struct Pinned;  ///< memory that both the GPU and the host can address
  Pinned* pinned_ = nullptr;
};

}  // namespace shardrun::device::cuda
