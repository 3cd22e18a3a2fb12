#include "core/partition/partial_operands.h"

#include <algorithm>
#include <utility>

namespace shardrun::partition {

using mesh::Partial;

bool only_free_sums(const std::vector<Partial>& partial, const FactorAxes& factors) {
  return std::all_of(partial.begin(), partial.end(),
                     [&](const Partial& each) { return each.reduction == Reduction::sum && !factors.uses(each.axis); });
}

PartialOperands::PartialOperands(const graph::Node& node, std::vector<std::vector<Partial>> partial,
                                 std::vector<bool> read_once, const FactorAxes& factors)
    : node_(node), factors_(factors), partial_(std::move(partial)), read_once_(std::move(read_once)) {}

bool PartialOperands::all_alike() const {
  return node_.rule.linearity == graph::Linearity::together &&
         std::all_of(partial_.begin(), partial_.end(),
                     [&](const std::vector<Partial>& each) { return each == partial_.front(); }) &&
         only_free_sums(partial_.front(), factors_);
}

bool PartialOperands::stays(std::size_t i) const {
  if (partial_[i].empty()) {
    return false;
  }
  if (node_.rule.linearity == graph::Linearity::together) {
    return all_alike() && std::all_of(read_once_.begin(), read_once_.end(), [](bool once) { return once; });
  }
  const std::vector<std::size_t>& linear = node_.rule.linear;
  if (node_.rule.linearity != graph::Linearity::each || i >= read_once_.size() || !read_once_[i] ||
      std::find(linear.begin(), linear.end(), i) == linear.end()) {
    return false;
  }
  for (std::size_t other = 0; other < partial_.size(); ++other) {
    if (other != i && !partial_[other].empty()) {
      return false;
    }
  }
  return only_free_sums(partial_[i], factors_);
}

}  // namespace shardrun::partition
