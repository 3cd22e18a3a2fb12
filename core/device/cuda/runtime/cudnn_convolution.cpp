#include "core/device/cuda/runtime/cudnn_plans.h"

#include <tuple>
#include <utility>

#include "core/device/cuda/runtime/cudnn_library.h"

namespace shardrun::device::cuda {
namespace {

/// A convolution operation of cuDNN, with the names of its attributes.
struct ConvolutionOperation {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t x;
  cudnnBackendAttributeName_t w;
  cudnnBackendAttributeName_t y;
  cudnnBackendAttributeName_t sliding;
  cudnnBackendAttributeName_t alpha;
  cudnnBackendAttributeName_t beta;
};

ConvolutionOperation operation_of(Convolution::Makes makes) {
  switch (makes) {
    case Convolution::Makes::y:
      return {.type = CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
              .x = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
              .w = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
              .y = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
              .sliding = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
              .alpha = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
              .beta = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
    case Convolution::Makes::x:
      return {.type = CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              .x = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              .w = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              .y = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
              .sliding = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              .alpha = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              .beta = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
    case Convolution::Makes::w: break;
  }
  return {.type = CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
          .x = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
          .w = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
          .y = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
          .sliding = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
          .alpha = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
          .beta = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
}

template <std::size_t count>
std::vector<std::int64_t> list(const std::array<std::int64_t, count>& values) {
  return {values.begin(), values.end()};
}

/// Engines with these notes are less exact than float32 sums of exact products. Engine 67 of cuDNN 9.19, its first
/// choice for a float32 weight gradient on Hopper, has no note and loses a little (docs/gpu.md).
std::vector<cudnnBackendNumericalNote_t> refused_notes(const Convolution& of) {
  std::vector<cudnnBackendNumericalNote_t> refused = {CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS,
                                                      CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION,
                                                      CUDNN_NUMERICAL_NOTE_FFT,
                                                      CUDNN_NUMERICAL_NOTE_WINOGRAD,
                                                      CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4,
                                                      CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6,
                                                      CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13};
  if (!of.is_bfloat) {
    refused.push_back(CUDNN_NUMERICAL_NOTE_TENSOR_CORE);  // TF32
  }
  return refused;
}

/// The largest power of two that divides an address, up to 16, which is the largest that is useful.
std::int64_t alignment_of(const void* data) {
  constexpr std::uint64_t most = 16;
  const std::uint64_t bits = most | reinterpret_cast<std::uintptr_t>(data);
  return static_cast<std::int64_t>(bits & (~bits + 1));
}

}  // namespace

std::shared_ptr<const CudnnPlan> find_convolution_plan(const CudnnTarget& target, const Convolution& convolution,
                                                       bool adds, const ConvolutionAlignments& alignments,
                                                       std::size_t workspace_bytes, CudnnGpu gpu) {
  CudnnGraph graph(target.library());
  const auto add = [&](const std::array<std::int64_t, 4>& sizes, std::int64_t alignment) {
    return graph.add({.dtype = cudnn_type(convolution.dtype), .shape = list(sizes), .alignment = alignment});
  };
  const std::int64_t x = add(convolution.x, alignments[0]);
  const std::int64_t w = add(convolution.w, alignments[1]);
  const std::int64_t y = add(convolution.y, alignments[2]);
  CudnnDescriptor& sliding = graph.add(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  sliding.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, std::int64_t{2})
      .set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT)
      .set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_CROSS_CORRELATION)
      .set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, list(convolution.strides))
      .set(CUDNN_ATTR_CONVOLUTION_DILATIONS, list(convolution.dilations))
      .set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, list(convolution.before))
      .set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, list(convolution.after))
      .finalize();
  const ConvolutionOperation names = operation_of(convolution.makes);
  graph.add_operation(names.type)
      .set(names.x, graph.tensor(x))
      .set(names.w, graph.tensor(w))
      .set(names.y, graph.tensor(y))
      .set(names.sliding, sliding)
      .set(names.alpha, 1.0F)
      .set(names.beta, adds ? 1.0F : 0.0F)
      .finalize();
  return CudnnPlan::find(target, std::move(graph),
                         {.workspace_bytes = workspace_bytes, .refused = refused_notes(convolution)}, gpu);
}

FindConvolution open_convolutions(const std::shared_ptr<CudnnTarget>& target, const Gpu& gpu) {
  if (target == nullptr) {
    return nullptr;
  }
  using Key = std::tuple<Convolution, bool, ConvolutionAlignments, std::size_t>;
  const auto plans = std::make_shared<CudnnPlans<Key>>(target, gpu);
  return [plans](const Convolution& convolution, bool adds, const ConvolutionMemory& memory) -> ConvolutionRun {
    const ConvolutionAlignments alignments = {alignment_of(memory.x), alignment_of(memory.w), alignment_of(memory.y)};
    return plans->find(
        {convolution, adds, alignments, memory.workspace.size()}, text_of(convolution),
        [&](const CudnnTarget& with, CudnnGpu described) {
          return find_convolution_plan(with, convolution, adds, alignments, memory.workspace.size(), described);
        },
        [&](const CudnnPlan& plan) {
          return std::make_shared<const CudnnDescriptor>(
              plan.bind({{1, memory.x}, {2, memory.w}, {3, memory.y}}, memory.workspace));
        });
  };
}

}  // namespace shardrun::device::cuda
