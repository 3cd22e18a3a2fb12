#include "core/graph/builder.h"
#include "core/graph/ops/shapes.h"

// Rows of a table by index. If the vocabulary is split, results are partial sums, to which a shard adds only its rows.

namespace shardrun::graph {
namespace {

ShardingRule embedding_rule(const Attributes&, const Operands& inputs) {
  require_integers("embedding", inputs, 0);
  require_real("embedding", inputs, 1);
  const std::size_t l = rank(inputs, 0);
  return linear_in(parse_rule(fmt::format("l*{}, v e -> l*{} e", l, l), {.picked = "v"}), {1});
}

ValueId embedding_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  if (request.input != 1) {
    return {};
  }
  return builder.call(
      "embedding_gradient", {request.inputs[0], request.output_gradients[0]},
      {{"rows", builder.type(request.inputs[1]).shape[0]}, {"axis", builder.type(request.inputs[1]).axes[0]}});
}

ShardingRule embedding_gradient_rule(const Attributes& attributes, const Operands& inputs) {
  const std::size_t l = rank(inputs, 0);
  const std::string reduced = fmt::format("l*{}", l);
  ShardingRule rule = parse_rule(fmt::format("l*{}, l*{} e -> v e", l, l), {.reduced = reduced});
  Factor& vocabulary = rule.factors[rule.find("v")];
  vocabulary.size = attributes.integer("rows");
  vocabulary.axis = attributes.text("axis");
  return linear_in(std::move(rule), {1});
}

ShardingRule take_position_rule(const Attributes&, const Operands&) {
  return linear_in(parse_rule("b t e -> b e", {.whole = "t"}), {0});
}

const RegisterOp embedding({.name = "embedding",
                            .help = "the rows of a table at the indices; zeros where there is no such row",
                            .rule = embedding_rule,
                            .gradient = embedding_gradient,
                            .example = {.operands = {example({2, 5}, DType::i32), example({7, 3})}}});

const RegisterOp embedding_gradient_op({.name = "embedding_gradient",
                                        .rule = embedding_gradient_rule,
                                        .flops = flops_per_element<1, 1>,
                                        .accumulates = true});

/// Takes one position of each sequence, chosen at run time. Used to generate text.
const RegisterOp take_position({.name = "take_position",
                                .help = "x at one position of dimension 1, which is chosen when the function is called",
                                .rule = take_position_rule,
                                .example = {.operands = {example({2, 5, 3})}}});

}  // namespace
}  // namespace shardrun::graph
