#pragma once

#include <cstddef>
#include <vector>

#include "core/graph/graph.h"
#include "core/partition/factor_axes.h"

namespace shardrun::partition {

/// Whether all of these partial values are sums over mesh axes that split no factor of the node.
[[nodiscard]] bool only_free_sums(const std::vector<mesh::Partial>& partial, const FactorAxes& factors);

/// Tells which operands of a node may stay partial, so that its result is partial instead. It must be linear in these.
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

}  // namespace shardrun::partition
