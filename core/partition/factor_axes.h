#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <vector>

#include "core/graph/graph.h"
#include "core/partition/placements.h"
#include "core/partition/split_function.h"

namespace shardrun::partition {

/// The mesh axes that each factor of a node is split over.
class FactorAxes {
 public:
  /// In an update, axes can also split the flattened elements of an elementwise node: its kernel needs no positions.
  /// REQUIRES: the arguments outlive this.
  FactorAxes(const graph::Function& function, const graph::Node& node, const Placements& placements);

  /// Gives each factor of `dims` the mesh axes that split its dimension in `placement`, and that dimension's halo.
  /// Skips factors that cannot be split or already have axes, and axes that another factor has. A windowed factor takes
  /// more than one axis only if its parts need no halo, because halos are exchanged along one axis. In an update, the
  /// axes of `placement.flat` then split the flattened elements.
  void follow(const std::vector<graph::FactorId>& dims, const mesh::Placement& placement);

  [[nodiscard]] bool uses(mesh::AxisId axis) const { return used_.contains(axis); }

  /// The halo exchange, if the node's op shifts along a dimension that is split.
  [[nodiscard]] std::optional<Transition> exchange() const;

  /// The placement in which the node reads an operand. It has a halo if some rank reads elements outside of its own
  /// part, unless the node's op shifts: see exchange().
  [[nodiscard]] mesh::Placement of_operand(std::size_t operand) const;

  /// For an operand that is partial over `axis` and split over it with a halo: whether its factor has the same halo.
  [[nodiscard]] bool shares(std::size_t operand, const mesh::Placement& placement, mesh::AxisId axis) const;

  /// Leaves each index of a reduced factor to one shard only, so that no element counts twice.
  void own_reduced();

  /// The placement in which the node makes a result. It is partial over axes that split a factor which the result
  /// lacks, and over axes along which several shards add to the same indices.
  [[nodiscard]] mesh::Placement of_result(std::size_t result) const;

 private:
  /// The placement of a value whose dimensions are these factors.
  [[nodiscard]] mesh::Placement of(const std::vector<graph::FactorId>& dims) const;

  /// The reductions that a result with these factors still needs, because another factor is reduced and split.
  [[nodiscard]] std::vector<mesh::Partial> partial(const std::vector<graph::FactorId>& dims) const;
  /// Whether some rank would read elements outside of its own part if the factor were split over these axes. Adjacent
  /// windows that do not overlap often need no halo.
  [[nodiscard]] bool lacks(graph::FactorId factor, const std::vector<mesh::AxisId>& axes) const;
  [[nodiscard]] bool lacks(const mesh::Halo& read, std::int64_t size, const std::vector<mesh::AxisId>& axes) const;
  [[nodiscard]] bool takes(graph::FactorId factor, mesh::AxisId axis) const;
  /// Whether all parts of the factor, split over these axes, begin at multiples of its unit.
  [[nodiscard]] bool fits_unit(graph::FactorId factor, const std::vector<mesh::AxisId>& axes) const;
  /// Whether `holds` is true for some coordinates along these axes. The coordinates along other axes are 0.
  template <class Holds>
  [[nodiscard]] bool any_part(const std::vector<mesh::AxisId>& axes, const Holds& holds) const;
  [[nodiscard]] mesh::Halo halo_of(const graph::WindowedDimension& read) const;
  [[nodiscard]] std::int64_t size_of(const graph::WindowedDimension& read) const;

  const graph::Function& function_;
  const graph::Node& node_;
  const mesh::Mesh& mesh_;
  const bool whole_sums_;
  const graph::ShardingRule& rule_;
  bool shifts_;
  /// The factors of all operands and results, if these are equal except for scalars: the op is elementwise, or sums up
  /// all elements. Null otherwise.
  const std::vector<graph::FactorId>* elementwise_ = nullptr;
  IdVector<graph::FactorId, std::vector<mesh::AxisId>> axes_;
  IdVector<graph::FactorId, std::optional<mesh::Halo>> halos_;  ///< halos of factors whose shards overlap
  std::vector<mesh::AxisId> flat_;                              ///< the mesh axes that split the flattened elements
  std::set<mesh::AxisId> used_;
};

/// Whether all of these partial values are sums over mesh axes that split no factor of the node.
[[nodiscard]] bool only_free_sums(const std::vector<mesh::Partial>& partial, const FactorAxes& factors);

/// Tells which operands of a node can stay partial, so that its result is partial instead: the node is linear in them.
class PartialOperands {
 public:
  /// `partial`: the sums in which each operand is partial. `read_once`: for each input of the node, whether this node
  /// is its only reader.
  PartialOperands(const graph::Node& node, std::vector<std::vector<mesh::Partial>> partial, std::vector<bool> read_once,
                  const FactorAxes& factors);

  /// Whether the node is linear in all operands together, and all of them are partial in the same way.
  [[nodiscard]] bool all_alike() const;

  /// Whether operand i stays partial.
  [[nodiscard]] bool stays(std::size_t i) const;

  [[nodiscard]] const std::vector<mesh::Partial>& partial(std::size_t i) const { return partial_[i]; }

 private:
  const graph::Node& node_;
  const FactorAxes& factors_;
  std::vector<std::vector<mesh::Partial>> partial_;
  std::vector<bool> read_once_;
};

/// The number of nodes, state writes and outputs that read each value of a function.
[[nodiscard]] IdVector<graph::ValueId, int> count_readers(const graph::Function& function);

/// The placement that is wanted for each value of a function: the one that the plan gives its cut point. If an
/// elementwise node makes a value and its only reader is elementwise, the value takes the placement wanted for the
/// reader's result. So a partial sum before a split cut point becomes a reduce_scatter.
[[nodiscard]] IdVector<graph::ValueId, std::optional<mesh::Placement>> wanted_placements(
    const graph::Function& function, const Placements& placements, const IdVector<graph::ValueId, int>& readers);

}  // namespace shardrun::partition
