#include "core/device/cuda/runtime/library_op.h"

#include <fmt/format.h>

#include <utility>

#include "core/base/error.h"
#include "core/device/cuda/copies.h"
#include "core/device/queue.h"

namespace shardrun::device::cuda {
namespace {

struct LibraryOp {
  const Kernel* own = nullptr;
  LibraryWork work;
  bool touched = false;  ///< the scratch, by the first call
};

void run_library_op(const KernelCall& call) {
  auto& op = *static_cast<LibraryOp*>(call.prepared);
  if (!op.touched) {
    fill_elements(call, call.scratch.data(), static_cast<std::int64_t>(call.scratch.size() / 8), 8, 0);
    op.touched = true;
  }
  if (op.work) {
    op.work(call);
  } else {
    run_kernel(*op.own, call);
  }
}

/// Its kernel is the op's own, but for how it runs.
struct PreparedLibraryOp final : PreparedKernel {
  Kernel through;
  LibraryOp op;
};

std::vector<graph::TensorType> types_of(const std::vector<TensorView>& tensors) {
  std::vector<graph::TensorType> types;
  for (const TensorView& tensor : tensors) {
    types.push_back({.dtype = tensor.dtype,
                     .shape = {tensor.shape.begin(), tensor.shape.begin() + tensor.rank},
                     .axes = std::vector<std::string>(tensor.rank)});
  }
  return types;
}

}  // namespace

std::vector<graph::TensorType> OpToPrepare::input_types() const { return types_of(inputs); }
std::vector<graph::TensorType> OpToPrepare::output_types() const { return types_of(outputs); }

std::byte* OpToPrepare::scratch_at(std::size_t alignment, std::size_t needed) const {
  if (needed > scratch.size()) {
    throw Error(ErrorCode::internal,
                fmt::format("{} bytes of scratch were planned, and {} are needed", scratch.size(), needed));
  }
  return scratch.data() + -reinterpret_cast<std::uintptr_t>(scratch.data()) % alignment;
}

std::unique_ptr<const PreparedKernel> prepare_for_library(OpToPrepare op, const std::function<LibraryWork()>& find) {
  auto made = std::make_unique<PreparedLibraryOp>();
  made->through = {.run = run_library_op, .op = op.kernel.op};
  try {
    made->op = {.own = &op.kernel, .work = find()};
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("op {}{}: {}", op.kernel.op,
                                          op.makes.empty() ? "" : fmt::format(" ({})", op.makes), error.message()));
  }
  made->kernel = &made->through;
  made->attributes = &op.attributes;
  made->inputs = std::move(op.inputs);
  made->outputs = std::move(op.outputs);
  made->scratch = op.scratch;
  made->makes = op.makes;
  // It is part of what it is given to.
  made->prepared = std::shared_ptr<void>(std::shared_ptr<void>(), &made->op);
  return made;
}

void load_kernels(const Gpu& gpu, const std::function<void(cudaStream_t stream)>& enqueue) {
  constexpr const char* attempted = "loading the kernels of a library";
  cudaStream_t stream = nullptr;
  gpu.use();
  gpu.check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  try {
    gpu.check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), attempted);
    enqueue(stream);
    gpu.check(cudaStreamEndCapture(stream, &graph), attempted);
    gpu.check(cudaGraphInstantiate(&executable, graph, 0), attempted);
  } catch (...) {
    if (graph == nullptr) {
      static_cast<void>(cudaStreamEndCapture(stream, &graph));
    }
    if (graph != nullptr) {
      static_cast<void>(cudaGraphDestroy(graph));
    }
    static_cast<void>(cudaGetLastError());  // it does not concern later calls
    static_cast<void>(cudaStreamDestroy(stream));
    throw;
  }
  static_cast<void>(cudaGraphExecDestroy(executable));
  static_cast<void>(cudaGraphDestroy(graph));
  static_cast<void>(cudaStreamDestroy(stream));
}

}  // namespace shardrun::device::cuda
