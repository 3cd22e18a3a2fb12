#include "core/device/cuda/runtime/cudnn.h"

#include "core/device/cuda/runtime/cudnn_graph.h"
#include "core/device/cuda/runtime/shared_library.h"

namespace shardrun::device::cuda {
namespace {

/// The first whose gradient of attention is right for each number of keys.
constexpr std::size_t oldest_cudnn = 91600;

/// Throws Error that says what the library lacks.
CudnnFunctions cudnn_functions_of(void* library) {
  CudnnFunctions found;
  find_symbol(library, "cudnnGetVersion", found.version);
  found.name = "cuDNN " + checked_version(found.version(), oldest_cudnn);
  find_symbol(library, "cudnnCreate", found.create);
  find_symbol(library, "cudnnSetStream", found.set_stream);
  find_symbol(library, "cudnnGetErrorString", found.error_string);
  find_symbol(library, "cudnnGetLastErrorString", found.last_error);
  find_symbol(library, "cudnnBackendCreateDescriptor", found.descriptor_create);
  find_symbol(library, "cudnnBackendDestroyDescriptor", found.descriptor_destroy);
  find_symbol(library, "cudnnBackendSetAttribute", found.descriptor_set);
  find_symbol(library, "cudnnBackendGetAttribute", found.descriptor_get);
  find_symbol(library, "cudnnBackendFinalize", found.descriptor_finalize);
  find_symbol(library, "cudnnBackendExecute", found.execute);
  return found;
}

FoundCudnn choose_cudnn() {
  FoundCudnn found;
  const OpenedLibrary opened = open_library(choice_of_dnn(), [&](void* library) {
    found.functions = std::make_shared<const CudnnFunctions>(cudnn_functions_of(library));
    return found.functions->name;
  });
  found.is_used = opened.is_used;
  found.text = opened.text;
  return found;
}

}  // namespace

const FoundCudnn& find_cudnn() {
  static const FoundCudnn found = choose_cudnn();
  return found;
}

}  // namespace shardrun::device::cuda
