#pragma once

#include <optional>
#include <set>
#include <vector>

#include "core/graph/sharding_rule.h"
#include "core/partition/split_function.h"

namespace shardrun::partition {

/// The mesh axes that each factor of a node is split over.
class FactorAxes {
 public:
  /// REQUIRES: `rule` outlives this.
  /// `by_element`: the node's kernel does not ask where in the tensor its elements are, as those of an update do not.
  FactorAxes(const graph::ShardingRule& rule, bool by_element);

  /// Gives the factors of `dims` what `placement` has there, where a factor may be split and has nothing yet and no
  /// other factor has the axis. A shifted one takes the first axis alone: halos are exchanged along one. Of a
  /// node that treats every element by itself flattened elements may be split too.
  void follow(const std::vector<int>& dims, const mesh::Placement& placement);

  [[nodiscard]] bool uses(mesh::AxisId axis) const { return used_.contains(axis); }

  /// Of a node with a factor that is shifted and split what brings the halos.
  [[nodiscard]] std::optional<Transition> exchange() const;

  /// Of an operand or result with these factors.
  [[nodiscard]] mesh::Placement of(const std::vector<int>& dims) const;

  /// The sums in which results are partial because a factor that is summed over is split.
  [[nodiscard]] std::vector<mesh::Partial> partial() const;

 private:
  const graph::ShardingRule& rule_;
  /// Factors of every operand and result that is no scalar, if these are the same: then elements go by themselves, or
  /// into one sum of all. Null otherwise.
  const std::vector<int>* elementwise_ = nullptr;
  std::vector<std::vector<mesh::AxisId>> axes_;
  std::vector<mesh::AxisId> flat_;  ///< that split the flattened elements
  std::set<mesh::AxisId> used_;
};

}  // namespace shardrun::partition
