#include "core/graph/builder.h"
#include "core/graph/ops/shapes.h"

// Causal scaled dot-product attention (Vaswani et al. 2017, section 3.2.1), fused: scores exist only in tiles of
// scratch, and backward recomputes them from log_sum_exp (Dao et al. 2022, arXiv:2205.14135, section 3.1).
// qkv: [batch, seq, 3, heads, head_dim]   out: [batch, seq, heads, head_dim]   log_sum_exp: [batch, heads, seq]

namespace shardrun::graph {
namespace {

ShardingRule attention_rule(const Attributes&, const Operands&) {
  return float32_results(parse_rule("b t c h d -> b t h d, b h t", {.whole = "t c d"}), {1});
}

ValueId attention_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  return builder.call("attention_gradient",
                      {request.inputs[0], request.outputs[0], request.outputs[1], request.output_gradients[0]},
                      {{"dropout", request.attributes.real("dropout")}, {"stream", request.attributes.text("stream")}});
}

ShardingRule attention_gradient_rule(const Attributes&, const Operands&) {
  return linear_in(parse_rule("b t c h d, b t h d, b h t, b t h d -> b t c h d", {.whole = "t c d"}), {3});
}

/// Two products per computed (query, key) pair. The causal mask leaves half of the pairs.
std::int64_t attention_flops(const OpShape& shape) {
  const std::vector<std::int64_t>& qkv = shape.inputs[0].shape;
  return 2 * qkv[0] * qkv[3] * qkv[1] * qkv[1] * qkv[4];
}

/// Five products per pair: the scores again, and the gradients of probabilities, values, queries and keys.
std::int64_t gradient_flops(const OpShape& shape) { return attention_flops(shape) * 5 / 2; }

const RegisterOp attention(
    {.name = "attention",
     .help = "causal scaled dot-product attention of queries, keys and values, and log-sum-exp of the scores",
     .attributes = {AttributeSpec::real("dropout", "the rate for probabilities"),
                    AttributeSpec::text("stream", "the key of the random numbers")},
     .rule = attention_rule,
     .gradient = attention_gradient,
     .flops = attention_flops,
     .example = {.attributes = {{"dropout", 0.0}, {"stream", "attention"}}, .operands = {example({2, 5, 3, 4, 8})}}});

const RegisterOp attention_gradient_op({.name = "attention_gradient",
                                        .rule = attention_gradient_rule,
                                        .flops = gradient_flops});

}  // namespace
}  // namespace shardrun::graph
