#include "core/graph/builder.h"
#include "core/graph/ops/shapes.h"

// Scaled dot-product attention (Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1) of separate queries, keys and
// values, fused like `attention`. The query heads of a group share one head of keys and values (Ainslie et al. 2023,
// arXiv:2305.13245). If queries or groups are split, each shard has all keys.
// q, out: [batch, seq, kv_heads, group, head_dim]   k, v: [batch, keys, kv_heads, head_dim]
// mask: [seq, keys]   log_sum_exp: [batch, kv_heads, group, seq]
// With the attribute `group`, q and out are [batch, seq, heads, head_dim], and log_sum_exp is [batch, heads, seq].
// Query heads may then be split anywhere: a shard has the heads of keys and values that its query heads read. Shards
// that have the same head each compute a part of its gradients.

namespace shardrun::graph {
namespace {

constexpr const char* gradient_op = "scaled_dot_product_attention_gradient";

void require_visible_keys(const Attributes& attributes, const Operands& inputs) {
  const std::int64_t window = attributes.integer("window");
  if (window == 0 || rank(inputs, 0) < 4 || rank(inputs, 1) != 4) {
    return;
  }
  const std::int64_t seq = inputs[0].shape[1];
  const std::int64_t keys = inputs[1].shape[1];
  if (seq - window >= keys) {
    throw Error(ErrorCode::shape_mismatch,
                fmt::format("op scaled_dot_product_attention: query {} sees none of the {} keys through a window of {}",
                            seq - 1, keys, window));
  }
}

/// Query head i reads head floor(i / group) of the keys and values.
Window of_group(std::int64_t group) { return {.divisor = group, .first = 1 - group}; }

bool has_group(const Attributes& attributes) { return attributes.has("group"); }

/// Throws Error{shape_mismatch} unless the number of query heads is the number of key heads times the group.
void require_groups(const Attributes& attributes, const Operands& inputs) {
  if (rank(inputs, 0) != 4 || rank(inputs, 1) != 4) {
    return;
  }
  const std::int64_t group = attributes.integer("group");
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    if (rank(inputs, i) == 4 && inputs[i].shape[2] * group != inputs[0].shape[2]) {
      throw Error(
          ErrorCode::shape_mismatch,
          fmt::format("op scaled_dot_product_attention: {} heads of queries in groups of {} need {} heads of keys "
                      "and values, not {}",
                      inputs[0].shape[2], group, (inputs[0].shape[2] + group - 1) / group, inputs[i].shape[2]));
    }
  }
}

/// Lets query heads read the heads of keys and values (operands 1 and 2) through a window.
ShardingRule read_in_groups(ShardingRule rule, const Attributes& attributes) {
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    rule.windows.push_back({i, 2, of_group(attributes.integer("group"))});
  }
  return rule;
}

ShardingRule separate_attention_rule(const Attributes& attributes, const Operands& inputs) {
  require_reals("scaled_dot_product_attention", inputs);
  require_visible_keys(attributes, inputs);
  const char* mask = inputs.size() == 4 ? ", t s" : "";
  if (has_group(attributes)) {
    require_groups(attributes, inputs);
    const std::string text = fmt::format("b t h d, b s h d, b s h d{} -> b t h d, b h t", mask);
    return read_in_groups(float32_results(parse_rule(text, {.whole = "s d"}), {1}), attributes);
  }
  return float32_results(
      parse_rule(fmt::format("b t h g d, b s h d, b s h d{} -> b t h g d, b h g t", mask), {.whole = "s d"}), {1});
}

/// The gradients of q, k and v are results of one node. The first request adds it, and later requests find it.
ValueId separate_attention_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  if (request.input == 3) {
    throw Error(
        ErrorCode::shape_mismatch,
        "op scaled_dot_product_attention: the mask has no gradient, and this one depends on what is differentiated");
  }
  const std::vector<ValueId>& in = request.inputs;
  std::vector<ValueId> operands = {
      in[0], in[1], in[2], request.outputs[0], request.outputs[1], request.output_gradients[0]};
  operands.insert(operands.end(), in.begin() + 3, in.end());
  const IdVector<NodeId, Node>& nodes = builder.function().nodes;
  for (std::size_t n = nodes.size(); n-- > 0;) {
    const Node& node = nodes[NodeId(n)];
    if (node.op->name == gradient_op && node.inputs == operands && node.phase == builder.phase()) {
      return node.outputs[request.input];
    }
  }
  return builder.call_all(gradient_op, operands, request.attributes)[request.input];
}

