#pragma once

#include <optional>

#include "core/device/cuda/runtime/cudnn_graph.h"

/// Operations that graphs are made of. Tensors are named by their numbers.
namespace shardrun::device::cuda {

/// A tensor between two operations, in rows without gaps.
[[nodiscard]] std::int64_t add_virtual(CudnnGraph& graph, std::vector<std::int64_t> shape,
                                       cudnnDataType_t dtype = CUDNN_DATA_FLOAT);

struct CudnnPointwise {
  cudnnPointwiseMode_t mode;
  std::int64_t x = 0;
  std::int64_t b = 0;          ///< the second operand; 0: none
  std::int64_t condition = 0;  ///< of a selection; 0: none
  cudnnDataType_t computes = CUDNN_DATA_FLOAT;
  std::optional<std::int64_t> axis = {};  ///< of an index
};
/// These return `to`.
std::int64_t add_pointwise(CudnnGraph& graph, const CudnnPointwise& of, std::int64_t to);
/// Sums in float32.
std::int64_t add_matmul(CudnnGraph& graph, std::int64_t a, std::int64_t b, std::int64_t to);
/// Reduces the dimensions that are 1 in `to`, in float32.
std::int64_t add_reduction(CudnnGraph& graph, cudnnReduceTensorOp_t mode, std::int64_t x, std::int64_t to);
/// The same memory with another shape and other strides.
std::int64_t add_reshape(CudnnGraph& graph, std::int64_t x, std::int64_t to);

}  // namespace shardrun::device::cuda
