#pragma once

#include <memory>
#include <string>

namespace shardrun::device::cuda {

struct CudnnFunctions;  // cudnn_graph.h
class CudnnTarget;
class Gpu;

/// Whether this process computes ops by cuDNN.
struct FoundCudnn {
  bool is_used = false;
  bool is_asked_for = false;  ///< by the variable; if not, our own kernels compute where it does not start
  bool attends = false;       ///< its engines for attention can be compiled
  bool is_fastest = false;    ///< attention's gradient may be added up in no fixed order
  std::shared_ptr<const CudnnFunctions> functions;
  std::string text;  ///< for people: the library's name, or "own kernels: " and why
};

/// Opens the library once: libcudnn.so.9, the files that this opens, and NVRTC. The variable SHARDRUN_CUDA_DNN chooses:
/// `own` for our own kernels, `cudnn` for the library, `cudnn-fastest` for the library with a gradient of attention
/// whose bits may differ from run to run; by default the library if it is found. Calls no CUDA. Throws Error{job} if
/// the variable has another value, or asks for a library that is not there.
[[nodiscard]] const FoundCudnn& find_cudnn();

/// cuDNN on a GPU, which outlives it, with a handle of its own. Null: this process does not use cuDNN, or it does not
/// start and was not asked for, which is said on stderr. Throws Error{internal} if it was asked for and does not start.
[[nodiscard]] std::shared_ptr<CudnnTarget> start_cudnn(const Gpu& gpu);

}  // namespace shardrun::device::cuda
