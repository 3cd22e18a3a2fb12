// Graphs of the fake CUDA. They record kernels, and instantiating one loads its kernels; they cannot run. Also the
// functions that the fakes of cuBLASLt and cuDNN need.

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <string_view>
#include <vector>

#include "tests/support/cuda/fake_cublaslt.h"
#include "tests/support/cuda/fake_cuda.h"
#include "tests/support/cuda/fake_cudnn.h"

struct FakeGraph {
  std::vector<const void*> kernels;
};

namespace {

std::mutex graphs_mutex;
std::map<cudaStream_t, FakeGraph*> captures;

constexpr const char* cublaslt = "libcublasLt.so.13";
constexpr const char* cudnn = "libcudnn.so.9";

template <class Function>
Function function_of(const char* file, const char* name) {
  void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  return library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const std::lock_guard lock(graphs_mutex);
  return captures.try_emplace(stream, new FakeGraph).second ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard lock(graphs_mutex);
  const auto found = captures.find(stream);
  if (found == captures.end()) {
    return cudaErrorInvalidValue;
  }
  *graph = found->second;
  captures.erase(found);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  if (std::getenv("FAKE_CUDA_NO_GRAPHS") != nullptr) {
    return cudaErrorInvalidValue;
  }
  *executable = new FakeGraph(*graph);
  for (const void* const kernel : graph->kernels) {
    cudaFuncAttributes attributes = {};
    if (const cudaError_t result = cudaFuncGetAttributes(&attributes, kernel); result != cudaSuccess) {
      return result;
    }
  }
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

namespace shardrun::test::fake_cuda {
namespace {

constexpr Lent lent = {.enqueue = enqueue, .is_on_gpu = is_on_gpu, .captures = [](void* stream, const void* kernel) {
                         const std::lock_guard lock(graphs_mutex);
                         const auto found = captures.find(static_cast<cudaStream_t>(stream));
                         if (found == captures.end()) {
                           return false;
                         }
                         found->second->kernels.push_back(kernel);
                         return true;
                       }};

void lend_to(const char* library, const char* entry) {
  if (const auto lend = function_of<void (*)(const Lent*)>(library, entry); lend != nullptr) {
    lend(&lent);
  }
}

}  // namespace

void lend_to_cublaslt() {
  const char* const products = std::getenv("SHARDRUN_CUDA_PRODUCTS");
  if (products != nullptr && std::string_view(products) == "own") {
    return;  // the linker may find the real library instead of the fake
  }
  lend_to(cublaslt, lend_entry);
}

CublasLtCounts cublaslt_counts() {
  CublasLtCounts counts;
  function_of<void (*)(CublasLtCounts*)>(cublaslt, counts_entry)(&counts);
  return counts;
}

void lend_to_cudnn() { lend_to(cudnn, cudnn_lend_entry); }

CudnnCounts cudnn_counts() {
  CudnnCounts counts;
  function_of<void (*)(CudnnCounts*)>(cudnn, cudnn_counts_entry)(&counts);
  return counts;
}

}  // namespace shardrun::test::fake_cuda
