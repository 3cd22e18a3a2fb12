#include "core/device/cuda/runtime/queue.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/base/error.h"
#include "core/device/cuda/copies.h"
#include "core/device/elements.h"

namespace shardrun::device::cuda {
namespace {

constexpr std::size_t flags = 256;
constexpr std::size_t events_at_once = 64;
/// The number of remembered runs of kernels. The host is never so many runs ahead of a GPU.
constexpr std::size_t remembered_runs = 1U << 14U;
constexpr unsigned until_at_least = 0;  ///< CU_STREAM_WAIT_VALUE_GEQ

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

struct CudaQueue::Pinned {
  alignas(64) std::uint32_t gate;      ///< the low 32 bits of a number: gates up to it are open
  alignas(64) std::uint32_t progress;  ///< the low 32 bits of the number of runs that are known to be done
  alignas(64) std::array<std::int32_t, flags> finite;
};

/// Host functions that the stream calls.
struct CudaQueue::Calls {
  struct Call {
    void (*act)(void* argument) = nullptr;
    void* argument = nullptr;
    std::uint64_t number = 0;
  };

  /// Keeps the calls until the process ends. After a failure CUDA does not wait for a function that it has begun to
  /// call, so the function may use them after the queue is gone.
  static void keep(std::unique_ptr<Calls> calls) noexcept {
    static std::mutex& mutex = *new std::mutex;
    static std::unique_ptr<Calls>& kept = *new std::unique_ptr<Calls>;
    const std::lock_guard lock(mutex);
    calls->next = std::move(kept);
    kept = std::move(calls);
  }
  bool make_next();

  std::mutex mutex;
  std::uint64_t given = 0;
  Ring<Call> waiting;           ///< not yet made, in the stream's order
  std::unique_ptr<Calls> next;  ///< the next of the calls that keep() keeps
};

CudaQueue::CudaQueue(const CudaDevice& device, Threads& threads, Use use)
    : Queue(device),
      cuda_(device),
      gpu_(device.gpu()),
      threads_(threads),
      free_flags_(flags),
      calls_(std::make_unique<Calls>()),
      latest_(remembered_runs) {
  std::iota(free_flags_.begin(), free_flags_.end(), std::size_t{0});
  gpu_.use();  // first, because the following calls act on the current GPU
  values_ = device.stream_values();
  try {
    void* pinned = nullptr;
    gpu_.check(cudaHostAlloc(&pinned, sizeof(Pinned), cudaHostAllocPortable | cudaHostAllocMapped),
               fmt::format("pinning {} bytes of the host's memory for a queue", sizeof(Pinned)));
    pinned_ = static_cast<Pinned*>(pinned);
    std::memset(pinned, 0, sizeof(Pinned));
    int least = 0;
    int greatest = 0;
    gpu_.check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for the priorities of streams");
    gpu_.check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, use == Use::transfers ? greatest : least),
               "making a stream");
    host_copies_.prepare(gpu_, stream_);
    try_stream_values();
    last_ = take(timers_, cudaEventDefault);
    set_clock();
  } catch (...) {
    release();
    throw;
  }
  cuda_.add(this);
}

void CudaQueue::try_stream_values() {
  const auto word = static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(&pinned_->gate));
  if (values_.write != nullptr && values_.write(stream_, word, 0, 0) != cudaSuccess) {
    values_.write = nullptr;
  }
  if (values_.wait != nullptr && values_.wait(stream_, word, 0, until_at_least) != cudaSuccess) {
    values_.wait = nullptr;
  }
  gpu_.check(cudaStreamSynchronize(stream_),
             "trying whether a stream can write words of the host's memory and wait for them");
}

CudaQueue::~CudaQueue() {
  static_cast<void>(cudaSetDevice(gpu_.number()));
  // No error is thrown here, because the code that uses the results has waited for them, and got the error.
  const bool has_failed = cudaStreamSynchronize(stream_) != cudaSuccess;
  try {
    deliver();
  } catch (...) {
    // No error is thrown here, for the same reason.
  }
  cuda_.remove(this);
  if (has_failed) {
    Calls::keep(std::move(calls_));
  }
  release();
}

void CudaQueue::release() noexcept {
  for (; !marks_.empty(); marks_.pop_front()) {
    static_cast<void>(cudaEventDestroy(marks_.front().event));
  }
  for (; !pending_.empty(); pending_.pop_front()) {
    static_cast<void>(cudaEventDestroy(pending_.front().event));
  }
  for (const std::vector<cudaEvent_t>* const free : {&free_marks_, &timers_}) {
    for (cudaEvent_t event : *free) {
      static_cast<void>(cudaEventDestroy(event));
    }
  }
  if (last_ != nullptr) {
    static_cast<void>(cudaEventDestroy(last_));
  }
  if (stream_ != nullptr) {
    static_cast<void>(cudaStreamDestroy(stream_));
  }
  if (pinned_ != nullptr) {
    static_cast<void>(cudaFreeHost(pinned_));
  }
}

