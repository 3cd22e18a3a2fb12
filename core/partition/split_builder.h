#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/graph/graph.h"
#include "core/partition/placements.h"
#include "core/partition/split_function.h"

namespace shardrun::partition {

/// A split function as it grows: values, nodes, and the transitions that bring a value where it is wanted.
class SplitBuilder {
 public:
  /// REQUIRES: the arguments outlive this.
  SplitBuilder(const graph::Function& function, const Placements& placements);

  [[nodiscard]] SplitFunction& function() noexcept { return out_; }
  [[nodiscard]] const graph::TensorType& type(graph::ValueId id) const;
  [[nodiscard]] const mesh::Placement& placement(graph::ValueId id) const;

  /// `node` is next: the transitions that follow are for it.
  void begin(const graph::Node& node);
  [[nodiscard]] graph::Phase phase() const noexcept { return phase_; }

  graph::ValueId add_value(graph::Value value, mesh::Placement placement);

  /// A result of the node that is added next.
  graph::ValueId add_result(const std::string& name, const graph::TensorType& type, mesh::Placement placement);
  void add_node(graph::Node node, std::optional<Transition> transition);

  /// The value in another placement; it varies over the same axes. What has been moved there is not moved again.
  graph::ValueId reshard(graph::ValueId from, mesh::Placement to);

  /// A state's value, gathered for this stretch of the function. A stretch is a run of nodes of one layer in one
  /// direction. The stretch before may lend what it has, unless stages do something else in between.
  graph::ValueId gather(graph::ValueId state, const Gather& gather, const mesh::Placement& use);

 private:
  struct Gathered {
    graph::ValueId value = graph::no_value;
    std::int32_t stretch = -1;  ///< in which it was read last
  };

  graph::ValueId add_transition(graph::ValueId from, const Transition& step);
  [[nodiscard]] graph::Phase phase_of(graph::ValueId from) const;

  const Placements& placements_;
  SplitFunction out_;
  graph::Phase phase_ = graph::Phase::forward;
  std::int32_t layer_ = -1;
  std::int32_t stretch_ = 0;
  std::pair<bool, std::int32_t> stretch_of_ = {false, -1};  ///< whether it is backward, and its layer
  std::map<std::pair<graph::ValueId, mesh::Placement>, graph::ValueId> resharded_;
  std::map<graph::ValueId, Gathered> gathered_;                            ///< of values of states
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> gathers_;  ///< numbers, by unit and stretch
};

}  // namespace shardrun::partition
