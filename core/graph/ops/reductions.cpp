#include <numeric>

#include "core/graph/builder.h"
#include "core/graph/ops/shapes.h"

// Reductions over the dimensions `dims`, which the result lacks, and their inverse, `broadcast`.

namespace shardrun::graph {
namespace {

using Dims = std::vector<std::int64_t>;

/// The factors "a0 a1 …" of a tensor, except those of dimensions `dims`.
std::string without(std::size_t dimensions, const Dims& dims) {
  std::string text;
  for (std::size_t d = 0; d < dimensions; ++d) {
    if (std::ranges::find(dims, static_cast<std::int64_t>(d)) == dims.end()) {
      text += fmt::format(" a{}", d);
    }
  }
  return text.empty() ? "." : text;
}

void require_dims(std::string_view op, const Operands& inputs, std::size_t operand, const Dims& dims) {
  for (const std::int64_t dim : dims) {
    require_dimension(op, inputs, operand, dim);
    if (std::ranges::count(dims, dim) != 1) {
      throw Error(ErrorCode::shape_mismatch, fmt::format("op {} names dimension {} twice", op, dim));
    }
  }
}

ShardingRule reduction_rule(std::string_view op, const Operands& inputs, const Dims& dims, Reduction reduction) {
  require_reals(op, inputs);
  require_dims(op, inputs, 0, dims);
  const std::size_t a = rank(inputs, 0);
  ShardingRule rule = parse_rule(fmt::format("a*{}->{}", a, without(a, dims)));
  for (const std::int64_t dim : dims) {
    Factor& factor = rule.factors[rule.find(fmt::format("a{}", dim))];
    factor.kind = FactorClass::reduced;
    factor.reduction = reduction;
  }
  return rule;
}

ShardingRule sum_over_rule(const Attributes& attributes, const Operands& inputs) {
  return linear_in(float32_results(reduction_rule("sum", inputs, attributes.integers("dims"), Reduction::sum), {0}),
                   {0});
}

ShardingRule mean_rule(const Attributes& attributes, const Operands& inputs) {
  return linear_in(float32_results(reduction_rule("mean", inputs, attributes.integers("dims"), Reduction::sum), {0}),
                   {0});
}

ShardingRule max_rule(const Attributes& attributes, const Operands& inputs) {
  return reduction_rule("max", inputs, attributes.integers("dims"), Reduction::max);
}

ShardingRule min_rule(const Attributes& attributes, const Operands& inputs) {
  return reduction_rule("min", inputs, attributes.integers("dims"), Reduction::min);
}

/// The index of the largest element needs all elements, so that dimension is not split.
ShardingRule argmax_rule(const Attributes& attributes, const Operands& inputs) {
  require_reals("argmax", inputs);
  const std::int64_t dim = attributes.integer("dim");
  require_dimension("argmax", inputs, 0, dim);
  const std::size_t a = rank(inputs, 0);
  const std::string searched = fmt::format("a{}", dim);
  ShardingRule rule = parse_rule(fmt::format("a*{}->{}", a, without(a, {dim})), {.whole = searched});
  rule.dtypes = {DType::i32};
  return rule;
}

/// The first operand has the second's dimensions except `dims`.
ShardingRule broadcast_dims_rule(const Attributes& attributes, const Operands& inputs) {
  const Dims& dims = attributes.integers("dims");
  require_reals("broadcast", inputs);
  require_dims("broadcast", inputs, 1, dims);
  const std::size_t a = rank(inputs, 1);
  ShardingRule rule = parse_rule(fmt::format("{}, a*{} -> a*{}", without(a, dims), a, a));
  rule.dtypes = {inputs.size() == 2 ? std::optional(inputs[1].dtype) : std::nullopt};
  return linear_in(std::move(rule), {0});
}

ValueId broadcast_like(FunctionBuilder& builder, ValueId value, const GradientRequest& request, double scale) {
  return builder.call("broadcast", {value, request.inputs[0]},
                      {{"dims", request.attributes.integers("dims")}, {"scale", scale}});
}

ValueId sum_over_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  return broadcast_like(builder, request.output_gradients[0], request, 1);
}

ValueId mean_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  double count = 1;
  for (const std::int64_t dim : request.attributes.integers("dims")) {
    count *= static_cast<double>(builder.type(request.inputs[0]).shape[static_cast<std::size_t>(dim)]);
  }
  return broadcast_like(builder, request.output_gradients[0], request, 1 / count);
}