std::string CudaQueue::Run::text() const { return makes.empty() ? std::string(op) : fmt::format("{} ({})", op, makes); }

std::string CudaQueue::suspects() const {
  if (values_.write == nullptr) {
    return "; the driver does not note which ops were done (in a job with one rank, CUDA_LAUNCH_BLOCKING=1 names the "
           "one that failed)";
  }
  const std::uint32_t low = std::atomic_ref(pinned_->progress).load(std::memory_order_acquire);
  // The number of completed runs. The GPU writes its low 32 bits after every runs_a_note runs.
  const std::uint64_t done = runs_ - static_cast<std::uint32_t>(static_cast<std::uint32_t>(runs_) - low);
  // The GPU has not written the next number, so the failed run is one of the runs up to it.
  const std::uint64_t end = std::min((done / runs_a_note + 1) * runs_a_note, runs_);
  const std::int64_t step = latest_[done % remembered_runs].step;
  std::vector<std::string> runs;
  for (std::uint64_t i = done; i < end && latest_[i % remembered_runs].step == step; ++i) {
    const Run& run = latest_[i % remembered_runs];
    const std::string text = run.text();
    if (std::ranges::find(runs, text) == runs.end()) {
      runs.push_back(text);
    }
  }
  return runs.empty()
             ? ""
             : fmt::format("; the ops{} that were not done, with the tensors that they make: {}{}",
                           step == no_step ? "" : fmt::format(" of step {}", step + 1), fmt::join(runs, ", "),
                           runs.size() == 1 ? ""
                                            : " (in a job with one rank, CUDA_LAUNCH_BLOCKING=1 names the one that "
                                              "failed; with staged transfers it hangs)");
}

void CudaQueue::check(cudaError_t result, std::string_view attempted) {
  if (result != cudaSuccess) {
    handle_failure();
    try {
      gpu_.check(result, attempted);
    } catch (const Error& error) {
      throw Error(error.code(), error.message() + suspects());
    }
  }
}

void CudaQueue::use() { check(cudaSetDevice(gpu_.number()), "choosing the GPU"); }

void CudaQueue::handle_failure() {
  host_copies_.abandon();
  const cudaError_t result = cudaStreamQuery(stream_);
  if (result != cudaSuccess && result != cudaErrorNotReady) {  // an error: the streams have stopped
    cuda_.end_dropped_work();
  }
}

KernelCall CudaQueue::call_of(const Scalars& scalars) const {
  return {.attributes = no_attributes_,
          .inputs = {},
          .outputs = {},
          .scratch = {},
          .scalars = scalars,
          .threads = threads_,
          .stream = stream_};
}

template <typename Enqueue>
void CudaQueue::give(std::string_view attempted, const Enqueue& enqueue) {
  use();
  try {
    enqueue();
  } catch (const Error& error) {  // an error of a launch
    static_cast<void>(cudaGetLastError());
    handle_failure();
    throw Error(error.code(), fmt::format("GPU {}: {}: {}{}", gpu_.number(), attempted, error.message(), suspects()));
  }
  ++given_;
}

void CudaQueue::note_run(const PreparedKernel& kernel) {
  latest_[runs_ % remembered_runs] = {.op = kernel.kernel->op, .makes = kernel.makes, .step = step_};
  ++runs_;
  if (runs_ % runs_a_note == 0) {
    write_progress();
  }
}

void CudaQueue::begin_step(std::int64_t step) {
  if (step != step_) {
    use();
    write_progress();  // so that all runs since the last note are of one step
    step_ = step;
  }
}

void CudaQueue::write_progress() {
  if (values_.write == nullptr) {
    return;
  }
  const auto word = static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(&pinned_->progress));
  check(static_cast<cudaError_t>(values_.write(stream_, word, static_cast<std::uint32_t>(runs_), 0)),
        "noting the progress of the queue");
}

void CudaQueue::run(const PreparedKernel& kernel, bool accumulate, const Scalars& scalars) {
  use();
  try {
    run_kernel(*kernel.kernel, {.attributes = *kernel.attributes,
                                .inputs = kernel.inputs,
                                .outputs = kernel.outputs,
                                .accumulate = accumulate,
                                .scratch = kernel.scratch,
                                .scalars = scalars,
                                .threads = threads_,
                                .prepared = kernel.prepared.get(),
                                .stream = stream_});
  } catch (const Error& error) {
    handle_failure();
    throw Error(error.code(), fmt::format("GPU {}: op {}: {}{}", gpu_.number(),
                                          Run{kernel.kernel->op, kernel.makes}.text(), error.message(), suspects()));
  }
  ++given_;
  note_run(kernel);
}

