#pragma once

#include "core/graph/graph.h"

namespace shardrun::graph {

/// Rewrites the functions of training to mixed precision (Micikevicius et al. 2017, arXiv:1710.03740):
/// - Parameters are bf16, and so are activations and their gradients. A result that its op's rule declares float32
///   stays so: statistics of rows, sums, losses.
/// - An input of real numbers is cast to bf16 where it decides the type of a result. Outputs are cast to float32.
/// - Gradients of parameters have the type `gradients`: f32 or bf16.
/// - Each parameter P gets a state `master/P`: float32, kind optimizer, with the first values of P before rounding. The
///   function of role `once` reads and writes it in place of P, and writes P as its cast.
/// Optimizer states and metrics keep their types. REQUIRES: the graph's other real tensors are f32; only the function
/// of role `once` writes parameters.
void mix_precision(Graph& graph, DType gradients);

}  // namespace shardrun::graph
