#include "core/graph/builder.h"
#include "core/graph/ops/sliding.h"

// Convolutions of one or two dimensions; strictly, cross-correlations.
// x: [batch, in, H, W]   w: [out, in / groups, kernel H, kernel W]   y: [batch, out, H', W']; x is padded with zeros.
// With groups, splitting a channel dimension could cut through a group, so `in` and `out` are whole.

namespace shardrun::graph {
namespace {

using Dims = std::vector<std::int64_t>;

/// Throws Error{shape_mismatch} unless x and w have the same rank, 3 or 4, and matching channels.
void require_channels(const Attributes& attributes, const Operands& inputs) {
  const std::int64_t groups = attributes.integer("groups");
  if (inputs.size() != 2 || rank(inputs, 0) != rank(inputs, 1) || rank(inputs, 0) < 3 || rank(inputs, 0) > 4) {
    throw Error(ErrorCode::shape_mismatch,
                "op conv takes x [batch, in, H, W] and w [out, in / groups, kernel H, kernel W], or both without W");
  }
  if (inputs[0].shape[1] != inputs[1].shape[1] * groups || inputs[1].shape[0] % groups != 0) {
    throw Error(
        ErrorCode::shape_mismatch,
        fmt::format("op conv: {} channels of x {} and {} of the result do not fit w {} in {} groups",
                    inputs[0].shape[1], to_string(inputs[0]), inputs[1].shape[0], to_string(inputs[1]), groups));
  }
}

/// The rule in `text`. {r} is replaced by the number of sliding dimensions, and {g} by w's input channels: "g" if there
/// are groups, else "i". `channels`: reduced unless there are groups. `reduced`: the other reduced factors.
ShardingRule rule_of(const Attributes& attributes, std::size_t sliding, const char* text, std::string reduced,
                     const char* channels) {
  const bool grouped = attributes.integer("groups") > 1;
  if (!grouped) {
    reduced += fmt::format(" {}", channels);
  }
  const std::string whole = fmt::format("k*{}{}", sliding, grouped ? " i o g" : "");
  const std::string rule = fmt::format(fmt::runtime(text), fmt::arg("r", sliding), fmt::arg("g", grouped ? "g" : "i"));
  return linear_in(parse_rule(rule, {.reduced = reduced, .whole = whole}), {0, 1});
}

ShardingRule conv_rule(const Attributes& attributes, const Operands& inputs) {
  require_reals("conv", inputs);
  require_channels(attributes, inputs);
  const std::size_t r = rank(inputs, 0) - 2;
  const std::vector<Sliding> slidings = check_sliding("conv", attributes, last_sizes(inputs[1], r), inputs[0]);
  ShardingRule rule = rule_of(attributes, r, "n i s*{r}, o {g} k*{r} -> n o s*{r}", "", "i");
  slide(rule, inputs, 0, windows_of(slidings), result_sizes(slidings, inputs[0]));
  return rule;
}

/// A convolution has two FLOPs per element of y for each weight of an output channel.
std::int64_t flops_of(const TensorType& y, const TensorType& w) {
  return 2 * element_count(y) * element_count(Dims(w.shape.begin() + 1, w.shape.end()));
}

std::int64_t conv_flops(const OpShape& shape) { return flops_of(shape.outputs[0], shape.inputs[1]); }

/// A convolution's attributes plus `sizes`, the result's dimensions from 2 on, and `axes`, the names of all its axes.
Attributes with_result(const Attributes& attributes, const TensorType& result) {
  Attributes all = attributes;
  all.add("sizes", last_sizes(result, result.shape.size() - 2));
  std::string names;
  for (const std::string& axis : result.axes) {
    names += (names.empty() ? "" : ",") + axis;
  }
  all.add("axes", names);
  return all;
}

/// Word `number` of the attribute `axes`: the name of an axis.
std::string axis_of(const Attributes& attributes, std::size_t number) {
  const std::string& text = attributes.text("axes");
  std::size_t begin = 0;
  for (; number > 0; --number) {
    begin = text.find(',', begin) + 1;
  }
  return text.substr(begin, text.find(',', begin) - begin);
}

ValueId conv_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  const TensorType& result = builder.type(request.inputs[request.input]);
  return builder.call(request.input == 0 ? "conv_gradient_input" : "conv_gradient_weights",
                      {request.output_gradients[0], request.inputs[1 - request.input]},
                      with_result(request.attributes, result));
}

// conv_gradient_input: dx from dy and w. `sizes`: the sliding dimensions of x.

ShardingRule conv_input_rule(const Attributes& attributes, const Operands& inputs) {
  const Dims& sizes = attributes.integers("sizes");
  const std::size_t r = sizes.size();
  ShardingRule rule = rule_of(attributes, r, "n o s*{r}, o {g} k*{r} -> n i s*{r}", "", "o");
  slide(rule, inputs, 0, transposed_windows(sliding_of(attributes, last_sizes(inputs[1], r))), sizes);
  if (attributes.integer("groups") > 1) {
    Factor& channels = rule.factors[rule.find("i")];
    channels.size = inputs[1].shape[1] * attributes.integer("groups");
    channels.axis = axis_of(attributes, 1);
  }
  return rule;
}

std::int64_t conv_input_flops(const OpShape& shape) { return flops_of(shape.inputs[0], shape.inputs[1]); }

// conv_gradient_weights: dw from dy and x. `sizes`: the dimensions of the kernel.

ShardingRule conv_weights_rule(const Attributes& attributes, const Operands& inputs) {
  const Dims& sizes = attributes.integers("sizes");
  const std::size_t r = sizes.size();
  ShardingRule rule = rule_of(attributes, r, "n o s*{r}, n i s*{r} -> o {g} k*{r}", fmt::format("n s*{}", r), "");
  slide(rule, inputs, 1, windows_of(sliding_of(attributes, sizes)), last_sizes(inputs[0], r));
  for (std::size_t d = 0; d < r; ++d) {
    Factor& kernel = rule.factors[rule.find(fmt::format("k{}", d))];
    kernel.size = sizes[d];
    kernel.axis = axis_of(attributes, 2 + d);
  }
  if (attributes.integer("groups") > 1) {
    Factor& channels = rule.factors[rule.find("g")];
    channels.size = inputs[1].shape[1] / attributes.integer("groups");
    channels.axis = axis_of(attributes, 1);
  }
  return rule;
}

std::int64_t conv_weights_flops(const OpShape& shape) { return flops_of(shape.inputs[0], shape.outputs[0]); }

const RegisterOp conv(
    {.name = "conv",
     .help = "the convolution of x [batch, in, H, W] with w [out, in / groups, kernel H, kernel W], or of both without "
             "W; of neighbours that are split along H or W, only the edges move",
     .attributes = {AttributeSpec::integers("strides", "of each dimension that slides"),
                    AttributeSpec::integers("padding", "zeros before and after each of them: low and high, in turn"),
                    AttributeSpec::integers("dilation", "the distance of the kernel's elements in each of them"),
                    AttributeSpec::integer("groups", "into which the channels are divided; with several they are whole",
                                           1)},
     .rule = conv_rule,
     .gradient = conv_gradient,
     .flops = conv_flops,
     .example = {.attributes = {{"strides", Dims{2, 1}},
                                {"padding", Dims{1, 1, 0, 0}},
                                {"dilation", Dims{1, 1}},
                                {"groups", std::int64_t{1}}},
                 .operands = {example({2, 3, 8, 6}), example({4, 3, 3, 3})}}});

const RegisterOp conv_gradient_input({.name = "conv_gradient_input",
                                      .rule = conv_input_rule,
                                      .flops = conv_input_flops});

const RegisterOp conv_gradient_weights({.name = "conv_gradient_weights",
                                        .rule = conv_weights_rule,
                                        .flops = conv_weights_flops,
                                        .accumulates = true});

}  // namespace
}  // namespace shardrun::graph
