#pragma once

#include <cstdint>

#include "core/graph/graph.h"

namespace shardrun::graph {

/// How many consecutive elements of a row of int8 weights share a scale.
inline constexpr std::int64_t block_elements = 32;

/// Rewrites a graph for inference, so that its matrices are kept in a smaller type. All other values stay float32.
/// - A parameter gets the type if every use of it is as the second operand of `matmul` or `einsum`, or as the table of
///   `embedding`. Norms and biases stay float32.
/// - bf16 and f16: products read the 16-bit numbers and make float32. Rows of a table are cast to float32. With f16, a
///   parameter of an einsum that is not a product of two matrices becomes bf16.
/// - i8: a parameter P [N…, K…], summed over K, becomes integers and a parameter `scale/P` of f16, with a scale for 32
///   consecutive elements of K. Products round activations in the same blocks (op block_matmul). P is stored with K
///   last, even if the model has K first. If the dimensions do not allow such blocks, or uses sum over different
///   dimensions, P becomes bf16.
/// - `activations` = bf16: a product of two matrices with bf16 weights reads its first operand as a cast to bf16.
///   Products that read the same value share the cast. They still make float32, and add in a fixed order, so that a
///   row's bits do not depend on other rows.
/// REQUIRES: all real tensors of the graph except caches are f32, and no function writes a parameter. `dtype`: f32 (the
/// graph stays as it is), bf16, f16 or i8. `activations`: f32 or bf16.
void store_weights(Graph& graph, DType dtype, DType activations = DType::f32);

/// The state of the scales of int8 weights; the default id if these weights have none.
[[nodiscard]] StateId scales_of(const Graph& graph, StateId weights) noexcept;

}  // namespace shardrun::graph
