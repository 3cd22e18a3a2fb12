#include "core/graph/builder.h"
#include "core/graph/ops/sliding.h"

// Pooling over the last one or two dimensions: the largest element or the mean of each window.

namespace shardrun::graph {
namespace {

using Dims = std::vector<std::int64_t>;

/// The windows of a pool. Throws Error{shape_mismatch} if one could lie entirely in the padding.
std::vector<Sliding> pool_slidings(std::string_view op, const Attributes& attributes, const Operands& inputs) {
  const Dims& size = attributes.integers("size");
  if (size.empty() || size.size() > 2 || rank(inputs, 0) < size.size()) {
    throw Error(ErrorCode::shape_mismatch,
                fmt::format("op {}: size names the last one or two dimensions of x, not {}", op, size.size()));
  }
  std::vector<Sliding> slidings = check_sliding(op, attributes, size, inputs[0]);
  if (std::ranges::any_of(slidings, [](const Sliding& s) { return s.low >= s.size || s.high >= s.size; })) {
    throw Error(ErrorCode::shape_mismatch, fmt::format("op {}: padding has to be smaller than the window", op));
  }
  return slidings;
}

std::string pooled_text(const char* text, const Operands& inputs, std::size_t pooled) {
  return fmt::format(fmt::runtime(text), fmt::arg("a", leading(inputs, 0, pooled)), fmt::arg("r", pooled));
}

std::int64_t pool_flops(const OpShape& shape) {
  std::int64_t window = 1;
  for (const std::int64_t size : shape.attributes.integers("size")) {
    window *= size;
  }
  const bool is_gradient = shape.attributes.has("sizes");
  return window * element_count(is_gradient ? shape.inputs[0] : shape.outputs[0]);
}

Attributes with_sizes(FunctionBuilder& builder, const GradientRequest& request) {
  Attributes all = request.attributes;
  all.add("sizes", last_sizes(builder.type(request.inputs[0]), request.attributes.integers("size").size()));
  return all;
}

// max_pool: the second result is the position of the largest element, as an index into the flattened pooled dimensions
// of the whole x.

ShardingRule max_pool_rule(const Attributes& attributes, const Operands& inputs) {
  require_reals("max_pool", inputs);
  const std::vector<Sliding> slidings = pool_slidings("max_pool", attributes, inputs);
  ShardingRule rule = parse_rule(pooled_text("a*{a} s*{r} -> a*{a} s*{r}, a*{a} s*{r}", inputs, slidings.size()));
  slide(rule, inputs, 0, windows_of(slidings), result_sizes(slidings, inputs[0]));
  rule.dtypes = {std::nullopt, DType::i32};
  return rule;
}

ValueId max_pool_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  return builder.call("max_pool_gradient", {request.output_gradients[0], request.outputs[1]},
                      with_sizes(builder, request));
}

/// dx[j] = sum of dy[i] over the windows i whose largest element is j. `sizes`: the pooled dimensions of x.
ShardingRule max_pool_gradient_rule(const Attributes& attributes, const Operands& inputs) {
  const Dims& sizes = attributes.integers("sizes");
  ShardingRule rule = parse_rule(pooled_text("a*{a} s*{r}, a*{a} s*{r} -> a*{a} s*{r}", inputs, sizes.size()));
  const std::vector<Window> windows = transposed_windows(sliding_of(attributes, attributes.integers("size")));
  slide(rule, inputs, 0, windows, sizes);
  slide(rule, inputs, 1, windows, sizes);
  return linear_in(std::move(rule), {0});
}

ShardingRule average_pool_rule(const Attributes& attributes, const Operands& inputs) {
  require_reals("average_pool", inputs);
  const std::vector<Sliding> slidings = pool_slidings("average_pool", attributes, inputs);
  ShardingRule rule = parse_rule(pooled_text("a*{a} s*{r} -> a*{a} s*{r}", inputs, slidings.size()));
  slide(rule, inputs, 0, windows_of(slidings), result_sizes(slidings, inputs[0]));
  return linear_in(std::move(rule), {0});
}

ValueId average_pool_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  return builder.call("average_pool_gradient", {request.output_gradients[0]}, with_sizes(builder, request));
}

/// The attribute `sizes`: the sizes of the dimensions of x that the forward op has pooled.
ShardingRule average_pool_gradient_rule(const Attributes& attributes, const Operands& inputs) {
  const Dims& sizes = attributes.integers("sizes");
  ShardingRule rule = parse_rule(pooled_text("a*{a} s*{r} -> a*{a} s*{r}", inputs, sizes.size()));
  slide(rule, inputs, 0, transposed_windows(sliding_of(attributes, attributes.integers("size"))), sizes);
  return linear_in(std::move(rule), {0});
}

std::vector<AttributeSpec> pool_attributes() {
  return {AttributeSpec::integers("size", "of the window, in the last one or two dimensions"),
          AttributeSpec::integers("strides", "of each of them"),
          AttributeSpec::integers("padding", "before and after each of them: low and high, in turn")};
}

std::vector<AttributeSpec> average_attributes() {
  std::vector<AttributeSpec> all = pool_attributes();
  all.push_back(AttributeSpec::integer("counts_padding", "1 if padding counts as zeros, 0 if as nothing", 0, 1));
  return all;
}

const RegisterOp max_pool(
    {.name = "max_pool",
     .help = "the largest element of each window of the last dimensions, and its number in them; "
             "padding is never the largest",
     .attributes = pool_attributes(),
     .rule = max_pool_rule,
     .gradient = max_pool_gradient,
     .flops = pool_flops,
     .example = {.attributes = {{"size", Dims{3, 2}}, {"strides", Dims{2, 2}}, {"padding", Dims{1, 1, 0, 0}}},
                 .operands = {example({2, 3, 8, 6})}}});

const RegisterOp max_pool_backward({.name = "max_pool_gradient", .rule = max_pool_gradient_rule, .flops = pool_flops});

const RegisterOp average_pool({.name = "average_pool",
                               .help = "the mean of each window of the last dimensions",
                               .attributes = average_attributes(),
                               .rule = average_pool_rule,
                               .gradient = average_pool_gradient,
                               .flops = pool_flops,
                               .example = {.attributes = {{"size", Dims{3, 2}},
                                                          {"strides", Dims{2, 2}},
                                                          {"padding", Dims{1, 1, 0, 0}},
                                                          {"counts_padding", std::int64_t{0}}},
                                           .operands = {example({2, 3, 8, 6})}}});

const RegisterOp average_pool_backward({.name = "average_pool_gradient",
                                        .rule = average_pool_gradient_rule,
                                        .flops = pool_flops});

}  // namespace
}  // namespace shardrun::graph
