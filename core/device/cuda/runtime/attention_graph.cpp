#include "core/device/cuda/runtime/cudnn_plans.h"

#include "core/device/cuda/runtime/cudnn_graph.h"

// Builds the operations that cuDNN recognizes as fused attention (Dao et al. 2022, arXiv:2205.14135), in the order that
// it expects.

namespace shardrun::device::cuda {
namespace {

using Numbers = AttentionNumbers;
using Extents = std::vector<std::int64_t>;

/// The shapes of the operands and results, and of the tensors between the operations.
class AttentionShapes {
 public:
  explicit AttentionShapes(const FusedAttention& of) : of_(of) {}

  /// A tensor of shape [B, heads, rows, D] that lies in memory as [B, rows, heads, D], with `row` elements per row.
  [[nodiscard]] CudnnTensor rows_of(std::int64_t heads, std::int64_t rows, std::int64_t row) const {
    return {.dtype = CUDNN_DATA_BFLOAT16,
            .shape = {of_.batch, heads, rows, of_.width},
            .strides = {rows * row, of_.width, row, 1}};
  }
  [[nodiscard]] CudnnTensor q() const { return rows_of(of_.heads, of_.queries, of_.query_row()); }
  [[nodiscard]] CudnnTensor k() const { return rows_of(of_.key_heads, of_.keys, of_.key_row()); }
  [[nodiscard]] CudnnTensor out() const { return rows_of(of_.heads, of_.queries, of_.out_row()); }
  [[nodiscard]] Extents scores() const { return {of_.batch, of_.heads, of_.queries, of_.keys}; }
  [[nodiscard]] Extents column() const { return {of_.batch, of_.heads, of_.queries, 1}; }
  [[nodiscard]] Extents full_keys() const { return {of_.batch, of_.heads, of_.keys, of_.width}; }
  /// The log-sum-exp of a part is aligned only to its elements.
  [[nodiscard]] CudnnTensor log_sum_exp() const { return {.shape = column(), .alignment = sizeof(float)}; }
  [[nodiscard]] const FusedAttention& of() const { return of_; }

