#pragma once

#include <memory>
#include <string>

namespace shardrun::device::cuda {

struct CudnnFunctions;  // cudnn_graph.h

/// Whether this process computes ops by cuDNN.
struct FoundCudnn {
  bool is_used = false;
  std::shared_ptr<const CudnnFunctions> functions;
  std::string text;  ///< for people: the library's name, or "own kernels: " and why
};

/// Opens the library once: libcudnn.so.9. The variable SHARDRUN_CUDA_DNN chooses: `own` for our own kernels, `cudnn`
/// for the library; without it, the library where it is found. Calls no CUDA. Throws Error{job} if the variable has
/// another value, or asks for a library that is not there.
[[nodiscard]] const FoundCudnn& find_cudnn();

}  // namespace shardrun::device::cuda
