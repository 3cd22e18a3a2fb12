#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/conformance/evaluate.h"
#include "core/conformance/model_member.h"
#include "core/graph/builder.h"

namespace shardrun::conformance {
namespace {

using graph::FactorClass;
using plugins::ModelOp;

const device::Device& fast() { return device::Device::find("cpu"); }
const device::Device& reference() { return device::Device::find("reference"); }

constexpr double of_floats = 1e-5;  // relative difference that is allowed between float32 and float64 sums
constexpr double of_doubles = 1e-12;

constexpr const char* no_ops = "nothing to check: the model has no ops of its own";

void for_each_trial(ModelMember& member, const std::function<void(const OpTrial&)>& check) {
  if (member.model().ops().empty()) {
    member.note(no_ops);
  }
  for (const std::shared_ptr<const ModelOp>& op : member.model().ops()) {
    for (const OpTrial& trial : trials_of(*op, op->example)) {
      check(trial);
    }
  }
}

void check_kernels(const OpTrial& trial) {
  const std::vector<Tensor> expected = run_trial(trial, reference());
  const std::vector<Tensor> found = run_trial(trial, fast());
  require_close(trial, "the float32 kernel", found, expected, of_floats);
  for (const int threads : {2, 3}) {
    require_close(trial, fmt::format("on {} threads", threads), run_trial(trial, fast(), threads), found, 0);
    require_close(trial, fmt::format("the float64 kernel on {} threads", threads),
                  run_trial(trial, reference(), threads), expected, 0);
  }
}

void equal_kernels(ModelMember& member) { for_each_trial(member, check_kernels); }

/// A trial of the factor's indices [begin, end), with the parts of operands and results that belong to these indices.
/// If an operand is read through a window, its part is what these indices read.
OpTrial shard_of(const OpTrial& whole, graph::FactorId factor, std::int64_t begin, std::int64_t end) {
  OpTrial part = whole;
  const auto cut = [&](Tensor& tensor, const std::vector<graph::FactorId>& dims, const auto& window_of) {
    for (std::size_t d = 0; d < dims.size(); ++d) {
      if (dims[d] == factor) {
        const Window* const window = window_of(d);
        const auto [from, to] =
            window == nullptr ? std::pair(begin, end) : window->reads(begin, end, tensor.type.shape[d]);
        tensor = slice(tensor, d, from, to);
      }
    }
  };
  for (std::size_t i = 0; i < part.operands.size(); ++i) {
    cut(part.operands[i], whole.rule.inputs[i], [&](std::size_t d) { return whole.rule.window(i, d); });
  }
  for (std::size_t o = 0; o < part.results.size(); ++o) {
    cut(part.results[o], whole.rule.outputs[o], [](std::size_t) -> const Window* { return nullptr; });
  }
  part.what += fmt::format(", factor {} cut to [{}, {})", whole.rule.factors[factor].name, begin, end);
  return part;
}

/// Combines the results of all shards into a whole result, in the way that the rule states.
Tensor joined(const std::vector<Tensor>& parts, const graph::ShardingRule& rule, graph::FactorId factor,
              std::size_t result) {
  const std::vector<graph::FactorId>& dims = rule.outputs[result];
  const auto dim = std::ranges::find(dims, factor);
  if (dim != dims.end()) {
    return concatenate(parts, static_cast<std::size_t>(dim - dims.begin()));
  }
  Tensor all = parts.front();
  for (std::size_t p = 1; p < parts.size(); ++p) {
    for (std::size_t e = 0; e < all.values.size(); ++e) {
      all.values[e] = combined(rule.factors[factor].reduction, all.values[e], parts[p].values[e]);
    }
  }
  return all;
}

void check_cut(const OpTrial& whole, graph::FactorId factor, const std::vector<std::int64_t>& ends) {
  const std::string what = fmt::format("factor {} of the rule '{}' cut in {}, and joined again",
                                       whole.rule.factors[factor].name, whole.declared->rule, ends.size());
  for (const auto& [device, share] : {std::pair(&reference(), of_doubles), std::pair(&fast(), of_floats)}) {
    std::vector<std::vector<Tensor>> of_shards;
    std::int64_t begin = 0;
    for (const std::int64_t end : ends) {
      of_shards.push_back(run_trial(shard_of(whole, factor, begin, end), *device));
      begin = end;
    }
    std::vector<Tensor> found;
    for (std::size_t o = 0; o < whole.results.size(); ++o) {
      std::vector<Tensor> parts;
      for (const std::vector<Tensor>& shard : of_shards) {
        parts.push_back(shard[o]);
      }
      found.push_back(joined(parts, whole.rule, factor, o));
    }
    require_close(whole, what, found, run_trial(whole, *device), share);
  }
}

void split_factors(ModelMember& member) {
  for_each_trial(member, [](const OpTrial& trial) {
    for (const graph::FactorId f : trial.rule.factors.ids()) {
      const graph::Factor& factor = trial.rule.factors[f];
      if (factor.kind == FactorClass::whole) {
        continue;
      }
      const std::int64_t size = trial.rule.factors[f].size;
      check_cut(trial, f, {size * 2 / 3, size});
      check_cut(trial, f, {size / 5, size * 4 / 5, size});
      if (factor.kind == FactorClass::pass_through) {
        check_cut(trial, f, {size, size});  // the second shard is empty
      }
    }
  });
}

/// A function with the op, whose inputs include gradients of the op's results (cotangents). Computes the gradient of
/// <results, cotangents>.
class OpGradient {
 public:
  /// `flows`: for each result, whether its gradient is given.
  OpGradient(const OpTrial& trial, std::vector<bool> flows)
      : trial_(trial), flows_(std::move(flows)), cotangents_(trial.results) {
    Random random(7);
    for (Tensor& cotangent : cotangents_) {
      random.fill_normal(cotangent, 0, 1);
    }
  }

