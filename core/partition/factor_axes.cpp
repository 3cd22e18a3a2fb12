#include "core/partition/factor_axes.h"

#include <algorithm>

namespace shardrun::partition {

using mesh::AxisId;
using mesh::Partial;
using mesh::Placement;

namespace {

const std::vector<graph::FactorId>* elementwise_factors(const graph::ShardingRule& rule) {
  const std::vector<graph::FactorId>* factors = nullptr;
  for (const std::vector<std::vector<graph::FactorId>>* values : {&rule.inputs, &rule.outputs}) {
    for (const std::vector<graph::FactorId>& dims : *values) {
      if (!dims.empty() && factors != nullptr && dims != *factors) {
        return nullptr;
      }
      factors = dims.empty() ? factors : &dims;
    }
  }
  const auto kind = [&](graph::FactorId factor) { return rule.factors[factor].kind; };
  for (const graph::FactorId factor : factors == nullptr ? std::vector<graph::FactorId>{} : *factors) {
    if (kind(factor) != kind(factors->front()) ||
        (kind(factor) != graph::FactorClass::pass_through && kind(factor) != graph::FactorClass::reduced)) {
      return nullptr;
    }
  }
  return factors;
}

}  // namespace

FactorAxes::FactorAxes(const graph::ShardingRule& rule, bool by_element)
    : rule_(rule), elementwise_(by_element ? elementwise_factors(rule) : nullptr), axes_(rule.factors.size()) {}

void FactorAxes::follow(const std::vector<graph::FactorId>& dims, const Placement& placement) {
  for (std::size_t d = 0; d < dims.size(); ++d) {
    const graph::FactorId factor = dims[d];
    const graph::FactorClass kind = rule_.factors[factor].kind;
    if (kind == graph::FactorClass::whole || !axes_[factor].empty()) {
      continue;
    }
    for (const AxisId axis : placement.dims[d]) {
      const bool full = kind == graph::FactorClass::shift && !axes_[factor].empty();
      if (!full && used_.insert(axis).second) {
        axes_[factor].push_back(axis);
      }
    }
  }
  for (const AxisId axis : elementwise_ != nullptr && flat_.empty() ? placement.flat : std::vector<AxisId>{}) {
    if (used_.insert(axis).second) {
      flat_.push_back(axis);
    }
  }
}

std::optional<Transition> FactorAxes::exchange() const {
  for (std::size_t d = 0; rule_.outputs.size() == 1 && d < rule_.outputs[0].size(); ++d) {
    const graph::FactorId f = rule_.outputs[0][d];
    const graph::Factor& factor = rule_.factors[f];
    if (factor.kind == graph::FactorClass::shift && !axes_[f].empty()) {
      return Transition{.kind = Transition::Kind::exchange,
                        .axis = axes_[f].front(),
                        .dim = d,
                        .offset = factor.offset,
                        .wraps = factor.wraps};
    }
  }
  return std::nullopt;
}

Placement FactorAxes::of(const std::vector<graph::FactorId>& dims) const {
  Placement placement;
  for (const graph::FactorId factor : dims) {
    placement.dims.push_back(axes_[factor]);
  }
  if (!dims.empty()) {
    placement.flat = flat_;
  }
  return placement;
}

std::vector<Partial> FactorAxes::partial(const std::vector<graph::FactorId>& dims) const {
  std::vector<Partial> partial;
  const auto add = [&](graph::FactorId f, const std::vector<AxisId>& axes) {
    const graph::Factor& factor = rule_.factors[f];
    const bool lacking = std::find(dims.begin(), dims.end(), f) == dims.end();
    for (const AxisId axis : factor.kind == graph::FactorClass::reduced && lacking ? axes : std::vector<AxisId>{}) {
      partial.push_back({axis, factor.reduction});
    }
  };
  for (const graph::FactorId f : axes_.ids()) {
    add(f, axes_[f]);
  }
  if (!flat_.empty()) {
    add(elementwise_->front(), flat_);
  }
  return partial;
}

}  // namespace shardrun::partition
