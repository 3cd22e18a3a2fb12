#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

#include "core/graph/builder.h"
#include "core/graph/ops/shapes.h"
#include "core/graph/regroup.h"

// Ops that move elements without changing them.

namespace shardrun::graph {
namespace {

using Dims = std::vector<std::int64_t>;

constexpr std::int64_t most_padding = std::int64_t{1} << 40U;

/// Completes a rule. The result has the operand's element type. Real operands can stay partial; integers never are.
ShardingRule moving(ShardingRule rule, const Operands& inputs) {
  rule.dtypes = {inputs.empty() ? std::nullopt : std::optional(inputs[0].dtype)};
  return inputs.empty() || is_real(inputs[0].dtype) ? linear_in(std::move(rule), {0}) : rule;
}

std::string factor_list(std::size_t count, std::size_t changed, const char* other) {
  std::string text;
  for (std::size_t d = 0; d < count; ++d) {
    text += d == changed ? fmt::format(" {}", other) : fmt::format(" a{}", d);
  }
  return text;
}

/// Index i of the result is the operand's index i + shift.
Window shifted_by(std::int64_t shift) { return {.first = shift, .last = shift}; }

void set_size(ShardingRule& rule, std::string_view factor, std::int64_t size, std::string axis) {
  Factor& found = rule.factors[rule.find(factor)];
  found.size = size;
  found.axis = std::move(axis);
}

// transpose: dimension d of y is dimension `order[d]` of x.

ShardingRule transpose_rule(const Attributes& attributes, const Operands& inputs) {
  const Dims& order = attributes.integers("order");
  const std::size_t a = rank(inputs, 0);
  Dims sorted = order;
  std::ranges::sort(sorted);
  Dims expected(a);
  std::iota(expected.begin(), expected.end(), 0);
  if (sorted != expected) {
    throw Error(ErrorCode::shape_mismatch, fmt::format("op transpose: order [{}] must name each of {} dimensions once",
                                                       fmt::join(order, ", "), a));
  }
  std::string text;
  for (const std::int64_t d : order) {
    text += fmt::format(" a{}", d);
  }
  return moving(parse_rule(fmt::format("a*{}->{}", a, text.empty() ? "." : text)), inputs);
}

ValueId transpose_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  const Dims& order = request.attributes.integers("order");
  Dims inverse(order.size());
  for (std::size_t d = 0; d < order.size(); ++d) {
    inverse[static_cast<std::size_t>(order[d])] = static_cast<std::int64_t>(d);
  }
  return builder.call("transpose", {request.output_gradients[0]}, {{"order", inverse}});
}

// reshape: the same elements in row-major order, with the shape `shape` and the axis names `axes`: "batch heads
// head_dim". Two axes may share a name, as in the product of a batch with itself, because factors belong to dimensions.

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> found;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    found.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return found;
}

/// The number of elements of a shape; nothing if a size is below 1 or the number exceeds 64 bits.
std::optional<std::int64_t> count_of(const Dims& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    if (size < 1 || __builtin_mul_overflow(count, size, &count)) {
      return std::nullopt;
    }
  }
  return count;
}

std::int64_t product(const Dims& shape, std::size_t begin, std::size_t end) {
  return std::accumulate(shape.begin() + static_cast<std::ptrdiff_t>(begin),
                         shape.begin() + static_cast<std::ptrdiff_t>(end), std::int64_t{1}, std::multiplies<>());
}

/// The window through which a group's first dimension in the result reads the group's first one in the operand. One
/// index of that dimension covers `to` elements in the result, and `from` elements in the operand.
Window compound_window(std::int64_t from, std::int64_t to) {
  return {.stride = to, .divisor = from, .first = 1 - from, .last = to - 1};
}

/// Dimensions that stay as they are keep their split. In a group of dimensions that is reshaped, the first dimension
/// keeps its split and is read through a window; the others are whole.
ShardingRule reshape_rule(const Attributes& attributes, const Operands& inputs) {
  const Dims& to = attributes.integers("shape");
  const std::vector<std::string> axes = words(attributes.text("axes"));
  const Dims from = inputs.empty() ? Dims{} : inputs[0].shape;
  const bool named = axes.size() == to.size() && std::ranges::find(axes, "") == axes.end();
  if (count_of(to) != element_count(from) || !named) {
    throw Error(ErrorCode::shape_mismatch, fmt::format("op reshape: {} cannot become [{}] with axes \"{}\"",
                                                       inputs.empty() ? "nothing" : to_string(inputs[0]),
                                                       fmt::join(to, ", "), attributes.text("axes")));
  }
  std::vector<Regrouped> groups;
  for_each_group(from, to, [&](const Regrouped& group) { groups.push_back(group); });
  std::string operand;
  std::string result;
  std::string whole;
  for (const Regrouped& group : groups) {
    for (std::size_t d = group.from; d < group.from_end; ++d) {
      const bool first = group.has_both() && d == group.from;
      operand += first ? fmt::format(" b{}", group.to) : fmt::format(" a{}", d);
      whole += first ? "" : fmt::format(" a{}", d);
    }
    for (std::size_t d = group.to; d < group.to_end; ++d) {
      result += fmt::format(" b{}", d);
      whole += group.has_both() && d == group.to ? "" : fmt::format(" b{}", d);
    }
  }
  ShardingRule rule = parse_rule(fmt::format("{}->{}", operand.empty() ? "." : operand, result.empty() ? "." : result),
                                 {.whole = whole});
  for (const Regrouped& group : groups) {
    if (group.has_both() && !group.is_kept()) {
      add_window(
          rule, inputs, 0, group.from,
          compound_window(product(from, group.from + 1, group.from_end), product(to, group.to + 1, group.to_end)),
          to[group.to]);
    }
    for (std::size_t d = group.to; d < group.to_end; ++d) {
      set_size(rule, fmt::format("b{}", d), to[d], axes[d]);
    }
  }
  return moving(std::move(rule), inputs);
}

