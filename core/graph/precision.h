#pragma once

#include "core/graph/graph.h"

namespace shardrun::graph {

/// Rewrites the functions of training for mixed precision (Micikevicius et al. 2017, arXiv:1710.03740):
/// - Parameters, activations and their gradients are bf16. Results that an op's rule declares as float32 stay float32:
///   statistics of rows, sums, losses.
/// - A real input is cast to bf16 if it determines the type of a result. Outputs are cast to float32.
/// - Gradients of parameters have the type `gradients`: f32 or bf16.
/// - Each parameter P gets a state `master/P`: float32, kind optimizer, with the first values of P before rounding. The
///   function of role `once` reads and writes it instead of P, and writes P as a cast of it.
/// Optimizer states and metrics keep their types. REQUIRES: all real tensors of the graph are f32; only the function of
/// role `once` writes parameters.
void mix_precision(Graph& graph, DType gradients);

}  // namespace shardrun::graph
