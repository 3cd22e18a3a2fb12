#pragma once

#include <optional>
#include <set>
#include <vector>

#include "core/graph/graph.h"
#include "core/partition/split_function.h"

namespace shardrun::partition {

/// The mesh axes that each factor of a node is split over.
class FactorAxes {
 public:
  /// REQUIRES: the arguments outlive this. The kernels of an update do not depend on where their elements are in the
  /// tensor.
  FactorAxes(const graph::Function& function, const graph::Node& node, const mesh::Mesh& mesh);

  /// Gives each factor of `dims` the mesh axes that split it in `placement`. A factor is skipped if it may not be split
  /// or already has axes; an axis is skipped if another factor has it. A windowed factor takes more than one axis only
  /// if its parts need no halo, because halos are exchanged along one axis. The flattened elements of an update may be
  /// split too. With the axes the factor takes the placement's halo: shards compute the halo's intervals.
  void follow(const std::vector<graph::FactorId>& dims, const mesh::Placement& placement);

  [[nodiscard]] bool uses(mesh::AxisId axis) const { return used_.contains(axis); }

  /// The transition that brings the halos, if the node's op shifts along a dimension that is split.
  [[nodiscard]] std::optional<Transition> exchange() const;

  /// The placement in which the node reads an operand, unless the node's op shifts. It has a halo where some rank's own
  /// part lacks something that the rank reads.
  [[nodiscard]] mesh::Placement of_operand(std::size_t operand) const;

  /// Whether an operand is a sum over an axis that splits one of the node's factors through a halo, as it splits the
  /// operand.
  [[nodiscard]] bool shares(std::size_t operand, const mesh::Placement& placement, mesh::AxisId axis) const;

  /// Leaves each shard those indices that it has alone, for factors along which a result is reduced.
  void own_reduced();

  /// The placement in which the node makes a result. It is partial over axes that split a factor that it lacks, and
  /// over those along which shards add to the same indices.
  [[nodiscard]] mesh::Placement of_result(std::size_t result) const;

 private:
  /// The placement of a value with these factors.
  [[nodiscard]] mesh::Placement of(const std::vector<graph::FactorId>& dims) const;

  /// The sums in which a result with these factors is partial, because a factor that it lacks is summed over and split.
  [[nodiscard]] std::vector<mesh::Partial> partial(const std::vector<graph::FactorId>& dims) const;
  /// Whether some rank lacks elements that its window reads, if the factor is split over these axes. Windows that lie
  /// side by side often need no halo.
  [[nodiscard]] bool lacks(graph::FactorId factor, const std::vector<mesh::AxisId>& axes) const;
  [[nodiscard]] bool lacks(const mesh::Halo& read, std::int64_t size, const std::vector<mesh::AxisId>& axes) const;
  [[nodiscard]] bool takes(graph::FactorId factor, mesh::AxisId axis) const;
  [[nodiscard]] mesh::Halo halo_of(const graph::WindowedDimension& read) const;
  [[nodiscard]] std::int64_t size_of(const graph::WindowedDimension& read) const;

  const graph::Function& function_;
  const graph::Node& node_;
  const mesh::Mesh& mesh_;
  const graph::ShardingRule& rule_;
  bool shifts_;
  /// The factors of every operand and result that is not a scalar, if these are all the same. Then the op works by
  /// element, or sums all elements up. Null otherwise.
  const std::vector<graph::FactorId>* elementwise_ = nullptr;
  IdVector<graph::FactorId, std::vector<mesh::AxisId>> axes_;
  IdVector<graph::FactorId, std::optional<mesh::Halo>> halos_;  ///< of factors whose shards are not their parts
  std::vector<mesh::AxisId> flat_;                              ///< the axes that split the flattened elements
  std::set<mesh::AxisId> used_;
};

}  // namespace shardrun::partition
