#include "core/conformance/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/base/error.h"
#include "core/conformance/peer.h"
#include "core/device/elements.h"
#include "core/graph/rule_text.h"
#include "plugins/loader/guard.h"

namespace shardrun::conformance {
namespace {

void draw(const plugins::ModelOp::Operand& operand, Random& random, Tensor& tensor) {
  if (operand.is_integer) {
    const auto width = static_cast<std::int32_t>(std::max(operand.high - operand.low, 1.0));
    random.fill_integers(tensor, width);
    for (double& value : tensor.values) {
      value += std::floor(operand.low);
    }
  } else if (operand.low == operand.high) {
    random.fill_normal(tensor, 0, 1);
  } else {
    random.fill_uniform(tensor, operand.low, operand.high);
  }
}

/// `small`: whether every size that the op does not fix is 1.
OpTrial trial_of(const plugins::ModelOp& declared, const graph::Attributes& attributes, std::size_t operands,
                 bool small) {
  OpTrial trial{.declared = &declared, .op = &graph::find_op(declared.in_graph), .attributes = attributes};
  std::map<std::string, std::int64_t> sizes = declared.sizes;
  std::vector<std::int64_t> odd = {7, 4, 3, 5};  // sizes to use next; the last one first
  std::vector<graph::TensorType> types = graph::typical_operands(declared.rule, [&](const std::string& factor) {
    const auto [known, is_new] = sizes.try_emplace(factor, small ? 1 : odd.back());
    if (is_new && !small && odd.size() > 1) {
      odd.pop_back();
    }
    return known->second;
  });
  types.resize(operands);
  Random random(1);
  trial.what = fmt::format("{}{}", declared.label, to_string(attributes));
  for (std::size_t i = 0; i < types.size(); ++i) {
    types[i].dtype = declared.operands[i].is_integer ? graph::DType::i32 : graph::DType::f32;
    draw(declared.operands[i], random, trial.operands.emplace_back(zeros(types[i])));
    trial.what += " " + to_string(types[i]);
  }
  trial.rule = trial.op->rule(attributes, types);
  for (graph::TensorType& type : graph::infer_types(trial.rule, types, trial.what)) {
    trial.results.push_back(zeros(std::move(type)));
  }
  return trial;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return std::ranges::equal(a.values, b.values,
                            [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); });
}

}  // namespace

std::vector<OpTrial> trials_of(const plugins::ModelOp& op, const graph::Attributes& attributes) {
  std::vector<OpTrial> trials;
  for (std::size_t operands = op.min_operands; operands <= op.operands.size(); ++operands) {
    for (const bool small : {false, true}) {
      trials.push_back(trial_of(op, attributes, operands, small));
    }
  }
  return trials;
}

std::vector<Tensor> run_trial(const OpTrial& trial, const device::Device& device, int threads) {
  const auto run = [&](unsigned char content) {
    const plugins::CallGuard guard(trial.declared->label, "its kernel");  // names the op if the kernel crashes
    return execute(device, {.op = trial.op->name,
                            .attributes = trial.attributes,
                            .inputs = trial.operands,
                            .outputs = trial.results,
                            .scalars = {},
                            .threads = threads,
                            .content = content});
  };
  try {
    std::vector<Tensor> results = run(0xFF);
    const std::vector<Tensor> again = run(0x41);
    for (std::size_t o = 0; o < results.size(); ++o) {
      if (!same_bits(results[o], again[o])) {
        throw Failure(
            fmt::format("{}: the {} kernel's result {} depends on what its memory held before: some element "
                        "is not written, or read before",
                        trial.what, device.name() == "cpu" ? "float32" : "float64", o));
      }
    }
    return results;
  } catch (const Error& error) {
    throw Failure(fmt::format("{}: {}", trial.what, error.message()));
  }
}

void require_close(const OpTrial& trial, const std::string& what, const std::vector<Tensor>& found,
                   const std::vector<Tensor>& expected, double share) {
  for (std::size_t o = 0; o < expected.size(); ++o) {
    double largest = 1e-30;
    for (const double value : expected[o].values) {
      largest = std::isfinite(value) ? std::max(largest, std::abs(value)) : largest;
    }
    if (found[o].type.shape != expected[o].type.shape) {
      throw Failure(fmt::format("{}: {}: result {} is {}, expected {}", trial.what, what, o, to_string(found[o].type),
                                to_string(expected[o].type)));
    }
    for (std::size_t e = 0; e < expected[o].values.size(); ++e) {
      const double a = found[o].values[e];
      const double b = expected[o].values[e];
      const bool is_same = a == b || (std::isnan(a) && std::isnan(b));
      if (!is_same && !(std::abs(a - b) <= share * largest)) {
        throw Failure(
            fmt::format("{}: {}: element {} of result {} is {:.7g}, expected {:.7g}", trial.what, what, e, o, a, b));
      }
    }
  }
}

}  // namespace shardrun::conformance
