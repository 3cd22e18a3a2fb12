#pragma once

#include <optional>

#include "core/device/cuda/runtime/cudnn_graph.h"

/// Functions that add operations to a graph. Tensors are given by their numbers.
namespace shardrun::device::cuda {

/// Adds a tensor that only operations of the graph read, without gaps between rows. Returns its number.
[[nodiscard]] std::int64_t add_virtual(CudnnGraph& graph, std::vector<std::int64_t> shape,
                                       cudnnDataType_t dtype = CUDNN_DATA_FLOAT);

struct CudnnPointwise {
  cudnnPointwiseMode_t mode;
  std::int64_t x = 0;
  std::int64_t b = 0;          ///< the second operand; 0: none
  std::int64_t condition = 0;  ///< the condition of a selection; 0: none
  cudnnDataType_t computes = CUDNN_DATA_FLOAT;
  std::optional<std::int64_t> axis = {};  ///< the axis of an index
};
/// The following functions return `to`.
std::int64_t add_pointwise(CudnnGraph& graph, const CudnnPointwise& of, std::int64_t to);
/// A matrix product with sums in float32.
std::int64_t add_matmul(CudnnGraph& graph, std::int64_t a, std::int64_t b, std::int64_t to);
/// Reduces, in float32, the dimensions whose size is 1 in `to`.
std::int64_t add_reduction(CudnnGraph& graph, cudnnReduceTensorOp_t mode, std::int64_t x, std::int64_t to);
/// Gives the same memory another shape and other strides.
std::int64_t add_reshape(CudnnGraph& graph, std::int64_t x, std::int64_t to);

}  // namespace shardrun::device::cuda