ValueId reshape_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  const TensorType& type = builder.type(request.inputs[0]);
  return builder.call("reshape", {request.output_gradients[0]},
                      {{"shape", type.shape}, {"axes", fmt::format("{}", fmt::join(type.axes, " "))}});
}

// concatenate: all operands, one after the other along dimension `dim`.

ShardingRule concatenate_rule(const Attributes& attributes, const Operands& inputs) {
  const std::int64_t dim = attributes.integer("dim");
  const auto changed = static_cast<std::size_t>(dim);
  std::string text;
  std::int64_t size = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    require_dimension("concatenate", inputs, i, dim);
    if (rank(inputs, i) != rank(inputs, 0)) {
      throw Error(ErrorCode::shape_mismatch, fmt::format("op concatenate: {} and {} differ in more than dimension {}",
                                                         to_string(inputs[0]), to_string(inputs[i]), dim));
    }
    if (is_real(inputs[i].dtype) != is_real(inputs[0].dtype)) {
      throw Error(ErrorCode::shape_mismatch,
                  fmt::format("op concatenate: {} and {} cannot stand in one tensor: cast one of them",
                              to_string(inputs[0]), to_string(inputs[i])));
    }
    text += (i == 0 ? "" : ",") + factor_list(rank(inputs, i), changed, "y");
    size += inputs[i].shape[changed];
  }
  if (inputs.empty()) {
    throw Error(ErrorCode::shape_mismatch, "op concatenate needs an operand");
  }
  ShardingRule rule = parse_rule(fmt::format("{}->{}", text, factor_list(rank(inputs, 0), changed, "y")));
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    add_window(rule, inputs, i, changed, shifted_by(-begin), size);
    begin += inputs[i].shape[changed];
  }
  rule.factors[rule.find("y")].axis = inputs[0].axes[changed];
  rule.dtypes = {inputs[0].dtype};
  rule.linearity = is_real(inputs[0].dtype) ? Linearity::together : Linearity::none;
  return rule;
}

ValueId concatenate_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  const std::int64_t dim = request.attributes.integer("dim");
  const auto size_of = [&](std::size_t i) {
    return builder.type(request.inputs[i]).shape[static_cast<std::size_t>(dim)];
  };
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < request.input; ++i) {
    begin += size_of(i);
  }
  return builder.call("slice", {request.output_gradients[0]},
                      {{"dim", dim}, {"begin", begin}, {"end", begin + size_of(request.input)}});
}

// slice: indices `begin` to `end` (exclusive) of dimension `dim`. pad: adds `low` elements with value `value` before
// dimension `dim`, and `high` elements after it.

/// The rule if index i of the result's dimension, of size `size`, is the operand's index i + shift.
ShardingRule resized(std::string_view op, const Attributes& attributes, const Operands& inputs, std::int64_t shift,
                     std::int64_t size) {
  const auto dim = static_cast<std::size_t>(attributes.integer("dim"));
  const std::size_t a = rank(inputs, 0);
  ShardingRule rule = parse_rule(fmt::format("{}->{}", factor_list(a, dim, "y"), factor_list(a, dim, "y")));
  add_window(rule, inputs, 0, dim, shifted_by(shift), size);
  if (size <= 0) {
    throw Error(ErrorCode::shape_mismatch, fmt::format("op {}: nothing of dimension {} is left", op, dim));
  }
  return rule;
}

ShardingRule slice_rule(const Attributes& attributes, const Operands& inputs) {
  const std::int64_t dim = attributes.integer("dim");
  require_dimension("slice", inputs, 0, dim);
  const std::int64_t begin = attributes.integer("begin");
  const std::int64_t end = attributes.integer("end");
  if (begin < 0 || end > inputs[0].shape[static_cast<std::size_t>(dim)]) {
    throw Error(ErrorCode::shape_mismatch, fmt::format("op slice: {} has no indices {} to {} along dimension {}",
                                                       to_string(inputs[0]), begin, end, dim));
  }
  return moving(resized("slice", attributes, inputs, begin, end - begin), inputs);
}

