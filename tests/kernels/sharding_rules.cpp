// Checks that the kernels obey the sharding rules. If a factor of an op is cut and the op's kernel runs on each shard,
// the results are the parts of the whole (pass-through), or partial results whose sum, maximum or minimum is the whole
// (reduced). An operand that reads the factor through a window has the interval that the shard needs. Shards are
// uneven, and one of them may be empty.

#include <algorithm>
#include <numeric>

#include "tests/kernels/compare.h"
#include "tests/support/catch.h"
#include "tests/support/depth.h"

using namespace shardrun;
using namespace shardrun::test;
using graph::FactorClass;

namespace {

/// The ends of consecutive shards of a dimension.
using Cut = std::vector<std::int64_t>;

/// `unit`: shards begin at multiples of it.
std::vector<Cut> cuts(std::int64_t size, std::int64_t unit) {
  const auto at = [&](std::int64_t end) { return end / unit * unit; };
  const Cut uneven = {at(size / 5), at(size * 4 / 5), size};
  if constexpr (sanitized && !all_tests) {
    return {uneven};
  }
  std::vector<Cut> some = {uneven, {size, size}};
  if constexpr (all_tests) {
    some.push_back({at(size * 2 / 3), size});
  }
  return some;
}

/// The elements of `whole` along `dim` that a shard [begin, end) of the result reads through a window. Those of a
/// periodic dimension go on past its ends, and the origin may then be negative.
Tensor halo(const Tensor& whole, std::size_t dim, const Window& window, std::int64_t begin, std::int64_t end) {
  const std::int64_t size = whole.type.shape[dim];
  if (!window.wraps) {
    const auto [first, last] = window.reads(begin, end, size);
    return slice(whole, dim, first, last);
  }
  std::vector<Tensor> elements = {slice(whole, dim, 0, 0)};
  for (std::int64_t i = begin + window.first; i < end + window.last; ++i) {
    const std::int64_t wrapped = (i % size + size) % size;
    elements.push_back(slice(whole, dim, wrapped, wrapped + 1));
  }
  Tensor part = concatenate(elements, dim);
  part.origin[dim] = begin + window.first;
  return part;
}

Prepared shard(const Prepared& whole, graph::FactorId factor, std::int64_t begin, std::int64_t end) {
  Prepared part = whole;
  for (std::size_t i = 0; i < part.inputs.size(); ++i) {
    for (std::size_t d = 0; d < whole.rule.inputs[i].size(); ++d) {
      if (whole.rule.inputs[i][d] == factor) {
        const Window* window = whole.rule.window(i, d);
        part.inputs[i] =
            window == nullptr ? slice(part.inputs[i], d, begin, end) : halo(part.inputs[i], d, *window, begin, end);
      }
    }
  }
  for (std::size_t o = 0; o < part.outputs.size(); ++o) {
    for (std::size_t d = 0; d < whole.rule.outputs[o].size(); ++d) {
      if (whole.rule.outputs[o][d] == factor) {
        const Window* window = whole.rule.result_window(o, d);
        part.outputs[o] =
            window == nullptr ? slice(part.outputs[o], d, begin, end) : halo(part.outputs[o], d, *window, begin, end);
      }
    }
  }
  return part;
}

/// results[shard][output], each computed from its shard alone.
using ShardResults = std::vector<std::vector<Tensor>>;

ShardResults run_shards(const device::Device& device, const Prepared& whole, graph::FactorId factor, const Cut& cut) {
  ShardResults results;
  std::int64_t begin = 0;
  for (const std::int64_t end : cut) {
    results.push_back(run(device, shard(whole, factor, begin, end), {.threads = 2}));
    begin = end;
  }
  return results;
}

Tensor reduce(const std::vector<Tensor>& parts, graph::Reduction reduction) {
  Tensor sum = parts.front();
  for (std::size_t s = 1; s < parts.size(); ++s) {
    for (std::size_t i = 0; i < sum.values.size(); ++i) {
      sum.values[i] = combined(reduction, sum.values[i], parts[s].values[i]);
    }
  }
  return sum;
}

/// The sum of intervals of a dimension, each at its place.
Tensor add_intervals(const std::vector<Tensor>& parts, std::size_t dim, Tensor sum) {
  sum.values.assign(sum.values.size(), 0.0);
  std::int64_t inner = 1;
  for (std::size_t d = dim + 1; d < sum.type.shape.size(); ++d) {
    inner *= sum.type.shape[d];
  }
  const std::int64_t all = sum.type.shape[dim] * inner;
  for (const Tensor& part : parts) {
    const std::int64_t row = part.type.shape[dim] * inner;
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(part.values.size()); ++i) {
      sum.values[static_cast<std::size_t>(i / row * all + part.origin[dim] * inner + i % row)] +=
          part.values[static_cast<std::size_t>(i)];
    }
  }
  return sum;
}