/// Shards of the queries or of a group each compute a part of the gradients of keys and values.
ShardingRule separate_gradient_rule(const Attributes& attributes, const Operands& inputs) {
  const char* mask = inputs.size() == 7 ? ", t s" : "";
  ShardingRule rule;
  if (has_group(attributes)) {
    require_groups(attributes, inputs);
    rule = read_in_groups(parse_rule(fmt::format("b t h d, b s h d, b s h d, b t h d, b h t, b t h d{} -> "
                                                 "b t h d, b s h d, b s h d",
                                                 mask),
                                     {.reduced = "t", .whole = "s d"}),
                          attributes);
    for (const std::size_t o : {std::size_t{1}, std::size_t{2}}) {
      rule.result_windows.push_back({o, 2, of_group(attributes.integer("group"))});
    }
  } else {
    rule = parse_rule(fmt::format("b t h g d, b s h d, b s h d, b t h g d, b h g t, b t h g d{} -> "
                                  "b t h g d, b s h d, b s h d",
                                  mask),
                      {.reduced = "t g", .whole = "s d"});
  }
  for (std::size_t i = 0; i < 3 && i < inputs.size(); ++i) {
    rule.dtypes.push_back(inputs[i].dtype);
  }
  return linear_in(std::move(rule), {5});
}

/// Two products per computed (query, key) pair. A causal mask leaves half of the pairs.
std::int64_t separate_attention_flops(const OpShape& shape) {
  const std::vector<std::int64_t>& q = shape.inputs[0].shape;
  const std::int64_t causal = shape.attributes.integer("causal");
  const std::int64_t window = shape.attributes.integer("window");
  std::int64_t twice_visible = (2 - causal) * shape.inputs[1].shape[1];
  if (window > 0) {
    twice_visible = std::min(twice_visible, 2 * (causal == 1 ? window : 2 * window - 1));
  }
  return 2 * element_count(q) * twice_visible;
}

/// Five products per pair, as for `attention`.
std::int64_t separate_gradient_flops(const OpShape& shape) { return separate_attention_flops(shape) * 5 / 2; }

const RegisterOp separate_attention(
    {.name = "scaled_dot_product_attention",
     .help = "attention of q [batch, seq, kv_heads, group, head_dim] to k and v [batch, keys, kv_heads, head_dim], and "
             "log-sum-exp of the scores; a fourth operand [seq, keys] is added to the scores and gets no gradient; "
             "with group, q is [batch, seq, heads, head_dim], and its heads may be split anywhere",
     .attributes = {AttributeSpec::integer("causal", "1 if query i sees keys 0 to i alone", 0, 1),
                    AttributeSpec::integer("window",
                                           "query i sees keys that are less than this away from i; 0 for no such limit",
                                           0, std::int64_t{1} << 30),
                    AttributeSpec::real("scale", "the factor of the scores; 0 for 1 / sqrt(head_dim)"),
                    AttributeSpec::real("dropout", "the rate for probabilities"),
                    AttributeSpec::text("stream", "the key of the random numbers"),
                    optional(AttributeSpec::integer("group", "query heads that share a head of keys and values", 1,
                                                    std::int64_t{1} << 30))},
     .rule = separate_attention_rule,
     .gradient = separate_attention_gradient,
     .flops = separate_attention_flops,
     .example = {.attributes = {{"causal", std::int64_t{1}},
                                {"window", std::int64_t{0}},
                                {"scale", 0.0},
                                {"dropout", 0.0},
                                {"stream", "attention"}},
                 .operands = {example({2, 5, 2, 3, 8}), example({2, 5, 2, 8}), example({2, 5, 2, 8})}}});

const RegisterOp separate_gradient_op({.name = gradient_op,
                                       .rule = separate_gradient_rule,
                                       .flops = separate_gradient_flops});

}  // namespace
}  // namespace shardrun::graph
