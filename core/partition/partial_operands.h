#pragma once

#include <cstddef>
#include <vector>

#include "core/graph/graph.h"
#include "core/partition/factor_axes.h"

namespace shardrun::partition {

/// Whether these are sums over axes that no factor of the node is split over.
[[nodiscard]] bool only_free_sums(const std::vector<mesh::Partial>& partial, const FactorAxes& factors);

/// Which operands of a node may stay partial, so that its result is partial instead: those that it is linear in.
class PartialOperands {
 public:
  /// `partial`: of each operand. `read_once`: of each input of the node, whether nothing else reads it.
  PartialOperands(const graph::Node& node, std::vector<std::vector<mesh::Partial>> partial, std::vector<bool> read_once,
                  const FactorAxes& factors);

  /// Whether all operands of a node that is linear in them together are partial alike.
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
