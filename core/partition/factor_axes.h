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
  /// REQUIRES: `rule` outlives this. `by_element`: the node's kernel does not depend on where its elements are in the
  /// tensor. That holds for the kernels of an update.
  FactorAxes(const graph::ShardingRule& rule, bool by_element);

  /// Gives each factor of `dims` the mesh axes that split it in `placement`. A factor is skipped if it may not be split
  /// or already has axes; an axis is skipped if another factor has it. A shifted factor takes only the first axis,
  /// because halos are exchanged along one axis. If the node is `by_element`, its flattened elements may be split too.
  void follow(const std::vector<graph::FactorId>& dims, const mesh::Placement& placement);

  [[nodiscard]] bool uses(mesh::AxisId axis) const { return used_.contains(axis); }

  /// The transition that fetches the halos, if the node has a factor that is shifted and split.
  [[nodiscard]] std::optional<Transition> exchange() const;

  /// The placement of an operand or result with these factors.
  [[nodiscard]] mesh::Placement of(const std::vector<graph::FactorId>& dims) const;

  /// The sums in which a result with these factors is partial, because a factor that it lacks is summed over and split.
  [[nodiscard]] std::vector<mesh::Partial> partial(const std::vector<graph::FactorId>& dims) const;

 private:
  const graph::ShardingRule& rule_;
  /// The factors of every operand and result that is not a scalar, if these are all the same. Then the op works by
  /// element, or sums all elements up. Null otherwise.
  const std::vector<graph::FactorId>* elementwise_ = nullptr;
  IdVector<graph::FactorId, std::vector<mesh::AxisId>> axes_;
  std::vector<mesh::AxisId> flat_;  ///< the axes that split the flattened elements
  std::set<mesh::AxisId> used_;
};

}  // namespace shardrun::partition