void CudaQueue::copy(const StridedCopy& copy) {
  give("copying a box", [&] { copy_box(call_of(no_scalars_), copy); });
}

void CudaQueue::read(const void* from, std::span<std::byte> to) {
  copy_bytes(to, "host", [&](bool is_pinned) {
    return is_pinned ? cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToHost, stream_)
                     : host_copies_.read(static_cast<const std::byte*>(from), to);
  });
}

void CudaQueue::write(std::span<const std::byte> from, void* to) {
  copy_bytes(from, "GPU", [&](bool is_pinned) {
    return is_pinned ? cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, stream_)
                     : host_copies_.write(from, static_cast<std::byte*>(to));
  });
}

template <typename Copy>
void CudaQueue::copy_bytes(std::span<const std::byte> on_host, const char* to, const Copy& copy) {
  use();
  if (!on_host.empty()) {
    if (const cudaError_t result = copy(cuda_.is_pinned(on_host.data(), on_host.size())); result != cudaSuccess) {
      check(result, fmt::format("copying {} bytes to the {}", on_host.size(), to));
    }
  }
  ++given_;
}

void CudaQueue::fill(const TensorView& tensor, double value) {
  std::uint64_t bits = 0;
  TensorView one = tensor;
  one.data = &bits;
  one.rank = 0;
  write_elements(one, 0, {&value, 1});
  give("filling a tensor", [&] {
    fill_elements(call_of(no_scalars_), tensor.data, tensor.elements(), graph::element_bytes(tensor.dtype), bits);
  });
}

cudaEvent_t CudaQueue::take(std::vector<cudaEvent_t>& free, unsigned flags_of_event) {
  if (free.empty()) {
    made_ += events_at_once;
    free.reserve(made_);  // so that returning one allocates nothing
    for (std::size_t i = 0; i < events_at_once; ++i) {
      cudaEvent_t event = nullptr;
      check(cudaEventCreateWithFlags(&event, flags_of_event), "making an event");
      free.push_back(event);
    }
  }
  cudaEvent_t const event = free.back();
  free.pop_back();
  return event;
}

void CudaQueue::set_clock() {
  const std::lock_guard lock(pending_mutex_);
  gpu_.check(cudaEventRecord(last_, stream_), "recording an event");
  gpu_.check(cudaEventSynchronize(last_), "waiting for an event");
  last_time_ = now();
  stamped_ = false;
}

void CudaQueue::add_pending(Pending pending) {
  const std::lock_guard lock(pending_mutex_);
  pending.event = take(timers_, cudaEventDefault);
  if (const cudaError_t result = cudaEventRecord(pending.event, stream_); result != cudaSuccess) {
    timers_.push_back(pending.event);
    check(result, "recording an event");
  }
  pending_.push_back(pending);
  ++given_;
}

void CudaQueue::check_finite(const TensorView& tensor, bool& finite) {
  use();
  std::size_t flag = flags;
  while (flag == flags) {
    {
      const std::lock_guard lock(pending_mutex_);
      if (!free_flags_.empty()) {
        flag = free_flags_.back();
        free_flags_.pop_back();
      }
    }
    if (flag == flags) {
      check(cudaStreamSynchronize(stream_), "waiting for work");
      deliver();
    }
  }
  std::int32_t* const word = &pinned_->finite[flag];
  *word = 1;
  give("looking for numbers that are not finite", [&] { find_non_finite(call_of(no_scalars_), tensor, word); });
  add_pending({.finite = &finite, .flag = flag});
}

void CudaQueue::stamp(std::int64_t& time) {
  use();
  add_pending({.time = &time});
  stamped_ = true;
}

void CudaQueue::deliver() {
  const std::lock_guard lock(pending_mutex_);
  while (!pending_.empty() && cudaEventQuery(pending_.front().event) == cudaSuccess) {
    const Pending done = pending_.front();
    pending_.pop_front();
    if (done.finite != nullptr) {
      *done.finite = std::atomic_ref(pinned_->finite[done.flag]).load(std::memory_order_acquire) != 0;
      free_flags_.push_back(done.flag);
      timers_.push_back(done.event);
      continue;
    }
    // The time is measured from the event before, because CUDA's float of milliseconds has few digits for long times.
    float milliseconds = 0;
    if (cudaEventElapsedTime(&milliseconds, last_, done.event) == cudaSuccess) {
      last_time_ += static_cast<std::int64_t>(static_cast<double>(milliseconds) * 1e6);
    }
    timers_.push_back(std::exchange(last_, done.event));
    last_time_ = std::min(last_time_, now());
    *done.time = last_time_;
  }
}

