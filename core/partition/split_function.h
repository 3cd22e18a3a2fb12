#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/mesh/placement.h"

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

/// Stands for a transition where nodes and instructions have an op. No device has a kernel for it.
[[nodiscard]] const graph::Op& op_of(Transition::Kind kind);

/// A node of the graph, or a transition, whose op has the transition's name. A node with an exchange is both: its
/// kernel computes what a rank can by itself and leaves the rest of its result to what arrives.
struct SplitNode : graph::Node {
  std::optional<Transition> transition = {};
  std::int32_t stage = -1;                        ///< of the pipeline that does it; −1: every stage
  std::vector<std::int32_t> operand_stages = {};  ///< of a sum over stages: which stage counts each operand
  std::int32_t call = 0;                          ///< its microbatch, where the function does several at once
  std::int32_t action = -1;                       ///< number of its stage's action; −1: it is part of none
  graph::NodeId alike = -1;                       ///< the first node, of any call, of the same op over alike values
};

struct SplitValue : graph::Value {
  mesh::Placement placement = {};
  graph::ValueId alike = graph::no_value;  ///< the first value, of any call, of the same type and placement
};

struct SplitInput : graph::Port {
  std::int32_t call = 0;
};

/// A gradient that another stage adds to as well: it sends what it has accumulated.
struct Tie {
  graph::StateId state = -1;
  Link link;
};

/// A function of the graph with every transition in it, on all ranks or on those of one stage. Types are global; ranks
/// differ in their coordinates alone.
struct SplitFunction {
  std::string name;
  graph::Role role = graph::Role::on_demand;
  std::int64_t rows = 0;
  std::vector<SplitValue> values;
  std::vector<SplitNode> nodes;
  std::vector<SplitInput> inputs;
  std::vector<graph::Port> outputs;
  std::vector<graph::StateWrite> writes;
  std::vector<std::int64_t> call_rows = {};  ///< of each microbatch of a step, where it does all of them at once
  std::vector<Tie> ties = {};
  std::size_t under_way = 1;  ///< what may be on its way along a link at one time

  /// The stage that makes a value; −1: every stage has it.
  [[nodiscard]] std::int32_t stage_of(graph::ValueId value) const {
    const graph::NodeId producer = values[static_cast<std::size_t>(value)].producer;
    return producer < 0 ? -1 : nodes[static_cast<std::size_t>(producer)].stage;
  }
};

}  // namespace shardrun::partition
