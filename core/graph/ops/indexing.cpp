#include "core/graph/builder.h"
#include "core/graph/ops/shapes.h"

// Elements by index, and tensors made of indices. If the dimension that gather indexes is split, its results are
// partial sums, as for embeddings: a row that a shard does not hold is zero.

namespace shardrun::graph {
namespace {

void require_indices(std::string_view op, const Operands& inputs) {
  if (!inputs.empty() && inputs[0].dtype != DType::i32) {
    throw Error(ErrorCode::shape_mismatch,
                fmt::format("op {} takes i32 indices first, found {}", op, to_string(inputs[0])));
  }
}

/// "a0 a1 … MIDDLE b0 …": `before` factors, then the text `middle`, then `after` factors.
std::string around(std::size_t before, const std::string& middle, std::size_t after) {
  return fmt::format("a*{} {} b*{}", before, middle, after);
}

void set_rows(ShardingRule& rule, const char* factor, std::int64_t size, const std::string& axis) {
  if (axis.empty() || axis.find(' ') != std::string::npos) {
    throw Error(
        ErrorCode::shape_mismatch,
        fmt::format("the attribute 'axis' is '{}', expected the name of the new dimension, without blanks", axis));
  }
  Factor& rows = rule.factors[rule.find(factor)];
  rows.size = size;
  rows.axis = axis;
}

/// index: [L...]   x: [A..., V, B...]   y: [A..., L..., B...]. V is dimension `dim` of x.
ShardingRule gather_rule(const Attributes& attributes, const Operands& inputs) {
  require_indices("gather", inputs);
  require_real("gather", inputs, 1);
  const std::int64_t dim = attributes.integer("dim");
  require_dimension("gather", inputs, 1, dim);
  const auto before = static_cast<std::size_t>(dim);
  const std::size_t after = rank(inputs, 1) - before - 1;
  const std::string index = fmt::format("l*{}", rank(inputs, 0));
  return linear_in(parse_rule(fmt::format("{},{}->{}", index, around(before, "v", after), around(before, index, after)),
                              {.picked = "v"}),
                   {1});
}

ValueId gather_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  if (request.input != 1) {
    return {};
  }
  const TensorType& type = builder.type(request.inputs[1]);
  const std::int64_t dim = request.attributes.integer("dim");
  const auto d = static_cast<std::size_t>(dim);
  return builder.call("scatter_add", {request.inputs[0], request.output_gradients[0]},
                      {{"dim", dim}, {"rows", type.shape[d]}, {"axis", type.axes[d]}});
}

/// index: [L...]   x: [A..., L..., B...]   y: [A..., V, B...]. V is dimension `dim` of y, of size `rows` and axis
/// `axis`.
ShardingRule scatter_add_rule(const Attributes& attributes, const Operands& inputs) {
  require_indices("scatter_add", inputs);
  require_real("scatter_add", inputs, 1);
  const std::int64_t dim = attributes.integer("dim");
  const std::size_t l = rank(inputs, 0);
  if (dim < 0 || rank(inputs, 1) < static_cast<std::size_t>(dim) + l) {
    throw Error(ErrorCode::shape_mismatch,
                fmt::format("op scatter_add: operand 1 lacks the dimensions of the indices from dimension {} on", dim));
  }
  const auto before = static_cast<std::size_t>(dim);
  const std::size_t after = rank(inputs, 1) - before - l;
  const std::string index = fmt::format("l*{}", l);
  ShardingRule rule = parse_rule(
      fmt::format("{},{}->{}", index, around(before, index, after), around(before, "v", after)), {.reduced = index});
  set_rows(rule, "v", attributes.integer("rows"), attributes.text("axis"));
  return linear_in(std::move(rule), {1});
}

ValueId scatter_add_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  if (request.input != 1) {
    return {};
  }
  return builder.call("gather", {request.inputs[0], request.output_gradients[0]},
                      {{"dim", request.attributes.integer("dim")}});
}

