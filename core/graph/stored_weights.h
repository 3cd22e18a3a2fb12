#pragma once

#include "core/graph/graph.h"

namespace shardrun::graph {

/// Rewrites a graph that is only applied, so that its matrices are kept in a 16-bit type while it computes in float32.
/// - A parameter gets the type if every use of it is as the second operand of `matmul` or `einsum`, or as the table of
///   `embedding`. Norms and biases stay float32.
/// - Products read the 16-bit numbers and make float32. Rows of a table are cast to float32.
/// REQUIRES: all real tensors of the graph except caches are f32, and no function writes a parameter. `dtype`: f32 (the
/// graph stays as it is), bf16 or f16, if no einsum of such a parameter is other than a product of matrices.
void store_weights(Graph& graph, DType dtype);

}  // namespace shardrun::graph
