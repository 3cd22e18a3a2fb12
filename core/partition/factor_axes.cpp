#include "core/partition/factor_axes.h"

#include <algorithm>
#include <set>
#include <utility>

namespace shardrun::partition {
namespace {

using graph::Node;
using graph::ValueId;
using mesh::AxisId;
using mesh::Partial;
using mesh::Placement;

const std::vector<graph::FactorId>* elementwise_factors(const graph::ShardingRule& rule) {
  const std::vector<graph::FactorId>* factors = nullptr;
  if (!rule.windows.empty()) {
    return nullptr;
  }
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

bool is_elementwise(const Node& node) {
  return node.outputs.size() == 1 && node.rule.windows.empty() &&
         std::all_of(node.rule.factors.begin(), node.rule.factors.end(),
                     [](const graph::Factor& factor) { return factor.kind == graph::FactorClass::pass_through; });
}

}  // namespace

FactorAxes::FactorAxes(const graph::Function& function, const graph::Node& node, const Placements& placements)
    : function_(function),
      node_(node),
      mesh_(placements.mesh),
      whole_sums_(placements.whole_sums),
      rule_(node.rule),
      shifts_(node.op->shifts),
      elementwise_(node.phase == graph::Phase::update ? elementwise_factors(node.rule) : nullptr),
      axes_(node.rule.factors.size()),
      halos_(node.rule.factors.size()) {}

void FactorAxes::follow(const std::vector<graph::FactorId>& dims, const Placement& placement) {
  for (std::size_t d = 0; d < dims.size(); ++d) {
    const graph::FactorId factor = dims[d];
    if (rule_.factors[factor].kind == graph::FactorClass::whole || !axes_[factor].empty()) {
      continue;
    }
    if (whole_sums_ && graph::rounds_sum(rule_.factors[factor])) {
      continue;
    }
    if (rule_.factors[factor].unit > 1 && placement.halo(d) != nullptr) {
      continue;
    }
    for (const AxisId axis : placement.dims[d]) {
      if (takes(factor, axis) && used_.insert(axis).second) {
        axes_[factor].push_back(axis);
        const mesh::Halo* halo = rule_.is_windowed(factor) ? nullptr : placement.halo(d);
        halos_[factor] = halo == nullptr ? std::nullopt : std::optional(*halo);
      }
    }
  }
  for (const AxisId axis : elementwise_ != nullptr && flat_.empty() ? placement.flat : std::vector<AxisId>{}) {
    if (used_.insert(axis).second) {
      flat_.push_back(axis);
    }
  }
}

template <class Holds>
bool FactorAxes::any_part(const std::vector<AxisId>& axes, const Holds& holds) const {
  mesh::Coordinates at(mesh_.axes.size(), 0);
  const auto next = [&] {
    return std::ranges::any_of(axes, [&](AxisId axis) {
      at[axis] = (at[axis] + 1) % mesh_.size(axis);
      return at[axis] != 0;
    });
  };
  do {
    if (holds(at)) {
      return true;
    }
  } while (next());
  return false;
}

bool FactorAxes::takes(graph::FactorId factor, AxisId axis) const {
  std::vector<AxisId> axes = axes_[factor];
  axes.push_back(axis);
  if (!fits_unit(factor, axes)) {
    return false;
  }
  return axes.size() == 1 || !rule_.is_windowed(factor) || (!shifts_ && !lacks(factor, axes));
}

bool FactorAxes::lacks(graph::FactorId factor, const std::vector<AxisId>& axes) const {
  return std::ranges::any_of(rule_.windows, [&](const graph::WindowedDimension& read) {
    return rule_.inputs[read.operand][read.dim] == factor && lacks(halo_of(read), size_of(read), axes);
  });
}

std::int64_t FactorAxes::size_of(const graph::WindowedDimension& read) const {
  return function_.values[node_.inputs[read.operand]].type.shape[read.dim];
}

bool FactorAxes::lacks(const mesh::Halo& read, std::int64_t size, const std::vector<AxisId>& axes) const {
  Placement own = mesh::replicated(read.dim + 1);
  own.dims[read.dim] = axes;
  Placement read_part = own;
  read_part.halos = {read};
  return any_part(axes, [&](const mesh::Coordinates& at) {
    const mesh::Interval has = interval_of(size, own, read.dim, mesh_, at);
    const mesh::Interval reads = interval_of(size, read_part, read.dim, mesh_, at);
    return reads.size() > 0 && (reads.begin < has.begin || reads.end > has.end);
  });
}

bool FactorAxes::fits_unit(graph::FactorId factor, const std::vector<AxisId>& axes) const {
  const graph::Factor& of = rule_.factors[factor];
  return of.unit == 1 || !any_part(axes, [&](const mesh::Coordinates& at) {
           const mesh::Interval part = mesh::shard_of(of.size, axes, mesh_, at);
           return part.size() > 0 && part.begin % of.unit != 0;
         });
}

mesh::Halo FactorAxes::halo_of(const graph::WindowedDimension& read) const {
  return {read.dim, read.window, rule_.factors[rule_.inputs[read.operand][read.dim]].size};
}

std::optional<Transition> FactorAxes::exchange() const {
  for (const graph::WindowedDimension& each : rule_.windows) {
    const graph::FactorId factor = rule_.inputs[each.operand][each.dim];
    if (shifts_ && !axes_[factor].empty()) {
      return Transition{
          .kind = Transition::Kind::exchange, .axis = axes_[factor].front(), .dim = each.dim, .halo = halo_of(each)};
    }
  }
  return std::nullopt;
}

Placement FactorAxes::of_operand(std::size_t operand) const {
  const std::size_t declared = std::min(operand, rule_.inputs.size() - 1);
  Placement placement = of(rule_.inputs[declared]);
  for (const graph::WindowedDimension& read : rule_.windows) {
    const bool is_split = read.operand == declared && !placement.dims[read.dim].empty();
    if (is_split && !shifts_ && lacks(halo_of(read), size_of(read), placement.dims[read.dim])) {
      placement.halos.push_back(halo_of(read));
    }
  }
  std::ranges::sort(placement.halos);
  return placement;
}

Placement FactorAxes::of(const std::vector<graph::FactorId>& dims) const {
  Placement placement;
  for (const graph::FactorId factor : dims) {
    if (std::optional<mesh::Halo> halo = halos_[factor]) {
      halo->dim = placement.dims.size();
      placement.halos.push_back(*halo);
    }
    placement.dims.push_back(axes_[factor]);
  }
  if (!dims.empty()) {
    placement.flat = flat_;
  }
  return placement;
}

Placement FactorAxes::of_result(std::size_t result) const {
  Placement placement = of(rule_.outputs[result]);
  placement.partial = partial(rule_.outputs[result]);
  for (const graph::WindowedDimension& written : rule_.result_windows) {
    if (written.operand != result || placement.dims[written.dim].empty()) {
      continue;
    }
    const graph::FactorId factor = rule_.outputs[result][written.dim];
    const mesh::Halo halo{written.dim, written.window, rule_.factors[factor].size};
    if (lacks(halo, function_.values[node_.outputs[result]].type.shape[written.dim], placement.dims[written.dim])) {
      placement.halos.push_back(halo);
      placement.partial.push_back({placement.dims[written.dim].front(), Reduction::sum});
    }
  }
  std::ranges::sort(placement.halos);
  std::ranges::sort(placement.partial);
  return placement;
}

bool FactorAxes::shares(std::size_t operand, const Placement& placement, AxisId axis) const {
  const std::vector<graph::FactorId>& dims = rule_.inputs[std::min(operand, rule_.inputs.size() - 1)];
  for (const mesh::Halo& halo : placement.halos) {
    const std::optional<mesh::Halo>& computed = halos_[dims[halo.dim]];
    if (placement.dims[halo.dim] == std::vector{axis} && axes_[dims[halo.dim]] == placement.dims[halo.dim]) {
      return computed && computed->window == halo.window && computed->size == halo.size;
    }
  }
  return false;
}

void FactorAxes::own_reduced() {
  for (const graph::FactorId factor : halos_.ids()) {
    if (halos_[factor] && rule_.factors[factor].kind == graph::FactorClass::reduced) {
      halos_[factor] = halos_[factor]->own();
    }
  }
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

IdVector<ValueId, int> count_readers(const graph::Function& function) {
  IdVector<ValueId, int> readers(function.values.size(), 0);
  for (const Node& node : function.nodes) {
    const std::set<ValueId> operands(node.inputs.begin(), node.inputs.end());
    for (const ValueId id : operands) {
      ++readers[id];
    }
  }
  for (const graph::Port& port : function.outputs) {
    ++readers[port.value];
  }
  for (const graph::StateWrite& write : function.writes) {
    ++readers[write.value];
  }
  return readers;
}

IdVector<ValueId, std::optional<mesh::Placement>> wanted_placements(const graph::Function& function,
                                                                    const Placements& placements,
                                                                    const IdVector<ValueId, int>& readers) {
  IdVector<ValueId, std::optional<mesh::Placement>> wanted(function.values.size());
  for (const ValueId v : function.values.ids()) {
    const auto point = placements.cut_points.find(function.values[v].cut_point);
    if (point != placements.cut_points.end()) {
      wanted[v] = point->second;
    }
  }
  for (std::size_t n = function.nodes.size(); n-- > 0;) {
    const Node& node = function.nodes[graph::NodeId(n)];
    const std::optional<mesh::Placement> result = wanted[node.outputs[0]];
    for (std::size_t i = 0; result && is_elementwise(node) && i < node.inputs.size(); ++i) {
      const ValueId id = node.inputs[i];
      const std::vector<graph::FactorId>& dims = node.rule.inputs[std::min(i, node.rule.inputs.size() - 1)];
      const graph::NodeId producer = function.values[id].producer;
      if (!wanted[id] && readers[id] == 1 && dims == node.rule.outputs[0] && producer.exists() &&
          is_elementwise(function.nodes[producer])) {
        wanted[id] = result;
      }
    }
  }
  return wanted;
}

}  // namespace shardrun::partition
