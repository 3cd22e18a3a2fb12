#include "core/device/cuda/runtime/host_copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

namespace shardrun::device::cuda {

/// The copies of all queues, kept until the process ends. After a failure CUDA does not wait for a host function that
/// it has begun to call, so the function may use its copy after the queue is gone.
struct HostCopies::Copies {
  static Copies& all() {
    static Copies& copies = *new Copies;
    return copies;
  }

  std::mutex mutex;
  std::condition_variable none_runs;
  std::vector<std::unique_ptr<HostCopy>> made;
  std::vector<HostCopy*> free;
};

void HostCopies::prepare(const Gpu& gpu, cudaStream_t main) {
  main_ = main;
  for (Buffer& buffer : buffers_) {
    void* data = nullptr;
    gpu.check(cudaHostAlloc(&data, buffer_bytes, cudaHostAllocPortable),
              fmt::format("pinning {} bytes of the host's memory for copies", buffer_bytes));
    buffer.data = static_cast<std::byte*>(data);
    for (cudaEvent_t* const event : {&buffer.half, &buffer.done}) {
      gpu.check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "making an event");
    }
  }
  gpu.check(cudaStreamCreateWithFlags(&host_, cudaStreamNonBlocking), "making a stream");
}

HostCopies::~HostCopies() {
  abandon();
  if (host_ != nullptr) {
    static_cast<void>(cudaStreamSynchronize(host_));  // a copy that failed midway may have left functions
    static_cast<void>(cudaStreamDestroy(host_));
  }
  for (const Buffer& buffer : buffers_) {
    for (cudaEvent_t const event : {buffer.half, buffer.done}) {
      if (event != nullptr) {
        static_cast<void>(cudaEventDestroy(event));
      }
    }
    if (buffer.data != nullptr) {
      static_cast<void>(cudaFreeHost(buffer.data));
    }
  }
}

void HostCopies::abandon() noexcept {
  Copies& copies = Copies::all();
  std::unique_lock lock(copies.mutex);
  for (const std::unique_ptr<HostCopy>& copy : copies.made) {
    copy->owner = copy->owner == this ? nullptr : copy->owner;
  }
  copies.none_runs.wait(lock, [&] { return running_ == 0; });
}

void HostCopies::make(HostCopy& copy) noexcept {
  Copies& copies = Copies::all();
  std::unique_lock lock(copies.mutex);
  if (const HostCopy given = copy; given.owner != nullptr) {
    ++given.owner->running_;
    lock.unlock();
    std::memcpy(given.to, given.from, given.bytes);
    lock.lock();
    if (--given.owner->running_ == 0) {
      copies.none_runs.notify_all();
    }
  }
  copy.owner = nullptr;
  copies.free.push_back(&copy);
}

cudaError_t HostCopies::copy_on_host(cudaStream_t stream, const void* from, void* to, std::size_t bytes) {
  HostCopy* copy = nullptr;
  {
    Copies& copies = Copies::all();
    const std::lock_guard lock(copies.mutex);
    if (copies.free.empty()) {
      copies.made.push_back(std::make_unique<HostCopy>());
      copies.free.reserve(copies.made.size());  // so that returning a copy allocates nothing
      copy = copies.made.back().get();
    } else {
      copy = copies.free.back();
      copies.free.pop_back();
    }
    *copy = {.owner = this, .from = from, .to = to, .bytes = bytes};
  }
  return cudaLaunchHostFunc(
      stream, [](void* of) { make(*static_cast<HostCopy*>(of)); }, copy);
}

template <typename First, typename Second>
cudaError_t HostCopies::pass(std::size_t bytes, cudaStream_t first_stream, const First& first,
                             cudaStream_t second_stream, const Second& second) {
  cudaError_t result = cudaSuccess;
  const auto succeeds = [&](cudaError_t made) { return (result = made) == cudaSuccess; };
  if (first_stream == second_stream) {  // a single piece
    static_cast<void>(bytes > 0 && succeeds(first(buffers_[0].data, 0, bytes)) &&
                      succeeds(second(buffers_[0].data, 0, bytes)));
    return result;
  }
  for (const Buffer& buffer : buffers_) {  // the host's stream continues after the main one's work so far
    succeeds(result == cudaSuccess ? cudaEventRecord(buffer.done, main_) : result);
  }
  for (std::size_t at = 0; at < bytes && result == cudaSuccess; at += buffer_bytes) {
    const Buffer& buffer = buffers_[at / buffer_bytes % buffers_.size()];
    const std::size_t size = std::min(buffer_bytes, bytes - at);
    static_cast<void>(succeeds(cudaStreamWaitEvent(first_stream, buffer.done, 0)) &&
                      succeeds(first(buffer.data, at, size)) && succeeds(cudaEventRecord(buffer.half, first_stream)) &&
                      succeeds(cudaStreamWaitEvent(second_stream, buffer.half, 0)) &&
                      succeeds(second(buffer.data, at, size)) && succeeds(cudaEventRecord(buffer.done, second_stream)));
  }
  // The main stream continues after the last piece.
  const Buffer& last = buffers_[(bytes - 1) / buffer_bytes % buffers_.size()];
  return result == cudaSuccess ? cudaStreamWaitEvent(main_, last.done, 0) : result;
}

cudaError_t HostCopies::read(const std::byte* from, std::span<std::byte> to) {
  cudaStream_t host = host_stream(to.size());
  return pass(
      to.size(), main_,
      [&](std::byte* buffer, std::size_t at, std::size_t size) {
        return cudaMemcpyAsync(buffer, from + at, size, cudaMemcpyDeviceToHost, main_);
      },
      host,
      [&](const std::byte* buffer, std::size_t at, std::size_t size) {
        return copy_on_host(host, buffer, to.data() + at, size);
      });
}

cudaError_t HostCopies::write(std::span<const std::byte> from, std::byte* to) {
  cudaStream_t host = host_stream(from.size());
  return pass(
      from.size(), host,
      [&](std::byte* buffer, std::size_t at, std::size_t size) {
        return copy_on_host(host, from.data() + at, buffer, size);
      },
      main_,
      [&](const std::byte* buffer, std::size_t at, std::size_t size) {
        return cudaMemcpyAsync(to + at, buffer, size, cudaMemcpyHostToDevice, main_);
      });
}

}  // namespace shardrun::device::cuda