Event CudaQueue::record() {
  use();
  if (!marks_.empty() && marks_.back().number == given_) {
    return {this, given_};
  }
  if (free_marks_.empty() && !marks_.empty()) {
    const cudaError_t result = cudaEventQuery(marks_.front().event);
    if (result == cudaSuccess) {
      free_marks_.push_back(marks_.front().event);
      marks_.pop_front();
    } else if (result != cudaErrorNotReady) {
      check(result, "asking for an event");
    }
  }
  const Mark mark{.event = take(free_marks_, cudaEventDisableTiming | cudaEventBlockingSync), .number = given_};
  marks_.push_back(mark);
  check(cudaEventRecord(mark.event, stream_), "recording an event");
  return {this, given_};
}

/// Returns null if the mark's event has passed and been reused.
const CudaQueue::Mark* CudaQueue::find(std::uint64_t number) const {
  std::size_t first = 0;
  for (std::size_t count = marks_.size(); count > 0;) {
    const std::size_t half = count / 2;
    if (marks_[first + half].number < number) {
      first += half + 1;
      count -= half + 1;
    } else {
      count = half;
    }
  }
  return first == marks_.size() || marks_[first].number != number ? nullptr : &marks_[first];
}

void CudaQueue::wait(const Event& event) {
  use();
  if (event.queue == nullptr) {
    return;
  }
  if (const Mark* const mark = static_cast<const CudaQueue*>(event.queue)->find(event.number)) {
    check(cudaStreamWaitEvent(stream_, mark->event, 0), "waiting for an event of another queue");
    ++given_;
  }
}

void CudaQueue::finish(const Event& event) {
  use();
  if (const Mark* const mark = find(event.number)) {
    check(cudaEventSynchronize(mark->event), "waiting for the work");
  } else if (const cudaError_t result = cudaStreamQuery(stream_); result != cudaErrorNotReady) {
    check(result, "waiting for the work");
  }
  cuda_.deliver();
  if (stamped_ && event.number == given_) {
    set_clock();  // because the two clocks drift apart
  }
}

void CudaQueue::call(void (*act)(void* argument), void* argument) {
  use();
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(calls_->mutex);
    number = ++calls_->given;
    calls_->waiting.push_back({act, argument, number});
  }
  const cudaError_t result = cudaLaunchHostFunc(
      stream_, [](void* calls) { static_cast<void>(static_cast<Calls*>(calls)->make_next()); }, calls_.get());
  if (result != cudaSuccess) {
    const std::lock_guard lock(calls_->mutex);
    if (calls_->waiting.empty() || calls_->waiting.back().number != number) {
      return;  // a failure has dropped this call, and make_next_call() has made it; a later call throws the error
    }
    calls_->waiting.pop_back();
  }
  check(result, "calling a function of the host");
  ++given_;
}

bool CudaQueue::make_next_call() { return calls_->make_next(); }

bool CudaQueue::Calls::make_next() {
  Call call;
  {
    const std::lock_guard lock(mutex);
    if (waiting.empty()) {
      return false;
    }
    call = waiting.front();
    waiting.pop_front();
  }
  call.act(call.argument);
  return true;
}

std::uint64_t CudaQueue::add_gate() {
  use();
  if (values_.wait == nullptr) {
    throw Error(ErrorCode::io,
                fmt::format("GPU {}: adding a gate for a transfer over the host's memory (staging): the NVIDIA driver "
                            "lacks or refuses cuStreamWaitValue32: update the driver, run one rank, or use a transport "
                            "that reads the GPU's memory",
                            gpu_.number()));
  }
  const auto word = static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(&pinned_->gate));
  std::uint64_t gate = 0;
  {
    const std::lock_guard lock(gates_mutex_);
    gate = ++gates_;
    early_.reserve(gates_ - opened_);  // so that opening a gate allocates nothing
  }
  check(static_cast<cudaError_t>(values_.wait(stream_, word, static_cast<std::uint32_t>(gate), until_at_least)),
        "adding a gate");
  ++given_;
  return gate;
}

void CudaQueue::open_gate(std::uint64_t gate) noexcept {
  const std::lock_guard lock(gates_mutex_);
  early_.push_back(gate);
  for (auto next = std::ranges::find(early_, opened_ + 1); next != early_.end();
       next = std::ranges::find(early_, opened_ + 1)) {
    early_.erase(next);
    ++opened_;
  }
  std::atomic_ref(pinned_->gate).store(static_cast<std::uint32_t>(opened_), std::memory_order_release);
}

}  // namespace shardrun::device::cuda
