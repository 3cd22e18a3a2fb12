#pragma once

#include <cstdint>

/// A fake of cuDNN's graph API that needs no GPU, for tests. It is a library libcudnn.so.9 in its own folder
/// (SHARDRUN_FAKE_CUDNN), which LD_LIBRARY_PATH finds, together with the files that the real library opens. It is
/// compiled with the real library's header, so it exists only where that is installed.
///
/// - A descriptor accepts the attributes of the real library, with its types and counts, until it is finalized. Shapes,
///   types and layouts of a graph are checked when its parts are finalized.
/// - Graphs are computed when the fake's streams get to them (fake_cuda.h), operation by operation, in float64, rounded
///   to each tensor's type.
/// - A plan fails if a tensor is not completely on the GPU or less aligned than its descriptor says, if its workspace
///   is too small, or if its kernels were not loaded before (as in fake_cublaslt.h).
/// - Each run overwrites the workspace with other values.
/// - The first engines that a graph's heuristic returns are unsuitable, and each says why: one gives different results
///   in each run (in the first element), one rounds float32 operands to FP8, one to TF32,
///   one needs a workspace of 1 TiB.
///
/// Environment variables: FAKE_CUDNN_VERSION (91900), FAKE_CUDNN_FAIL (the function that returns FAKE_CUDNN_STATUS
/// instead of working), FAKE_CUDNN_NONE (if set, there are no engines), FAKE_CUDNN_WANTS_HANDLE (cudnnBackendFinalize
/// or cudnnBackendExecute, which then refuses plans without a handle).
namespace shardrun::test::fake_cuda {

/// The numbers of plans given to streams and of heuristics requested, since the process started.
struct CudnnCounts {
  std::int64_t runs = 0;
  std::int64_t choices = 0;
};

inline constexpr const char* cudnn_lend_entry = "fake_cudnn_lend";
inline constexpr const char* cudnn_counts_entry = "fake_cudnn_counts";

/// Gives the library the functions of Lent, if LD_LIBRARY_PATH finds it. Call this before the device is used.
void lend_to_cudnn();
/// The library's counts. REQUIRES: LD_LIBRARY_PATH finds the library.
[[nodiscard]] CudnnCounts cudnn_counts();

}  // namespace shardrun::test::fake_cuda