  /// The gradient that the op's own gradient function computes, without values if that function says it is zero.
  [[nodiscard]] Tensor built(std::size_t operand) const {
    graph::Graph graph;
    graph::FunctionBuilder builder(graph, "gradient", graph::Role::on_demand, 1);
    std::map<graph::ValueId, Tensor> given;
    const auto give = [&](const std::string& name, const Tensor& tensor) {
      const graph::ValueId id = builder.input(name, tensor.type);
      given[id] = tensor;
      return id;
    };
    std::vector<graph::ValueId> operands;
    for (std::size_t i = 0; i < trial_.operands.size(); ++i) {
      operands.push_back(give(fmt::format("operand{}", i), trial_.operands[i]));
    }
    const std::vector<graph::ValueId> results = builder.call_all(trial_.op->name, operands, trial_.attributes);
    std::vector<graph::ValueId> flowing;
    for (std::size_t o = 0; o < results.size(); ++o) {
      flowing.push_back(flows_[o] ? give(fmt::format("cotangent{}", o), cotangents_[o]) : graph::ValueId());
    }
    const graph::ValueId gradient =
        trial_.op->gradient(builder, {trial_.attributes, operands, results, flowing, operand});
    return gradient.exists() ? evaluate(builder.function(), reference(), given, {})[gradient] : Tensor();
  }

  /// The derivative with respect to one element, by a central difference.
  [[nodiscard]] double numeric(std::size_t operand, std::size_t element, double step) {
    double& value = trial_.operands[operand].values[element];
    const double centre = std::exchange(value, value + step);
    const double above = product();
    value = centre - step;
    const double below = product();
    value = centre;
    return (above - below) / (2 * step);
  }

 private:
  [[nodiscard]] double product() const {
    const std::vector<Tensor> results = execute(
        reference(),
        {.op = trial_.op->name, .attributes = trial_.attributes, .inputs = trial_.operands, .outputs = trial_.results});
    double sum = 0;
    for (std::size_t o = 0; o < results.size(); ++o) {
      for (std::size_t e = 0; flows_[o] && e < results[o].values.size(); ++e) {
        sum += results[o].values[e] * cotangents_[o].values[e];
      }
    }
    return sum;
  }