 private:
  const FusedAttention& of_;
};

CudnnTensor transposed(CudnnTensor tensor) {
  std::swap(tensor.shape[2], tensor.shape[3]);
  std::swap(tensor.strides[2], tensor.strides[3]);
  return tensor;
}

CudnnTensor one_value() { return {.shape = {1, 1, 1, 1}, .is_by_value = true}; }

/// Adds the tensors that attention and its gradient both have, with the numbers 1 to 7. `v` has the layout by which the
/// graph multiplies with v.
void add_operands(CudnnGraph& graph, const AttentionShapes& shapes, const CudnnTensor& v) {
  for (const CudnnTensor& each :
       {shapes.q(), transposed(shapes.k()), v, shapes.out(), shapes.log_sum_exp(), one_value(), one_value()}) {
    graph.add(each);
  }
}

std::int64_t add_scaled(CudnnGraph& graph, const Extents& shape, std::int64_t x) {
  return add_pointwise(graph, {.mode = CUDNN_POINTWISE_MUL, .x = x, .b = Numbers::scale}, add_virtual(graph, shape));
}

/// Adds operations that set the scores of keys after the query to `unseen`. Returns the number of their result.
std::int64_t add_causal_mask(CudnnGraph& graph, const Extents& shape, std::int64_t scores) {
  const auto index = [&](std::int64_t axis) {
    return add_pointwise(graph, {.mode = CUDNN_POINTWISE_GEN_INDEX, .x = scores, .axis = axis},
                         add_virtual(graph, shape, CUDNN_DATA_INT32));
  };
  const std::int64_t query = index(2);
  const std::int64_t key = index(3);
  const std::int64_t seen =
      add_pointwise(graph, {.mode = CUDNN_POINTWISE_CMP_GE, .x = query, .b = key, .computes = CUDNN_DATA_BOOLEAN},
                    add_virtual(graph, shape, CUDNN_DATA_BOOLEAN));
  return add_pointwise(graph,
                       {.mode = CUDNN_POINTWISE_BINARY_SELECT, .x = scores, .b = Numbers::unseen, .condition = seen},
                       add_virtual(graph, shape));
}

/// Adds the product of x, transposed and rounded to bfloat16, with `by`. Sums the heads that share a head of keys.
void add_transposed_product(CudnnGraph& graph, const AttentionShapes& shapes, std::int64_t x, std::int64_t by,
                            std::int64_t to) {
  CudnnTensor turned = {.dtype = CUDNN_DATA_BFLOAT16, .shape = shapes.scores(), .is_virtual = true};
  const FusedAttention& of = shapes.of();
  turned.strides = {of.heads * of.queries * of.keys, of.queries * of.keys, of.keys, 1};
  const std::int64_t transposed_x = add_reshape(graph, x, graph.add(transposed(turned)));
  if (of.heads == of.key_heads) {
    add_matmul(graph, transposed_x, by, to);
    return;
  }
  const std::int64_t of_all_heads =
      add_matmul(graph, transposed_x, by, add_virtual(graph, shapes.full_keys(), CUDNN_DATA_BFLOAT16));
  add_reduction(graph, CUDNN_REDUCE_TENSOR_ADD, of_all_heads, to);
}

CudnnGraph attention_graph(const CudnnFunctions& library, const FusedAttention& of) {
  CudnnGraph graph(library);
  const AttentionShapes shapes(of);
  const Extents scores_shape = shapes.scores();
  add_operands(graph, shapes, shapes.k());
  std::int64_t scores =
      add_scaled(graph, scores_shape, add_matmul(graph, Numbers::q, Numbers::k, add_virtual(graph, scores_shape)));
  if (of.is_causal) {
    scores = add_causal_mask(graph, scores_shape, scores);
  }
  const std::int64_t most = add_reduction(graph, CUDNN_REDUCE_TENSOR_MAX, scores, add_virtual(graph, shapes.column()));
  const std::int64_t less =
      add_pointwise(graph, {.mode = CUDNN_POINTWISE_SUB, .x = scores, .b = most}, add_virtual(graph, scores_shape));
  const std::int64_t power =
      add_pointwise(graph, {.mode = CUDNN_POINTWISE_EXP, .x = less}, add_virtual(graph, scores_shape));
  const std::int64_t sum = add_reduction(graph, CUDNN_REDUCE_TENSOR_ADD, power, add_virtual(graph, shapes.column()));
  const std::int64_t log =
      add_pointwise(graph, {.mode = CUDNN_POINTWISE_LOG, .x = sum}, add_virtual(graph, shapes.column()));
  add_pointwise(graph, {.mode = CUDNN_POINTWISE_ADD, .x = most, .b = log}, Numbers::log_sum_exp);
  const std::int64_t probabilities = add_pointwise(graph, {.mode = CUDNN_POINTWISE_DIV, .x = power, .b = sum},
                                                   add_virtual(graph, scores_shape, CUDNN_DATA_BFLOAT16));
  add_matmul(graph, probabilities, Numbers::v, Numbers::out);
  return graph;
}

CudnnGraph attention_gradient_graph(const CudnnFunctions& library, const FusedAttention& of, AttentionOrder order) {
  CudnnGraph graph(library);
  const AttentionShapes shapes(of);
  const Extents scores_shape = shapes.scores();
  add_operands(graph, shapes, transposed(shapes.k()));
  for (const CudnnTensor& each :
       {shapes.out(), shapes.q(), shapes.k(), shapes.k(), CudnnTensor{.shape = shapes.column()}, one_value()}) {
    graph.add(each);
  }
  if (order == AttentionOrder::any) {
    graph.add({.shape = {of.batch, of.heads, of.queries, of.width}});
  }
  const std::int64_t products =
      add_pointwise(graph, {.mode = CUDNN_POINTWISE_MUL, .x = Numbers::dout, .b = Numbers::out},
                    add_virtual(graph, shapes.out().shape));
  const std::int64_t sums =
      add_reduction(graph, CUDNN_REDUCE_TENSOR_ADD, products, add_virtual(graph, shapes.column()));
  add_pointwise(graph, {.mode = CUDNN_POINTWISE_MUL, .x = sums, .b = Numbers::one}, Numbers::sums);

  std::int64_t scores =
      add_scaled(graph, scores_shape, add_matmul(graph, Numbers::q, Numbers::k, add_virtual(graph, scores_shape)));
  scores = add_pointwise(graph, {.mode = CUDNN_POINTWISE_SUB, .x = scores, .b = Numbers::log_sum_exp},
                         add_virtual(graph, scores_shape));
  if (of.is_causal) {
    scores = add_causal_mask(graph, scores_shape, scores);
  }
  const std::int64_t probabilities =
      add_pointwise(graph, {.mode = CUDNN_POINTWISE_EXP, .x = scores}, add_virtual(graph, scores_shape));
  add_transposed_product(graph, shapes, probabilities, Numbers::dout, Numbers::dv);

  std::int64_t gradient = add_matmul(graph, Numbers::dout, Numbers::v, add_virtual(graph, scores_shape));
  gradient = add_pointwise(graph, {.mode = CUDNN_POINTWISE_SUB, .x = gradient, .b = Numbers::sums},
                           add_virtual(graph, scores_shape));
  gradient = add_pointwise(graph, {.mode = CUDNN_POINTWISE_MUL, .x = gradient, .b = probabilities},
                           add_virtual(graph, scores_shape));
  gradient = add_scaled(graph, scores_shape, gradient);
  add_transposed_product(graph, shapes, gradient, Numbers::q, Numbers::dk);

  CudnnTensor keys = shapes.k();
  keys.is_virtual = true;
  const std::int64_t k = add_reshape(graph, Numbers::k, graph.add(keys));
  if (order == AttentionOrder::fixed) {
    add_matmul(graph, gradient, k, Numbers::dq);
  } else {
    add_matmul(graph, gradient, k, Numbers::dq_sums);
    add_pointwise(graph, {.mode = CUDNN_POINTWISE_IDENTITY, .x = Numbers::dq_sums}, Numbers::dq);
  }
  return graph;
}

}  // namespace

std::shared_ptr<const CudnnPlan> find_attention_plan(const CudnnTarget& target, const FusedAttention& attention,
                                                     std::size_t workspace_bytes, AttentionOrder order, CudnnGpu gpu) {
  try {
    return CudnnPlan::find(target,
                           attention.is_gradient ? attention_gradient_graph(target.library(), attention, order)
                                                 : attention_graph(target.library(), attention),
                           {.workspace_bytes = workspace_bytes, .is_ordered = order == AttentionOrder::fixed}, gpu);
  } catch (const CudnnError& error) {
    if (!error.is_unsupported) {
      throw;
    }
    return nullptr;
  }
}

}  // namespace shardrun::device::cuda