/// Joins the shards' results as the rule says. An output without a pass-through factor is the same on every shard.
Tensor join(const ShardResults& results, const graph::ShardingRule& rule, graph::FactorId factor, std::size_t output,
            const Tensor& whole) {
  std::vector<Tensor> parts;
  for (const std::vector<Tensor>& result : results) {
    parts.push_back(result[output]);
  }
  const std::vector<graph::FactorId>& dims = rule.outputs[output];
  const auto dim = std::find(dims.begin(), dims.end(), factor);
  if (dim != dims.end()) {
    const auto d = static_cast<std::size_t>(dim - dims.begin());
    return rule.result_window(output, d) == nullptr ? concatenate(parts, d) : add_intervals(parts, d, whole);
  }
  const graph::Factor& cut = rule.factors[factor];
  return cut.kind == FactorClass::reduced ? reduce(parts, cut.reduction) : parts.back();
}

void check_shards(const device::Device& device, const Prepared& whole, Tolerance tolerance) {
  const std::vector<Tensor> expected = run(device, whole);
  for (const graph::FactorId f : whole.rule.factors.ids()) {
    const graph::Factor& factor = whole.rule.factors[f];
    if (factor.kind != FactorClass::pass_through && factor.kind != FactorClass::reduced) {
      continue;
    }
    for (const Cut& cut : cuts(factor.size, factor.unit)) {
      INFO(device.name() << ", factor " << factor.name << " of " << to_string(whole.rule) << " cut at " << cut.front()
                         << " into " << cut.size());
      const ShardResults results = run_shards(device, whole, f, cut);
      for (std::size_t o = 0; o < expected.size(); ++o) {
        CHECK(difference(join(results, whole.rule, f, o, expected[o]), expected[o], tolerance) == "");
      }
    }
  }
}

/// The operands, of which those in `varied` are drawn anew.
Prepared with_other_operands(const Prepared& prepared, const std::vector<std::size_t>& varied, std::uint64_t seed) {
  Prepared other = prepared;
  Random random(seed);
  for (const std::size_t i : varied) {
    random.fill_normal(other.inputs[i], 0, 1);
  }
  return other;
}

void check_additive(const Prepared& prepared, const std::vector<std::size_t>& operands) {
  const device::Device& reference = device::Device::find("reference");
  const Prepared a = with_other_operands(prepared, operands, 11);
  const Prepared b = with_other_operands(prepared, operands, 12);
  Prepared both = prepared;
  for (const std::size_t i : operands) {
    both.inputs[i] = reduce({a.inputs[i], b.inputs[i]}, graph::Reduction::sum);
  }
  const std::vector<Tensor> of_a = run(reference, a);
  const std::vector<Tensor> of_b = run(reference, b);
  const std::vector<Tensor> of_both = run(reference, both);
  for (std::size_t o = 0; o < of_both.size(); ++o) {
    CHECK(difference(of_both[o], reduce({of_a[o], of_b[o]}, graph::Reduction::sum), {.of_largest = 1e-12}) == "");
  }
}

void check_linearity(const Prepared& prepared) {
  if (prepared.rule.linearity == graph::Linearity::each) {
    for (const std::size_t operand : prepared.rule.linear) {
      INFO("operand " << operand);
      check_additive(prepared, {operand});
    }
  }
  if (prepared.rule.linearity == graph::Linearity::together) {
    std::vector<std::size_t> operands(prepared.inputs.size());
    std::iota(operands.begin(), operands.end(), 0);
    check_additive(prepared, operands);
  }
}

}  // namespace

TEST_CASE("sharded factors give the parts that their rules promise", "[kernels]") {
  for (const graph::Op* op : graph::all_ops()) {
    DYNAMIC_SECTION(op->name) {
      for (const Case& test : cases_of(op->name)) {
        if (largest_operand(test) <= 10000) {
          INFO(to_string(test));
          check_shards(device::Device::find("reference"), prepare(test), {.of_largest = 1e-13});
          check_shards(device::Device::find("cpu"), prepare(test), {.of_largest = 2e-6});
          check_shards(device::Device::find("cuda-emulated"), prepare(test), {.of_largest = 2e-6});
        }
      }
    }
  }
}

TEST_CASE("ops are linear in the operands that their rules call linear", "[kernels]") {
  for (const graph::Op* op : graph::all_ops()) {
    DYNAMIC_SECTION(op->name) {
      for (const Case& test : cases_of(op->name)) {
        if (largest_operand(test) <= 10000) {
          INFO(to_string(test));
          check_linearity(prepare(test));
        }
      }
    }
  }
}

TEST_CASE("ops called by models declare their attributes", "[kernels]") {
  for (const graph::Op* op : graph::all_ops()) {
    for (const Case& test : cases_of(op->name)) {
      INFO(to_string(test));
      if (!op->help.empty()) {
        CHECK_NOTHROW(graph::check_attributes(op->attributes, test.attributes));
      }
    }
  }
}