/// index: [L...]   y: [L..., V]. V has size `rows` and axis name `axis`.
ShardingRule one_hot_rule(const Attributes& attributes, const Operands& inputs) {
  require_indices("one_hot", inputs);
  const std::string index = fmt::format("l*{}", rank(inputs, 0));
  ShardingRule rule = parse_rule(fmt::format("{}->{} v", index, index));
  set_rows(rule, "v", attributes.integer("rows"), attributes.text("axis"));
  rule.dtypes = {DType::f32};
  return rule;
}

/// y: [V] = 0, 1, …. V has size `rows` and axis name `axis`. All these numbers are exact in the element type `dtype`.
ShardingRule iota_rule(const Attributes& attributes, const Operands&) {
  ShardingRule rule = parse_rule("-> v");
  const bool is_integer = attributes.text("dtype") == "i32";
  const std::int64_t most = is_integer ? std::int64_t{1} << 31U : (std::int64_t{1} << 24U) + 1;
  if (attributes.integer("rows") > most) {
    throw Error(
        ErrorCode::shape_mismatch,
        fmt::format("op iota: {} counts exactly to {}, and {} rows are asked for: {}take two smaller dimensions "
                    "and reshape",
                    attributes.text("dtype"), most - 1, attributes.integer("rows"),
                    is_integer ? "" : "take i32 for indices, or "));
  }
  set_rows(rule, "v", attributes.integer("rows"), attributes.text("axis"));
  rule.dtypes = {find_dtype(attributes.text("dtype"))};
  if (rule.dtypes[0] != DType::f32 && rule.dtypes[0] != DType::i32) {
    throw Error(ErrorCode::shape_mismatch, fmt::format("op iota makes f32 or i32, not '{}'", attributes.text("dtype")));
  }
  return rule;
}

const RegisterOp gather(
    {.name = "gather",
     .help = "the elements of x at the indices, in place of its dimension `dim`; zeros where x has no such index",
     .attributes = {AttributeSpec::integer("dim", "the indexed dimension of x", 0, 7)},
     .rule = gather_rule,
     .gradient = gather_gradient,
     .example = {.attributes = {{"dim", std::int64_t{1}}},
                 .operands = {example({5}, DType::i32), example({2, 7, 3})}}});
const RegisterOp scatter_add(
    {.name = "scatter_add",
     .help = "the reverse of gather: at each index the sum of the elements of x that have it; an index outside adds "
             "nothing",
     .attributes = {AttributeSpec::integer("dim", "where the dimensions of the indices begin in x", 0, 7),
                    AttributeSpec::integer("rows", "the number of indices", 1),
                    AttributeSpec::text("axis", "the name of their axis")},
     .rule = scatter_add_rule,
     .gradient = scatter_add_gradient,
     .flops = flops_per_element<1, 1>,
     .accumulates = true,
     .example = {.attributes = {{"dim", std::int64_t{1}}, {"rows", std::int64_t{7}}, {"axis", "vocab"}},
                 .operands = {example({5}, DType::i32), example({2, 5, 3})}}});
const RegisterOp one_hot({.name = "one_hot",
                          .help = "1 at each index, else 0; all 0 for an index outside of the rows",
                          .attributes = {AttributeSpec::integer("rows", "the number of indices", 1),
                                         AttributeSpec::text("axis", "the name of their axis")},
                          .rule = one_hot_rule,
                          .stops_gradient = true,
                          .flops = flops_per_element<0>,
                          .cheap = true,
                          .example = {.attributes = {{"rows", std::int64_t{7}}, {"axis", "vocab"}},
                                      .operands = {example({5}, DType::i32)}}});
const RegisterOp iota({.name = "iota",
                       .help = "0, 1, 2, ...",
                       .attributes = {AttributeSpec::integer("rows", "the number of indices", 1),
                                      AttributeSpec::text("axis", "the name of their axis"),
                                      AttributeSpec::text("dtype", "the element type", {"f32", "i32"})},
                       .rule = iota_rule,
                       .cheap = true,
                       .example = {.attributes = {{"rows", std::int64_t{7}}, {"axis", "seq"}, {"dtype", "f32"}},
                                   .operands = {}}});

}  // namespace
}  // namespace shardrun::graph
