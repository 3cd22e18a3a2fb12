#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/device/cuda/runtime/convolution_steps.h"
#include "core/device/cuda/runtime/cudnn_graph.h"

namespace shardrun::device::cuda {

/// The alignment of the memory of x, w and y, in bytes.
using ConvolutionAlignments = std::array<std::int64_t, 3>;

/// Finds the first plan, in the order of cuDNN's heuristics, that multiplies exactly, sums in float32 in a fixed order,
/// and needs no more workspace than allowed; null: none. Tensors x, w and y have the numbers 1, 2 and 3.
/// Throws CudnnError.
[[nodiscard]] std::shared_ptr<const CudnnPlan> find_convolution_plan(const CudnnTarget& target,
                                                                     const Convolution& convolution, bool adds,
                                                                     const ConvolutionAlignments& alignments,
                                                                     std::size_t workspace_bytes,
                                                                     CudnnGpu gpu = CudnnGpu::by_properties);

}  // namespace shardrun::device::cuda
