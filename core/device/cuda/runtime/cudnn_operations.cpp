#include "core/device/cuda/runtime/cudnn_graph.h"

#include <utility>

namespace shardrun::device::cuda {

std::int64_t add_virtual(CudnnGraph& graph, std::vector<std::int64_t> shape, cudnnDataType_t dtype) {
  return graph.add({.dtype = dtype, .shape = std::move(shape), .is_virtual = true});
}

std::int64_t add_pointwise(CudnnGraph& graph, const CudnnPointwise& of, std::int64_t to) {
  CudnnDescriptor& function = graph.add(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  function.set(CUDNN_ATTR_POINTWISE_MODE, of.mode).set(CUDNN_ATTR_POINTWISE_MATH_PREC, of.computes);
  if (of.axis) {
    function.set(CUDNN_ATTR_POINTWISE_AXIS, *of.axis);
  }
  function.finalize();
  CudnnDescriptor& operation = graph.add_operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, function)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, graph.tensor(of.x))
      .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, graph.tensor(to));
  if (of.b != 0) {
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, graph.tensor(of.b));
  }
  if (of.condition != 0) {
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, graph.tensor(of.condition));
  }
  operation.finalize();
  return to;
}

std::int64_t add_matmul(CudnnGraph& graph, std::int64_t a, std::int64_t b, std::int64_t to) {
  CudnnDescriptor& function = graph.add(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  function.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT).finalize();
  graph.add_operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
      .set(CUDNN_ATTR_OPERATION_MATMUL_DESC, function)
      .set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, graph.tensor(a))
      .set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, graph.tensor(b))
      .set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, graph.tensor(to))
      .finalize();
  return to;
}

std::int64_t add_reduction(CudnnGraph& graph, cudnnReduceTensorOp_t mode, std::int64_t x, std::int64_t to) {
  CudnnDescriptor& function = graph.add(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  function.set(CUDNN_ATTR_REDUCTION_OPERATOR, mode).set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT).finalize();
  graph.add_operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
      .set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, function)
      .set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, graph.tensor(x))
      .set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, graph.tensor(to))
      .finalize();
  return to;
}

std::int64_t add_reshape(CudnnGraph& graph, std::int64_t x, std::int64_t to) {
  graph.add_operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)
      .set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, graph.tensor(x))
      .set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, graph.tensor(to))
      .finalize();
  return to;
}

}  // namespace shardrun::device::cuda