/// The gradient of max and min. Elements that equal the result share it equally.
ValueId extreme_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  const ValueId result = broadcast_like(builder, request.outputs[0], request, 1);
  const ValueId mask = builder.call("equal", {request.inputs[0], result});
  const ValueId count = builder.call("sum", {mask}, {{"dims", request.attributes.integers("dims")}});
  const ValueId share = builder.call("divide", {request.output_gradients[0], count});
  return builder.call("multiply", {mask, broadcast_like(builder, share, request, 1)});
}

ValueId broadcast_dims_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  if (request.input != 0) {
    return {};
  }
  const ValueId sum =
      builder.call("sum", {request.output_gradients[0]}, {{"dims", request.attributes.integers("dims")}});
  const double scale = request.attributes.real("scale");
  return scale == 1 ? sum : builder.call("linear_combination", {sum}, {{"coefficients", std::vector<double>{scale}}});
}

const RegisterOp sum_over({.name = "sum",
                           .help = "the sum of x over dimensions",
                           .attributes = {AttributeSpec::integers("dims", "the dimensions, which the result lacks")},
                           .rule = sum_over_rule,
                           .gradient = sum_over_gradient,
                           .flops = flops_per_element<1>,
                           .example = {.attributes = {{"dims", std::vector<std::int64_t>{1}}},
                                       .operands = {example({2, 3, 4})}}});
const RegisterOp mean_over({.name = "mean",
                            .help = "the mean of x over dimensions",
                            .attributes = {AttributeSpec::integers("dims", "the dimensions, which the result lacks")},
                            .rule = mean_rule,
                            .gradient = mean_gradient,
                            .flops = flops_per_element<1>,
                            .example = {.attributes = {{"dims", std::vector<std::int64_t>{1}}},
                                        .operands = {example({2, 3, 4})}}});
const RegisterOp max_over({.name = "max",
                           .help = "the largest of x over dimensions; equal elements share the gradient",
                           .attributes = {AttributeSpec::integers("dims", "the dimensions, which the result lacks")},
                           .rule = max_rule,
                           .gradient = extreme_gradient,
                           .flops = flops_per_element<1>,
                           .example = {.attributes = {{"dims", std::vector<std::int64_t>{1}}},
                                       .operands = {example({2, 3, 4})}}});
const RegisterOp min_over({.name = "min",
                           .help = "the smallest of x over dimensions; equal elements share the gradient",
                           .attributes = {AttributeSpec::integers("dims", "the dimensions, which the result lacks")},
                           .rule = min_rule,
                           .gradient = extreme_gradient,
                           .flops = flops_per_element<1>,
                           .example = {.attributes = {{"dims", std::vector<std::int64_t>{1}}},
                                       .operands = {example({2, 3, 4})}}});

const RegisterOp argmax({.name = "argmax",
                         .help = "the index of the first of the largest elements of x along a dimension",
                         .attributes = {AttributeSpec::integer("dim", "the dimension, which the result lacks", 0, 7)},
                         .rule = argmax_rule,
                         .stops_gradient = true,
                         .flops = flops_per_element<1>,
                         .example = {.attributes = {{"dim", std::int64_t{1}}}, .operands = {example({2, 3, 4})}}});

const RegisterOp broadcast({.name = "broadcast",
                            .help = "scale x, repeated to the shape of y, whose elements are not read",
                            .attributes = {AttributeSpec::integers("dims", "the dimensions of y that x lacks"),
                                           AttributeSpec::real("scale", "a number")},
                            .rule = broadcast_dims_rule,
                            .gradient = broadcast_dims_gradient,
                            .cheap = true,
                            .example = {.attributes = {{"dims", std::vector<std::int64_t>{1}}, {"scale", 1.0}},
                                        .operands = {example({2, 4}), example({2, 3, 4})}}});

ShardingRule sum_leading_rule(const Attributes& attributes, const Operands& inputs) {
  require_reals("sum_leading", inputs);
  const std::size_t k = static_cast<std::size_t>(attributes.integer("keep"));
  const std::size_t l = leading(inputs, 0, k);
  const std::string reduced = fmt::format("l*{}", l);
  return linear_in(parse_rule(fmt::format("l*{} k*{} -> k*{}", l, k, k), {.reduced = reduced}), {0});
}

