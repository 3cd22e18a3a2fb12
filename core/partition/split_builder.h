#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "core/graph/graph.h"
#include "core/partition/placements.h"
#include "core/partition/split_function.h"

namespace shardrun::partition {

/// Builds a split function: adds values and nodes, and the transitions that bring a value to another placement.
class SplitBuilder {
 public:
  /// REQUIRES: the arguments outlive this.
  SplitBuilder(const graph::Function& function, const Placements& placements);

  [[nodiscard]] SplitFunction& function() noexcept { return out_; }
  [[nodiscard]] const graph::TensorType& type(graph::ValueId id) const;
  [[nodiscard]] const mesh::Placement& placement(graph::ValueId id) const;

  /// Begins a node. The transitions that follow are for this node.
  void begin(const graph::Node& node);
  [[nodiscard]] graph::Phase phase() const noexcept { return phase_; }

  graph::ValueId add_value(graph::Value value, mesh::Placement placement);

  /// Adds a result of the next node.
  graph::ValueId add_result(const std::string& name, const graph::TensorType& type, mesh::Placement placement);
  void add_node(graph::Node node, std::optional<Transition> transition);

  /// Returns the value in another placement; the axes over which it varies are kept. Reuses an earlier result for the
  /// same value and placement; backward reuses forward's only if the function does not gather again.
  graph::ValueId reshard(graph::ValueId from, mesh::Placement to);

  /// Returns a state's value, gathered for the current stretch: a run of nodes of one layer in one direction. Without a
  /// pipeline, reuses the value of the previous stretch or, with `gather.keep`, of any earlier one. With a pipeline
  /// each stretch gathers again, because other actions may run in between.
  graph::ValueId gather(graph::ValueId state, const Gather& gather, const mesh::Placement& use);

 private:
  struct Gathered {
    graph::ValueId value = {};
    std::int32_t stretch = -1;  ///< the last stretch that used the value
  };

  graph::ValueId add_transition(graph::ValueId from, const Transition& step);
  [[nodiscard]] graph::Phase phase_of(graph::ValueId from) const;
  /// Whether a backward node gathers a result of forward again, for all backward readers of that result.
  [[nodiscard]] bool gathers_again(graph::ValueId from, const mesh::Placement& to) const;

  const Placements& placements_;
  SplitFunction out_;
  graph::Phase phase_ = graph::Phase::forward;
  std::int32_t layer_ = -1;
  std::int32_t stretch_ = 0;
  /// Identifies the current stretch: whether it is in backward, and its layer.
  std::pair<bool, std::int32_t> stretch_of_ = {false, -1};
  bool gathers_again_ = false;
  /// By value, placement, and whether backward gathers again.
  std::map<std::tuple<graph::ValueId, mesh::Placement, bool>, graph::ValueId> resharded_;
  std::map<graph::ValueId, Gathered> gathered_;  ///< per value of a state: its gathered value
  /// The number of each gather, by unit and stretch.
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> gathers_;
};

}  // namespace shardrun::partition
