#include "core/device/cuda/runtime/library_op.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/device/cuda/copies.h"
#include "core/device/queue.h"

namespace shardrun::device::cuda {
namespace {

struct LibraryOp {
  const Kernel* own = nullptr;  ///< our own kernel; null: the library computes the op
  LibraryWork work;
  bool touched = false;  ///< the first call has written the scratch
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

/// A prepared op whose kernel, `through`, calls the library or our own kernel.
struct PreparedLibraryOp final : PreparedKernel {
  Kernel through;
  LibraryOp op;
  std::string ops;  ///< the names of the fused ops

  /// `computes`: what computes the result. The other arguments are those of PreparedKernel.
  PreparedLibraryOp(LibraryOp computes, const graph::Attributes& of, std::vector<TensorView> reads,
                    std::vector<TensorView> writes, std::span<std::byte> memory, std::string_view tensor)
      : op(std::move(computes)) {
    kernel = &through;
    attributes = &of;
    inputs = std::move(reads);
    outputs = std::move(writes);
    scratch = memory;
    makes = tensor;
    prepared = std::shared_ptr<void>(std::shared_ptr<void>(), &op);  // owns nothing: `op` is a member
  }
};

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
  LibraryOp computes{.own = &op.kernel, .work = {}};
  try {
    computes.work = find();
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("op {}{}: {}", op.kernel.op,
                                          op.makes.empty() ? "" : fmt::format(" ({})", op.makes), error.message()));
  }
  auto made = std::make_unique<PreparedLibraryOp>(std::move(computes), op.attributes, std::move(op.inputs),
                                                  std::move(op.outputs), op.scratch, op.makes);
  made->through = {.run = run_library_op, .op = op.kernel.op};
  return made;
}

const LibraryWork* work_of(const PreparedKernel& op) {
  const auto* const prepared = dynamic_cast<const PreparedLibraryOp*>(&op);
  return prepared == nullptr || !prepared->op.work ? nullptr : &prepared->op.work;
}

std::unique_ptr<const PreparedKernel> prepare_fused(const PreparedKernel& first, const PreparedKernel& next,
                                                    std::vector<TensorView> inputs, std::vector<TensorView> outputs,
                                                    LibraryWork work) {
  auto made = std::make_unique<PreparedLibraryOp>(LibraryOp{.own = nullptr, .work = std::move(work)}, *first.attributes,
                                                  std::move(inputs), std::move(outputs), first.scratch, next.makes);
  made->ops = fmt::format("{} + {}", first.kernel->op, next.kernel->op);
  made->through = {.run = run_library_op, .op = made->ops};
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
    static_cast<void>(cudaGetLastError());  // clears the error, so that later calls do not return it
    static_cast<void>(cudaStreamDestroy(stream));
    throw;
  }
  static_cast<void>(cudaGraphExecDestroy(executable));
  static_cast<void>(cudaGraphDestroy(graph));
  static_cast<void>(cudaStreamDestroy(stream));
}

}  // namespace shardrun::device::cuda
