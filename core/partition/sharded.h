#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/mesh/placement.h"
#include "core/partition/placements.h"

namespace shardrun::partition {

/// One way between two stages of a pipeline. What goes along it arrives in the order in which it is sent.
struct Link {
  std::int32_t from = -1;
  std::int32_t to = -1;
  bool backward = false;

  auto operator<=>(const Link&) const = default;
};

/// One step from a placement to another, along one mesh axis; or what an op that shifts needs beyond a rank's part.
struct Transition {
  enum class Kind : std::uint8_t {
    slice,           ///< replicated → split on `dim`: no traffic
    all_reduce,      ///< partial → replicated
    reduce_scatter,  ///< partial → split on `dim`
    all_gather,      ///< split on `dim` → replicated
    all_to_all,      ///< split on `from_dim` → split on `dim`
    send,            ///< to another stage of the pipeline: no result
    receive,         ///< from another stage: no operand
    exchange,        ///< split on `dim`, and shifted by `offset`: what a rank is missing (halo)
    hook,            ///< partial → replicated, or varying → varying, by what the strategy's own function does
  } kind = Kind::slice;
  mesh::AxisId axis = -1;
  std::size_t dim = 0;
  std::size_t from_dim = 0;
  Reduction reduction = Reduction::sum;
  /// Those of one number bring the tensors of one unit just before they are used: together, and while what is before
  /// that is computed. −1: where it stands.
  std::int32_t gather = -1;
  Link link = {};           ///< of send and receive
  std::int64_t offset = 0;  ///< exchange: index i of the result is made of index i + offset
  bool wraps = false;       ///< exchange: past its ends the dimension begins again
};

[[nodiscard]] const char* to_string(Transition::Kind kind) noexcept;

/// What stands for a transition where nodes and instructions have an op. No device has a kernel for it.
[[nodiscard]] const graph::Op& op_of(Transition::Kind kind);

/// A gradient that another stage adds to as well: it sends what it has gathered up.
struct Tie {
  graph::StateId state = -1;
  Link link;
};

/// A function with every transition in it: nodes of their own, whose ops have the transitions' names, but for
/// exchanges. These belong to the nodes that need them, whose kernels compute what a rank can by itself and leave the
/// rest of their result to what arrives. Types are global; ranks differ in their coordinates alone.
struct ShardedFunction {
  graph::Function function;
  std::vector<mesh::Placement> placements;             ///< of each value
  std::vector<std::optional<Transition>> transitions;  ///< of each node

  // Of what one stage of a pipeline does for all microbatches of a step at once; empty otherwise.
  std::vector<std::int32_t> node_calls = {};    ///< of each node its microbatch
  std::vector<std::int32_t> node_actions = {};  ///< of each node the number of its stage's action, or −1
  std::vector<std::int32_t> input_calls = {};   ///< of each input
  std::vector<std::int64_t> call_rows = {};     ///< of each microbatch
  /// Of each value, and of each node, the first one of any call that stands for the same: a value of the same type and
  /// placement, a node of the same op over such values.
  std::vector<graph::ValueId> alike_values = {};
  std::vector<graph::NodeId> alike_nodes = {};

  [[nodiscard]] std::size_t alike_value(std::size_t value) const {
    return alike_values.empty() ? value : static_cast<std::size_t>(alike_values[value]);
  }
  [[nodiscard]] std::size_t alike_node(std::size_t node) const {
    return alike_nodes.empty() ? node : static_cast<std::size_t>(alike_nodes[node]);
  }

  std::vector<Tie> ties = {};
  std::size_t under_way = 1;  ///< what may be on its way along a link at one time
};

/// How what is owed on a state is paid at a step's last call, where the state is: all_reduces, before them
/// reduce_scatters that leave each rank the part that it will read, and behind them the strategy's hook.
struct Settlement {
  std::vector<Transition> steps;
  mesh::Placement after;  ///< of what holds then, and is read
};

/// A graph's functions with their transitions, and the states as the functions leave them.
struct ShardedGraph {
  std::vector<ShardedFunction> functions;  ///< as in the graph
  /// What is owed on each state from the first call of a step to the last: sums over ranks of what each has added.
  std::vector<std::vector<mesh::Owed>> owed;
  std::vector<Settlement> settlements;  ///< of each state
};

/// Propagates the placements through every function and inserts what is missing.
///
/// Of each node the factors are given mesh axes: first as the results' placements ask (cut point, then axis rules),
/// then as the operands are placed, the larger first. Operands follow, then results. A value that is owed a reduction
/// keeps owing it through ops that are linear in it as long as it has one reader; it is paid once for all readers.
[[nodiscard]] ShardedGraph shard(const graph::Graph& graph, const Placements& placements);

[[nodiscard]] std::string to_string(const ShardedGraph& sharded, const graph::Graph& graph, const mesh::Mesh& mesh);

}  // namespace shardrun::partition
