#pragma once

#include <memory>
#include <string>

namespace shardrun::device::cuda {

struct CudnnFunctions;  // cudnn_graph.h
class CudnnTarget;
class Gpu;

/// Whether and how this process uses cuDNN.
struct FoundCudnn {
  bool is_used = false;
  bool is_asked_for = false;  ///< the variable asks for it; otherwise our own kernels compute if it does not start
  bool attends = false;       ///< its attention engines can be compiled
  bool is_fastest = false;    ///< attention's gradient need not be summed in a fixed order
  std::shared_ptr<const CudnnFunctions> functions;
  std::string text;  ///< for people: the library's name, or "own kernels: " and the reason
};

/// Opens the library once: libcudnn.so.9, the files that it opens, and NVRTC. The environment variable
/// SHARDRUN_CUDA_DNN chooses: `own` for our own kernels, `cudnn` for the library, `cudnn-fastest` for the library with
/// a gradient of attention whose bits may differ from run to run. By default the library is used if it is found. Makes
/// no CUDA call. Throws Error{job} if the variable has another value, or asks for a library that is not found.
[[nodiscard]] const FoundCudnn& find_cudnn();

/// Starts cuDNN on a GPU, which outlives the result, with a handle of its own. Null: this process does not use cuDNN,
/// or it was not asked for and does not start; then stderr says why. If it was asked for,
/// throws Error{internal} instead.
[[nodiscard]] std::shared_ptr<CudnnTarget> start_cudnn(const Gpu& gpu);

}  // namespace shardrun::device::cuda
