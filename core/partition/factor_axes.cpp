#include "core/partition/factor_axes.h"

namespace shardrun::partition {

using mesh::AxisId;
using mesh::Owed;
using mesh::Placement;

void FactorAxes::follow(const std::vector<int>& dims, const Placement& placement) {
  for (std::size_t d = 0; d < dims.size(); ++d) {
    const auto factor = static_cast<std::size_t>(dims[d]);
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
}

std::optional<Transition> FactorAxes::exchange() const {
  for (std::size_t d = 0; rule_.outputs.size() == 1 && d < rule_.outputs[0].size(); ++d) {
    const auto f = static_cast<std::size_t>(rule_.outputs[0][d]);
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

Placement FactorAxes::of(const std::vector<int>& dims) const {
  Placement placement;
  for (const int factor : dims) {
    placement.dims.push_back(axes_[static_cast<std::size_t>(factor)]);
  }
  return placement;
}

std::vector<Owed> FactorAxes::owed() const {
  std::vector<Owed> owed;
  for (std::size_t f = 0; f < axes_.size(); ++f) {
    if (rule_.factors[f].kind == graph::FactorClass::reduced) {
      for (const AxisId axis : axes_[f]) {
        owed.push_back({axis, rule_.factors[f].reduction});
      }
    }
  }
  return owed;
}

}  // namespace shardrun::partition
