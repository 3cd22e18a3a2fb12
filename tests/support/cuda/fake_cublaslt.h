#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

/// A fake of cuBLASLt that needs no GPU, for tests. It is a library libcublasLt.so.13 in its own folder
/// (SHARDRUN_FAKE_CUBLASLT), which LD_LIBRARY_PATH finds.
///
/// - Products are computed when the fake's streams get to them (fake_cuda.h), with plain loops.
/// - It refuses a product, with a line on stderr, that differs from the one for which the algorithm was chosen; whose
///   memory is not completely on the GPU, or less aligned than promised; or whose algorithm may add up in any order.
/// - It refuses an epilogue, with a line on stderr, whose vector or matrix is not completely on the GPU, overlaps what
///   the product reads or writes, is less aligned than when the algorithm was chosen, or has rows of a size that is not
///   a multiple of 8 elements. Operations that differ only in addresses of equal alignment share an algorithm.
/// - A product fails if its kernels were not loaded before it runs, as in fake_cuda.h.
/// - Each product overwrites its workspace with other values.
///
/// Environment variables: FAKE_CUBLASLT_VERSION (130100), FAKE_CUBLASLT_FAIL (the function that returns
/// FAKE_CUBLASLT_STATUS instead of working), FAKE_CUBLASLT_NONE (if set, there are no algorithms),
/// FAKE_CUBLASLT_PROPOSALS (number of algorithms proposed for a product, default 1; if set, all but the second take 5
/// ms longer), FAKE_CUBLASLT_WITHOUT (epilogues with one of these bits have no algorithm), FAKE_CUBLASLT_FUSED (a file
/// to which the process appends CublasLtCounts::fused when it ends), FAKE_CUDA_NO_GRAPHS (if set, no graph can be
/// instantiated, so kernels of products cannot be loaded).
namespace shardrun::test::fake_cuda {

/// Functions of the fake CUDA runtime that the fake library calls. The runtime is in the device's library or
/// in the test.
struct Lent {
  void (*enqueue)(void* stream, const void* kernel, std::function<void()> work);
  bool (*is_on_gpu)(const void* memory, std::size_t bytes);
  /// Whether the stream is being captured into a graph. If so, adds the kernel to the graph.
  bool (*captures)(void* stream, const void* kernel);
};

/// Counts since the process started. products: given to streams. unaligned: those with rows not aligned to 16 bytes.
/// fused: those with an epilogue, or with an added matrix that is not the result. choices:
/// heuristics that were requested.
struct CublasLtCounts {
  std::int64_t products = 0;
  std::int64_t unaligned = 0;
  std::int64_t fused = 0;
  std::int64_t choices = 0;
  std::int64_t second = 0;  ///< products that used the second of the proposed algorithms
};

inline constexpr const char* lend_entry = "fake_cublaslt_lend";
inline constexpr const char* counts_entry = "fake_cublaslt_counts";

/// Gives the library the functions of Lent, if LD_LIBRARY_PATH finds it. Call this before the device is used.
void lend_to_cublaslt();
/// The library's counts. REQUIRES: LD_LIBRARY_PATH finds the library.
[[nodiscard]] CublasLtCounts cublaslt_counts();

}  // namespace shardrun::test::fake_cuda
