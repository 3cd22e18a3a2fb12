#include "core/device/cuda/runtime/cudnn.h"
#include "core/device/cuda/runtime/library_attention.h"
#include "core/device/cuda/runtime/library_convolution.h"
#include "core/device/cuda/runtime/shared_library.h"

// cuDNN for builds without its header.

namespace shardrun::device::cuda {

const FoundCudnn& find_cudnn() {
  static const FoundCudnn found = [] {
    LibraryChoice choice = choice_of_dnn();
    choice.files = {};
    choice.lacks = "this build was made without cudnn.h";
    return FoundCudnn{.is_used = false, .functions = nullptr, .text = open_library(choice, {}).text};
  }();
  return found;
}

std::unique_ptr<LibraryAttention> open_attention(const Gpu&) { return nullptr; }
std::unique_ptr<LibraryConvolutions> open_convolutions(const Gpu&) { return nullptr; }

}  // namespace shardrun::device::cuda
