#pragma once

#include <cstdint>

/// cuDNN's graph API without a GPU, for tests: a library libcudnn.so.9 in a folder of its own (SHARDRUN_FAKE_CUDNN),
/// found by LD_LIBRARY_PATH, with the files beside it that the true one opens. It is compiled with the header of the
/// true one, so only where that is installed.
///
/// - Descriptors take the attributes of the true library, of its types and counts, before they are finalized.
///   Shapes, types and layouts of a graph are checked when its parts are finalized.
/// - It computes late, in the turn of the fake's streams (fake_cuda.h), operation by operation, in float64, rounded to
///   the type of each tensor.
/// - A plan does not run whose tensors are not on the GPU as a whole, or less aligned than their descriptors say; whose
///   workspace is too small; or whose kernels were not loaded before (as fake_cublaslt.h).
/// - Its workspace gets other contents in every run.
/// - The first engines of every graph are those that a careful user does not take: results of one differ from run to
///   run (in the first element of each), one rounds float32 operands to FP8, one to TF32, one wants a workspace of 1
///   TiB. Each says so.
///
/// Variables of the environment: FAKE_CUDNN_VERSION (91900), FAKE_CUDNN_FAIL (the function that returns
/// FAKE_CUDNN_STATUS instead of doing something), FAKE_CUDNN_NONE (if set, there are no engines),
/// FAKE_CUDNN_WANTS_HANDLE (cudnnBackendFinalize or cudnnBackendExecute, which then refuses plans that have no handle).
namespace shardrun::test::fake_cuda {

/// Plans that were given to streams so far, and heuristics that were asked for.
struct CudnnCounts {
  std::int64_t runs = 0;
  std::int64_t choices = 0;
};

inline constexpr const char* cudnn_lend_entry = "fake_cudnn_lend";
inline constexpr const char* cudnn_counts_entry = "fake_cudnn_counts";

/// Lends the library what it needs (Lent), if LD_LIBRARY_PATH finds it. Call before the device is used.
void lend_to_cudnn();
/// REQUIRES: the library is found.
[[nodiscard]] CudnnCounts cudnn_counts();

}  // namespace shardrun::test::fake_cuda