ValueId slice_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  const std::int64_t dim = request.attributes.integer("dim");
  const std::int64_t size = builder.type(request.inputs[0]).shape[static_cast<std::size_t>(dim)];
  return builder.call("pad", {request.output_gradients[0]},
                      {{"dim", dim},
                       {"low", request.attributes.integer("begin")},
                       {"high", size - request.attributes.integer("end")},
                       {"value", 0.0}});
}

ShardingRule pad_rule(const Attributes& attributes, const Operands& inputs) {
  const std::int64_t dim = attributes.integer("dim");
  require_dimension("pad", inputs, 0, dim);
  require_reals("pad", inputs);
  const std::int64_t low = attributes.integer("low");
  const std::int64_t high = attributes.integer("high");
  if (low < 0 || high < 0) {
    throw Error(ErrorCode::shape_mismatch, fmt::format("op pad: {} and {} elements cannot be added", low, high));
  }
  ShardingRule rule =
      resized("pad", attributes, inputs, -low, inputs[0].shape[static_cast<std::size_t>(dim)] + low + high);
  return attributes.real("value") == 0 ? linear_in(std::move(rule), {0}) : rule;
}

ValueId pad_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  const std::int64_t dim = request.attributes.integer("dim");
  const std::int64_t low = request.attributes.integer("low");
  const std::int64_t size = builder.type(request.inputs[0]).shape[static_cast<std::size_t>(dim)];
  return builder.call("slice", {request.output_gradients[0]}, {{"dim", dim}, {"begin", low}, {"end", low + size}});
}

const RegisterOp transpose(
    {.name = "transpose",
     .help = "x with its dimensions in another order",
     .attributes = {AttributeSpec::integers("order", "for each dimension of the result, that of x")},
     .rule = transpose_rule,
     .gradient = transpose_gradient,
     .flops = flops_per_element<0>,
     .example = {.attributes = {{"order", std::vector<std::int64_t>{0, 2, 1}}}, .operands = {example({2, 3, 4})}}});
const RegisterOp reshape(
    {.name = "reshape",
     .help =
         "the elements of x in the same order, with other dimensions; those that stay, and the first of those that are "
         "merged or taken apart, keep their split",
     .attributes = {AttributeSpec::integers("shape", "the sizes of the result"),
                    AttributeSpec::text("axes", "the names of its axes")},
     .rule = reshape_rule,
     .gradient = reshape_gradient,
     .flops = flops_per_element<0>,
     .cheap = true,
     .example = {.attributes = {{"shape", std::vector<std::int64_t>{2, 3, 2, 2}}, {"axes", "batch seq heads head_dim"}},
                 .operands = {example({2, 3, 4})}}});
const RegisterOp concatenate(
    {.name = "concatenate",
     .help = "all operands one after the other",
     .attributes = {AttributeSpec::integer("dim", "the dimension along which they follow each other", 0, 7)},
     .rule = concatenate_rule,
     .gradient = concatenate_gradient,
     .flops = flops_per_element<0>,
     .example = {.attributes = {{"dim", std::int64_t{1}}}, .operands = {example({2, 3}), example({2, 4})}}});
const RegisterOp slice(
    {.name = "slice",
     .help = "the elements of x from one index to another along a dimension",
     .attributes = {AttributeSpec::integer("dim", "the dimension", 0, 7),
                    AttributeSpec::integer("begin", "the first index", 0),
                    AttributeSpec::integer("end", "the index after the last", 0)},
     .rule = slice_rule,
     .gradient = slice_gradient,
     .flops = flops_per_element<0>,
     .cheap = true,
     .example = {.attributes = {{"dim", std::int64_t{1}}, {"begin", std::int64_t{1}}, {"end", std::int64_t{3}}},
                 .operands = {example({2, 4})}}});
const RegisterOp pad(
    {.name = "pad",
     .help = "x with elements added before and after it along a dimension",
     .attributes = {AttributeSpec::integer("dim", "the dimension", 0, 7),
                    AttributeSpec::integer("low", "how many before", 0, most_padding),
                    AttributeSpec::integer("high", "how many after", 0, most_padding),
                    AttributeSpec::real("value", "that of each")},
     .rule = pad_rule,
     .gradient = pad_gradient,
     .flops = flops_per_element<0>,
     .example = {
         .attributes = {{"dim", std::int64_t{1}}, {"low", std::int64_t{1}}, {"high", std::int64_t{2}}, {"value", 0.0}},
         .operands = {example({2, 4})}}});

}  // namespace
}  // namespace shardrun::graph