ShardingRule whole_sum_rule(const Operands& inputs) {
  require_reals("sum_all", inputs);
  const std::size_t a = rank(inputs, 0);
  const std::string reduced = fmt::format("a*{}", a);
  return float32_results(parse_rule(fmt::format("a*{} -> .", a), {.reduced = reduced}), {0});
}

ShardingRule sum_all_rule(const Attributes&, const Operands& inputs) { return linear_in(whole_sum_rule(inputs), {0}); }

ValueId sum_all_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  return builder.call("broadcast_scalar", {request.output_gradients[0], request.inputs[0]},
                      {{"scale", request.attributes.real("scale")}});
}

ValueId sum_leading_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  std::vector<std::int64_t> dims(leading(std::vector{builder.type(request.inputs[0])}, 0,
                                         static_cast<std::size_t>(request.attributes.integer("keep"))));
  std::iota(dims.begin(), dims.end(), 0);
  return builder.call("broadcast", {request.output_gradients[0], request.inputs[0]}, {{"dims", dims}, {"scale", 1.0}});
}

ValueId square_sum_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  const ValueId spread =
      builder.call("broadcast_scalar", {request.output_gradients[0], request.inputs[0]}, {{"scale", 2.0}});
  return builder.call("multiply", {spread, request.inputs[0]});
}

ShardingRule square_sum_rule(const Attributes&, const Operands& inputs) { return whole_sum_rule(inputs); }

ShardingRule clip_scale_rule(const Attributes&, const Operands&) { return parse_rule(". -> ., ."); }

const RegisterOp sum_leading(
    {.name = "sum_leading",
     .help = "the sum of x over its leading dimensions",
     .attributes = {AttributeSpec::integer("keep", "how many trailing dimensions are kept", 0, 8)},
     .rule = sum_leading_rule,
     .gradient = sum_leading_gradient,
     .flops = flops_per_element<1>,
     .accumulates = true,
     .example = {.attributes = {{"keep", std::int64_t{1}}}, .operands = {example({2, 3, 4})}}});

const RegisterOp sum_all({.name = "sum_all",
                          .help = "scale times the sum of all elements of x",
                          .attributes = {AttributeSpec::real("scale", "a number")},
                          .rule = sum_all_rule,
                          .gradient = sum_all_gradient,
                          .flops = flops_per_element<1>,
                          .accumulates = true,
                          .example = {.attributes = {{"scale", 1.0}}, .operands = {example({2, 3})}}});

/// Sum of squares. Each element counts once, however the tensor is split.
const RegisterOp square_sum({.name = "square_sum",
                             .help = "the sum of the squares of all elements of x",
                             .rule = square_sum_rule,
                             .gradient = square_sum_gradient,
                             .flops = flops_per_element<2>,
                             .example = {.operands = {example({2, 3})}}});

/// Computes from a squared norm the factor that limits the norm (Pascanu et al. 2013, section 3.2), and the norm
/// itself.
const RegisterOp clip_scale({.name = "clip_scale", .rule = clip_scale_rule});

ShardingRule cumulative_sum_rule(const Attributes& attributes, const Operands& inputs) {
  const std::int64_t dim = attributes.integer("dim");
  require_reals("cumulative_sum", inputs);
  require_dimension("cumulative_sum", inputs, 0, dim);
  const std::size_t a = rank(inputs, 0);
  const std::string summed = fmt::format("a{}", dim);
  return linear_in(parse_rule(fmt::format("a*{} -> a*{}", a, a), {.whole = summed}), {0});
}

/// Each element is part of its own sum and all later ones, so its gradient is a cumulative sum in the other direction.
ValueId cumulative_sum_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  return builder.call(
      "cumulative_sum", {request.output_gradients[0]},
      {{"dim", request.attributes.integer("dim")}, {"reverse", 1 - request.attributes.integer("reverse")}});
}

const RegisterOp cumulative_sum({.name = "cumulative_sum",
                                 .help = "for each element, the sum of x up to it along a dimension",
                                 .attributes = {AttributeSpec::integer("dim", "the dimension", 0, 7),
                                                AttributeSpec::integer("reverse", "1 for the sum from the element on",
                                                                       0, 1)},
                                 .rule = cumulative_sum_rule,
                                 .gradient = cumulative_sum_gradient,
                                 .in_place = {{0, 0}},
                                 .cheap = true,
                                 .example = {.attributes = {{"dim", std::int64_t{1}}, {"reverse", std::int64_t{0}}},
                                             .operands = {example({2, 3})}}});

}  // namespace
}  // namespace shardrun::graph
