#pragma once

#include <cstdint>

#include "core/graph/graph.h"

namespace shardrun::graph {

/// Which results of repeated layers are recomputed in backward instead of being kept since forward.
enum class Remat : std::uint8_t {
  none,
  gathers,    ///< none is recomputed; ranks keep only their parts of gathered values, and gather them again
  layer,      ///< all results that no other layer reads (Chen et al. 2016, arXiv:1604.06174, section 3)
  selective,  ///< results of cheap ops on kept or recomputed values (Korthikanti et al. 2022, arXiv:2205.05198)
};

/// Returns a function whose backward nodes recompute the results that are not kept since forward. No result changes.
/// The nodes of such results are cloned. A clone is named `recompute/…`, has phase backward_input and its original's
/// layer, and stands before its first reader. A node is cloned at most once. `layers`: number of layers of the graph.
[[nodiscard]] Function rematerialize(const Function& function, Remat remat, std::int32_t layers);

/// Returns the function without the nodes that no write, output or cut point needs, such as those of an unread loss.
[[nodiscard]] Function without_unused(const Function& function);

/// Rewrites the functions of training for mixed precision (Micikevicius et al. 2017, arXiv:1710.03740):
/// - Parameters, activations and their gradients are bf16. Results that an op's rule declares as float32 stay float32:
///   statistics of rows, sums, losses.
/// - A real input is cast to bf16 if it determines the type of a result. Outputs are cast to float32.
/// - Gradients of parameters have the type `gradients`: f32 or bf16.
/// - Each parameter P gets a state `master/P`: float32, kind optimizer, with the first values of P before rounding. The
///   function of role `once` reads and writes `master/P` instead of P, and writes P as the cast of `master/P`.
/// Optimizer states and metrics keep their types. REQUIRES: all real tensors of the graph are f32; only the function of
/// role `once` writes parameters.
void mix_precision(Graph& graph, DType gradients);

}  // namespace shardrun::graph
