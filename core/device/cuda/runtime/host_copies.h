#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <span>

#include "core/device/cuda/runtime/gpu.h"

namespace shardrun::device::cuda {

/// Copies between a GPU and host memory that is not pinned, in stream order. They go through two pinned buffers, which
/// host functions fill and empty. A copy larger than one buffer alternates between both: the host copies one piece in a
/// stream of its own while the GPU copies another.
class HostCopies {
 public:
  static constexpr std::size_t buffer_bytes = std::size_t{4} << 20U;

  HostCopies() = default;
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;
  /// REQUIRES: the main stream is done, or the GPU has failed.
  ~HostCopies();

  /// Pins the buffers and makes the host's stream. `main`: the stream in whose order copies are made. Throws Error.
  void prepare(const Gpu& gpu, cudaStream_t main);

  [[nodiscard]] cudaError_t read(const std::byte* from, std::span<std::byte> to);
  [[nodiscard]] cudaError_t write(std::span<const std::byte> from, std::byte* to);

  /// Drops all copies after a failure, and waits for running ones. Memory can then be freed. Any thread may call it.
  void abandon() noexcept;

 private:
  /// One copy that a host function makes.
  struct HostCopy {
    HostCopies* owner = nullptr;  ///< null: abandoned
    const void* from = nullptr;
    void* to = nullptr;
    std::size_t bytes = 0;
  };
  struct Copies;
  struct Buffer {
    std::byte* data = nullptr;
    cudaEvent_t half = nullptr;  ///< recorded when the first of a piece's two copies is done
    cudaEvent_t done = nullptr;  ///< recorded when the second is done
  };

  /// For each piece of `bytes`, calls first(piece) in one stream, and then second(piece) in the other.
  template <typename First, typename Second>
  [[nodiscard]] cudaError_t pass(std::size_t bytes, cudaStream_t first_stream, const First& first,
                                 cudaStream_t second_stream, const Second& second);
  /// The stream in which the host copies: the main one if the copy has a single piece.
  [[nodiscard]] cudaStream_t host_stream(std::size_t bytes) const { return bytes > buffer_bytes ? host_ : main_; }
  /// The host function that makes the copy.
  static void make(HostCopy& copy) noexcept;
  [[nodiscard]] cudaError_t copy_on_host(cudaStream_t stream, const void* from, void* to, std::size_t bytes);

  cudaStream_t main_ = nullptr;
  cudaStream_t host_ = nullptr;
  std::array<Buffer, 2> buffers_;

  int running_ = 0;  ///< host functions that are copying now; guarded by Copies::mutex
};

}  // namespace shardrun::device::cuda
