#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/mesh/placement.h"

namespace shardrun::partition {

/// A stage of a pipeline: its coordinate along the pipeline's mesh axis. Without a pipeline everything is on stage 0.
using StageId = Id<struct StageTag>;

/// Index in Programs::actions.
using ActionId = Id<struct ActionTag>;

/// A direction between two stages of a pipeline. Messages along a link arrive in the order in which they are sent.
struct Link {
  StageId from = {};
  StageId to = {};
  bool backward = false;

  auto operator<=>(const Link&) const = default;
};

/// One step from a placement to another along one mesh axis, or the halo exchange of an op that shifts its operand.
struct Transition {
  enum class Kind : std::uint8_t {
    slice,           ///< replicated → split on `dim`, with a halo if set, or a halo → its own(); no transfer
    all_reduce,      ///< partial → replicated
    reduce_scatter,  ///< partial → split on `dim`
    all_gather,      ///< split on `dim` → replicated
    all_to_all,      ///< split on `from_dim` → split on `dim`
    send,            ///< to another stage; has no result
    receive,         ///< from another stage; has no operand
    exchange,        ///< halo exchange of a value that is split on `dim`
    add_shared,      ///< partial and split on `dim` with a halo → split on `dim` with its own() halo
    hook,            ///< partial → replicated, or varying → varying, by the strategy's own function
  } kind = Kind::slice;
  mesh::AxisId axis = {};
  std::size_t dim = 0;
  std::size_t from_dim = 0;
  Reduction reduction = Reduction::sum;
  /// Number of a gather at use; −1: not a gather at use. Transitions with the same number gather the tensors of one
  /// unit together, while the preceding unit is computed.
  std::int32_t gather = -1;
  Link link = {};  ///< for send and receive
  /// For a transition between stages in device memory: its place in the order of the stage's launches (launch_order.h).
  std::optional<std::size_t> place = {};
  std::optional<mesh::Halo> halo = {};  ///< the halo of the result along `dim`
};

[[nodiscard]] const char* to_string(Transition::Kind kind) noexcept;

/// The op that stands for a transition in nodes and instructions. Devices have no kernel for it.
[[nodiscard]] const graph::Op& op_of(Transition::Kind kind);

/// A node of the graph, or a transition, whose op has the transition's name. A node of an op that shifts can be both:
/// its kernel computes the elements that need no halo, and the halo exchange brings the others.
struct SplitNode : graph::Node {
  std::optional<Transition> transition = {};
  StageId stage = {};                        ///< the pipeline stage that executes it; none: every stage
  std::vector<StageId> operand_stages = {};  ///< for a sum over stages: the stage that adds each operand
  std::size_t call = 0;                      ///< its microbatch, if one call executes several
  ActionId action = {};                      ///< its action in the stage's list; none: it belongs to no action
  graph::NodeId alike = {};                  ///< the first node, of any call, with the same op over alike values
};

struct SplitValue : graph::Value {
  mesh::Placement placement = {};
  graph::ValueId alike = {};  ///< the first value, of any call, with the same type and placement
};

struct SplitInput : graph::Port {
  std::size_t call = 0;
};

/// A gradient that another stage contributes to. At the end of a step that stage sends its sum.
struct Tie {
  graph::StateId state = {};
  Link link;
};

/// A function of the graph with all its transitions, for all ranks or for the ranks of one stage. Types are those of
/// whole tensors. Ranks differ only in their coordinates.
struct SplitFunction {
  std::string name;
  graph::Role role = graph::Role::on_demand;
  std::int64_t rows = 0;
  IdVector<graph::ValueId, SplitValue> values;
  IdVector<graph::NodeId, SplitNode> nodes;
  std::vector<SplitInput> inputs;
  std::vector<graph::Port> outputs;
  std::vector<graph::StateWrite> writes;
  std::vector<std::int64_t> call_rows = {};  ///< rows of each microbatch of a step, if one call executes them all
  std::vector<Tie> ties = {};
  std::size_t under_way = 1;  ///< the most messages in flight along a link
  graph::NodeId end = {};     ///< the first node that receives what the end of the call needs; none: not a stage's part

  /// The stage on which a value is made. None if every stage makes it, or if it is an input or a state.
  [[nodiscard]] StageId stage_of(graph::ValueId value) const {
    const graph::NodeId producer = values[value].producer;
    return producer.exists() ? nodes[producer].stage : StageId{};
  }
};

}  // namespace shardrun::partition