  OpTrial trial_;
  std::vector<bool> flows_;
  std::vector<Tensor> cotangents_;
};

void check_gradient(const OpTrial& trial, const std::vector<bool>& flows, std::size_t operand) {
  OpGradient gradient(trial, flows);
  const Tensor built = gradient.built(operand);
  const std::size_t count = trial.operands[operand].values.size();
  std::vector<double> numeric;
  double largest = 1e-3;
  for (std::size_t e = 0; e < count; ++e) {
    numeric.push_back(gradient.numeric(operand, e, 1e-5));
    largest = std::max(largest, std::abs(numeric.back()));
  }
  for (std::size_t e = 0; e < count; ++e) {
    const double found = built.values.empty() ? 0 : built.values[e];
    // A smaller step helps if the first one crossed a kink of the function.
    const auto agrees = [&](double difference) { return std::abs(found - difference) <= 1e-5 * largest; };
    if (!agrees(numeric[e]) && !agrees(gradient.numeric(operand, e, 1e-6)) &&
        !agrees(gradient.numeric(operand, e, 1e-7))) {
      throw Failure(
          fmt::format("{}: the gradient with respect to operand {}: element {} is {:.6g}, and central "
                      "differences of the float64 kernel give {:.6g}",
                      trial.what, operand, e, found, numeric[e]));
    }
  }
}

/// The combinations of results whose gradients are given: all of them, and each one alone.
std::vector<std::vector<bool>> flows_of(const OpTrial& trial) {
  std::vector<bool> all;
  for (const Tensor& result : trial.results) {
    all.push_back(graph::is_real(result.type.dtype));
  }
  std::vector<std::vector<bool>> flows = {all};
  for (std::size_t o = 0; trial.results.size() > 1 && o < all.size(); ++o) {
    if (all[o]) {
      flows.emplace_back(all.size(), false);
      flows.back()[o] = true;
    }
  }
  return flows;
}

void gradients_of_ops(ModelMember& member) {
  for_each_trial(member, [&](const OpTrial& trial) {
    if (trial.op->gradient == nullptr) {
      member.note(fmt::format("op '{}' has no gradient", trial.declared->name));
      return;
    }
    for (std::size_t i = 0; i < trial.operands.size(); ++i) {
      if (graph::is_real(trial.operands[i].type.dtype)) {
        for (const std::vector<bool>& flows : flows_of(trial)) {
          try {
            check_gradient(trial, flows, i);
          } catch (const Error& error) {
            throw Failure(fmt::format("{}: {}", trial.what, error.message()));
          }
        }
      }
    }
  });
}

/// The attributes of the op's example, with one value replaced.
graph::Attributes with(const ModelOp& op, const std::string& name, const graph::Attributes::Scalar& value) {
  graph::Attributes attributes;
  for (const auto& [key, given] : op.example.entries()) {
    attributes.add(key, key == name ? value : given);
  }
  return attributes;
}

void attributes_at_limits(ModelMember& member) {
  bool any = false;
  for (const std::shared_ptr<const ModelOp>& op : member.model().ops()) {
    for (const graph::AttributeSpec& spec : op->attributes) {
      std::vector<graph::Attributes::Scalar> values(spec.choices.begin(), spec.choices.end());
      const graph::AttributeSpec unbounded = graph::AttributeSpec::integer("", "");
      if (spec.type == graph::AttributeSpec::Type::integer && spec.minimum != unbounded.minimum) {
        values = {spec.minimum, spec.maximum};
      }
      for (const graph::Attributes::Scalar& value : values) {
        any = true;
        std::ranges::for_each(trials_of(*op, with(*op, spec.name, value)), check_kernels);
      }
    }
  }
  if (!any) {
    member.note(member.model().ops().empty() ? no_ops : "nothing to check: no attribute has choices or limits");
  }
}

}  // namespace

void add_op_cases(std::vector<ModelCase>& cases) {
  cases.push_back({.name = "own ops: float32 kernels equal float64 ones", .run = equal_kernels, .ranks = 1});
  cases.push_back({.name = "own ops: attributes at their limits", .run = attributes_at_limits, .ranks = 1});
  cases.push_back({.name = "own ops: every factor cut in 2 and 3", .run = split_factors, .ranks = 1});
  cases.push_back({.name = "own ops: gradients equal central differences", .run = gradients_of_ops, .ranks = 1});
}

}  // namespace shardrun::conformance
