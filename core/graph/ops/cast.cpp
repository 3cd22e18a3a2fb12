#include "core/base/error.h"
#include "core/graph/builder.h"
#include "core/graph/ops/shapes.h"

// The same numbers in another element type, rounded to nearest with ties to even. Conversions to integers truncate.

namespace shardrun::graph {
namespace {

/// A partial operand is reduced first: casting the parts would round more than once.
ShardingRule cast_rule(const Attributes& attributes, const Operands& inputs) {
  const std::string& name = attributes.text("dtype");
  const std::optional<DType> dtype = find_dtype(name);
  if (!dtype) {
    throw Error(ErrorCode::internal, fmt::format("op cast knows no element type '{}'", name));
  }
  ShardingRule rule = elementwise_rule(inputs, 1);
  rule.dtypes = {dtype};
  return rule;
}

/// There is no gradient through integers.
ValueId cast_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  if (!is_real(builder.type(request.inputs[0]).dtype) || !is_real(builder.type(request.outputs[0]).dtype)) {
    return {};
  }
  return builder.call("cast", {request.output_gradients[0]},
                      {{"dtype", to_string(builder.type(request.inputs[0]).dtype)}});
}

const RegisterOp cast({.name = "cast",
                       .help = "x in another element type, rounded to nearest; reals that become integers are cut",
                       .attributes = {AttributeSpec::text("dtype", "the type", {"f32", "bf16", "i32"})},
                       .rule = cast_rule,
                       .gradient = cast_gradient,
                       .flops = flops_per_element<0>,
                       .cheap = true,
                       .example = {.attributes = {{"dtype", "f32"}}, .operands = {example({2, 3})}}});

}  // namespace
}  // namespace shardrun::graph
