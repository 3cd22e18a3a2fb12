#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

/// cuBLASLt without a GPU, for tests: a library libcublasLt.so.13 in a folder of its own (SHARDRUN_FAKE_CUBLASLT),
/// found by LD_LIBRARY_PATH.
///
/// - It multiplies late, in the turn of the fake's streams (fake_cuda.h), with plain loops.
/// - A product is refused, with a line on stderr, that differs from what the algorithm was chosen for; whose memory is
///   not on the GPU as a whole or less aligned than was promised; or which may use an algorithm whose sums have no
///   order.
/// - An epilogue is refused, likewise, whose vector or matrix is not on the GPU as a whole, lies over what the product
///   reads or writes, is aligned less than the operation said when the algorithm was chosen, or has rows that are not a
///   multiple of 8 elements. Operations with other addresses, aligned alike, share an algorithm.
/// - A product whose kernels were not loaded before it runs fails, as with fake_cuda.h.
/// - Its workspace gets other contents in every product.
///
/// Variables of the environment: FAKE_CUBLASLT_VERSION (130100), FAKE_CUBLASLT_FAIL (the function that returns
/// FAKE_CUBLASLT_STATUS instead of doing something), FAKE_CUBLASLT_NONE (if set, there are no algorithms),
/// FAKE_CUBLASLT_PROPOSALS (algorithms that are proposed for a product, 1; if set, all but the second take 5 ms more),
/// FAKE_CUBLASLT_WITHOUT (there are none for epilogues with one of these bits), FAKE_CUBLASLT_FUSED (a file to which
/// the process appends a line with CublasLtCounts::fused when it ends), FAKE_CUDA_NO_GRAPHS (if set, no graph can be
/// made ready to run, so that no kernel of a product can be loaded).
namespace shardrun::test::fake_cuda {

/// What the library needs of the fake of CUDA's runtime, which is in the library of the device or in the test.
struct Lent {
  void (*enqueue)(void* stream, const void* kernel, std::function<void()> work);
  bool (*is_on_gpu)(const void* memory, std::size_t bytes);
  /// Whether the stream makes a graph. Then the kernel becomes a part of it.
  bool (*captures)(void* stream, const void* kernel);
};

/// Products that were given to streams so far, those among them whose rows are not aligned to 16 bytes, and those with
/// an epilogue or with a matrix added that is not the result; and heuristics that were asked for.
struct CublasLtCounts {
  std::int64_t products = 0;
  std::int64_t unaligned = 0;
  std::int64_t fused = 0;
  std::int64_t choices = 0;
  std::int64_t second = 0;  ///< products by the second algorithm that was proposed
};

inline constexpr const char* lend_entry = "fake_cublaslt_lend";
inline constexpr const char* counts_entry = "fake_cublaslt_counts";

/// Lends it to the library, if LD_LIBRARY_PATH finds it. Call before the device is used.
void lend_to_cublaslt();
/// REQUIRES: the library is found.
[[nodiscard]] CublasLtCounts cublaslt_counts();

}  // namespace shardrun::test::fake_cuda
