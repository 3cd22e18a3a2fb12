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
/// no CUDA call. Throws Error{job} if the variable has another value, or asks for a library that cannot be used.
[[nodiscard]] const FoundCudnn& find_cudnn();

/// Starts cuDNN on a GPU, with a handle of its own. `gpu` outlives the result. Returns null if this process does not
/// use cuDNN, or if cuDNN was not asked for and does not start; stderr then says why. If cuDNN was asked for and does
/// not start, throws Error{internal}, or Error{io} if the GPU is lost. Throws Error{job} as find_cudnn() does.
[[nodiscard]] std::shared_ptr<CudnnTarget> start_cudnn(const Gpu& gpu);

}  // namespace shardrun::device::cuda
