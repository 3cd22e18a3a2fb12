#include "core/device/cuda/runtime/trials.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace shardrun::device::cuda {
namespace {

constexpr const char* attempted = "timing the algorithms of a library";

/// A stream and its events, for measuring on it.
class Clock {
 public:
  explicit Clock(const Gpu& gpu) : gpu_(gpu) {
    gpu.use();
    gpu.check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), attempted);
    gpu.check(cudaEventCreateWithFlags(&begin_, cudaEventDefault), attempted);
    gpu.check(cudaEventCreateWithFlags(&end_, cudaEventDefault), attempted);
  }
  ~Clock() {
    static_cast<void>(cudaStreamSynchronize(stream_));
    static_cast<void>(cudaStreamDestroy(stream_));
    static_cast<void>(cudaEventDestroy(begin_));
    static_cast<void>(cudaEventDestroy(end_));
  }
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

  /// The average milliseconds of a run, measured over `times` runs in a row.
  [[nodiscard]] double of(const std::function<void(cudaStream_t stream)>& run, int times) const {
    gpu_.check(cudaEventRecord(begin_, stream_), attempted);
    for (int i = 0; i < times; ++i) {
      run(stream_);
    }
    gpu_.check(cudaEventRecord(end_, stream_), attempted);
    gpu_.check(cudaEventSynchronize(end_), attempted);
    float milliseconds = 0;
    gpu_.check(cudaEventElapsedTime(&milliseconds, begin_, end_), attempted);
    return static_cast<double>(milliseconds) / times;
  }

 private:
  const Gpu& gpu_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

}  // namespace

TrialMemory::TrialMemory(const Gpu& gpu, std::span<TrialBuffer> buffers) : gpu_(gpu) {
  constexpr std::size_t unit = 256;
  std::size_t total = 0;
  for (const TrialBuffer& buffer : buffers) {
    total += (buffer.bytes + unit - 1) / unit * unit + unit;
  }
  gpu.use();
  const cudaError_t result = cudaMalloc(&memory_, total);
  static_cast<void>(cudaGetLastError());  // clears the error, so that later calls do not return it
  gpu.check(result, "allocating memory to time the algorithms of a library");
  try {
    fill(static_cast<std::byte*>(memory_), total);
  } catch (...) {
    static_cast<void>(cudaFree(memory_));
    throw;
  }
  std::byte* next = static_cast<std::byte*>(memory_);
  for (TrialBuffer& buffer : buffers) {
    if (buffer.bytes > 0) {
      buffer.data = next + buffer.alignment % unit;
      next += (buffer.bytes + unit - 1) / unit * unit + unit;
    }
  }
}

TrialMemory::~TrialMemory() { static_cast<void>(cudaFree(memory_)); }

void TrialMemory::fill(std::byte* memory, std::size_t bytes) const {
  constexpr std::size_t block = std::size_t{4} << 20;
  const std::size_t part = std::min(bytes, block);
  void* host = nullptr;
  cudaStream_t stream = nullptr;
  gpu_.check(cudaHostAlloc(&host, part, cudaHostAllocPortable), attempted);
  try {
    // 16-bit numbers with a sign, an exponent of 2^-8 to 2^-1 and 7 bits of fraction: bfloat16, or float32 in pairs.
    std::uint64_t state = 1;
    for (std::size_t i = 0; i + 1 < part; i += 2) {
      state = state * 6364136223846793005U + 1442695040888963407U;  // Knuth, MMIX
      const auto bits = static_cast<std::uint32_t>(state >> 48U);
      const std::uint16_t value = static_cast<std::uint16_t>((bits & 0x83FFU) + (119U << 7U));
      std::memcpy(static_cast<std::byte*>(host) + i, &value, sizeof(value));
    }
    gpu_.check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), attempted);
    for (std::size_t at = 0; at < bytes; at += part) {
      gpu_.check(cudaMemcpyAsync(memory + at, host, std::min(part, bytes - at), cudaMemcpyHostToDevice, stream),
                 attempted);
    }
    gpu_.check(cudaStreamSynchronize(stream), attempted);
  } catch (...) {
    if (stream != nullptr) {
      static_cast<void>(cudaStreamDestroy(stream));
    }
    static_cast<void>(cudaFreeHost(host));
    throw;
  }
  static_cast<void>(cudaStreamDestroy(stream));
  static_cast<void>(cudaFreeHost(host));
}

std::vector<double> time_in_turns(const Gpu& gpu, std::span<const std::function<void(cudaStream_t stream)>> runs) {
  constexpr int turns = 4;
  constexpr double turn_milliseconds = 4;
  constexpr double most_times = 50;
  const Clock clock(gpu);
  std::vector<double> least;
  for (const auto& run : runs) {
    static_cast<void>(clock.of(run, 1));  // the first run is slower
    least.push_back(clock.of(run, 1));
  }
  for (int turn = 0; turn < turns; ++turn) {
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const double times = std::clamp(std::ceil(turn_milliseconds / std::max(least[i], 1e-6)), 1.0, most_times);
      const double found = clock.of(runs[i], static_cast<int>(times));
      least[i] = turn == 0 ? found : std::min(least[i], found);
    }
  }
  return least;
}

}  // namespace shardrun::device::cuda
