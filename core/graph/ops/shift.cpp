#include <algorithm>

#include "core/base/error.h"
#include "core/graph/builder.h"
#include "core/graph/ops/shapes.h"

namespace shardrun::graph {
namespace {

/// With a larger offset, the sum of an index and an offset might not fit 64 bits.
constexpr std::int64_t most_offset = std::int64_t{1} << 62U;

ShardingRule shift_rule(const Attributes& attributes, const Operands& inputs) {
  require_reals("shift", inputs);
  const auto dimension = static_cast<std::size_t>(attributes.integer("dim"));
  if (dimension >= rank(inputs, 0)) {
    throw Error(ErrorCode::shape_mismatch,
                fmt::format("shift along dimension {} of an operand with {}", dimension, rank(inputs, 0)));
  }
  ShardingRule rule = elementwise_rule(inputs, 1);
  const std::int64_t size = inputs[0].shape[dimension];
  const bool periodic = attributes.text("boundary") == "periodic";
  // Offsets that read the same elements are replaced by one between -size and size.
  const std::int64_t given = attributes.integer("offset");
  const std::int64_t offset = periodic ? given % std::max<std::int64_t>(size, 1) : std::clamp(given, -size, size);
  add_window(rule, inputs, 0, dimension, {.first = offset, .last = offset, .wraps = periodic}, size);
  // If the constant outside is not 0, the op is affine: on a partial operand, every shard would add the constant.
  return periodic || attributes.real("value") == 0 ? linear_in(std::move(rule), {0}) : rule;
}

ValueId shift_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  return builder.call("shift", {request.output_gradients[0]},
                      {{"dim", request.attributes.integer("dim")},
                       {"offset", -request.attributes.integer("offset")},
                       {"boundary", request.attributes.text("boundary")},
                       {"value", 0.0}});
}

/// y[i] = x[i + offset] along one dimension. Outside of x it wraps around (periodic) or is a constant (fixed).
const RegisterOp shift(
    {.name = "shift",
     .help = "y[i] = x[i + offset] along a dimension; of neighbours that are split, only the edges move",
     .attributes = {AttributeSpec::integer("dim", "the dimension", 0, 7),
                    AttributeSpec::integer("offset", "may be negative", -most_offset, most_offset),
                    AttributeSpec::text("boundary", "periodic or fixed", {"periodic", "fixed"}),
                    AttributeSpec::real("value", "outside of a fixed boundary")},
     .rule = shift_rule,
     .gradient = shift_gradient,
     .shifts = true,
     .example = {
         .attributes = {{"dim", std::int64_t{0}}, {"offset", std::int64_t{1}}, {"boundary", "fixed"}, {"value", 0.0}},
         .operands = {example({4, 3})}}});

}  // namespace
}  // namespace shardrun::graph
