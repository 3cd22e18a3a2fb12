#include "core/device/cuda/runtime/cudnn.h"
#include "core/device/cuda/runtime/cudnn_library.h"
#include "core/device/cuda/runtime/shared_library.h"

// The functions of cudnn.h and cudnn_library.h, for builds without cuDNN's header.

namespace shardrun::device::cuda {

const FoundCudnn& find_cudnn() {
  static const FoundCudnn found = [] {
    LibraryChoice choice = choice_of_dnn();
    choice.files = {};
    choice.lacks = "this build was made without cudnn.h";
    choice.remedy = "build the device where CMake finds cudnn.h";
    FoundCudnn lacking;
    lacking.text = open_library(choice, {}).text;
    return lacking;
  }();
  return found;
}

std::shared_ptr<CudnnTarget> start_cudnn(const Gpu&) { return nullptr; }
FindAttention open_attention(const std::shared_ptr<CudnnTarget>&, const Gpu&) { return nullptr; }
FindConvolution open_convolutions(const std::shared_ptr<CudnnTarget>&, const Gpu&) { return nullptr; }

}  // namespace shardrun::device::cuda
