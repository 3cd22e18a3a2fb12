#include "core/graph/builder.h"
#include "core/graph/ops/shapes.h"

// Rotary position embedding (Su et al. 2021, arXiv:2104.09864, section 3.2.2). Pair i of the last dimension at position
// p is rotated by the angle p / base^(2i / head_dim), or by p times its frequency if frequencies are given. Each shard
// of a split sequence uses the positions in the whole sequence, or those of a second operand. All devices compute
// frequencies and angles in float32, even verify's float64 kernels, because models are trained so: at position 100,000
// a float64 angle differs noticeably.

namespace shardrun::graph {
namespace {

constexpr std::size_t most_frequencies = 256;  // kernels have them as constants

ShardingRule rope_rule(const Attributes& attributes, const Operands& inputs) {
  const std::int64_t dim = attributes.integer("dim");
  require_real("rope", inputs, 0);
  require_integers("rope", inputs, 1);
  require_dimension("rope", inputs, 0, dim);
  const std::size_t a = rank(inputs, 0) - 1;
  if (dim == static_cast<std::int64_t>(a) || inputs[0].shape[a] % 2 != 0 || attributes.real("base") <= 0) {
    throw Error(
        ErrorCode::shape_mismatch,
        fmt::format("op rope turns pairs of the last dimension by positions along another, with a base above 0: "
                    "not {} with dim {} and base {}",
                    to_string(inputs[0]), dim, attributes.real("base")));
  }
  const std::size_t given = attributes.has("frequencies") ? attributes.reals("frequencies").size() : 0;
  if (given != 0 && (given != static_cast<std::size_t>(inputs[0].shape[a] / 2) || given > most_frequencies)) {
    throw Error(
        ErrorCode::shape_mismatch,
        fmt::format("op rope: {} frequencies for {}: expected one for each pair of the last dimension, at most {}",
                    given, to_string(inputs[0]), most_frequencies));
  }
  const std::string positions = inputs.size() > 1 ? fmt::format(", a*{}", dim + 1) : "";
  return linear_in(parse_rule(fmt::format("a*{} d{} -> a*{} d", a, positions, a), {.whole = "d"}), {0});
}

ValueId rope_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  if (request.input == 1) {
    return {};
  }
  const Attributes& attributes = request.attributes;
  Attributes back;
  for (const auto& [name, value] : attributes.entries()) {
    back.add(name, name == "inverse" ? Attributes::Scalar(1 - attributes.integer("inverse")) : value);
  }
  std::vector<ValueId> operands = request.inputs;
  operands[0] = request.output_gradients[0];
  return builder.call("rope", std::move(operands), std::move(back));
}

const RegisterOp rope(
    {.name = "rope",
     .help = "x with pair i of its last dimension turned by the angle position / base^(2i / head_dim), in float32; a "
             "second operand, i32, gives each index of the dimensions up to `dim` its position",
     .attributes = {AttributeSpec::integer("dim", "the dimension of positions", 0, 7),
                    AttributeSpec::real("base", "the base, above 0; 10000 in the paper"),
                    AttributeSpec::integer("offset", "the position of index 0", 0, std::int64_t{1} << 40),
                    AttributeSpec::integer("interleaved",
                                           "1 for pairs of neighbours, 0 for i and i + head_dim / 2 as in Llama", 0, 1),
                    AttributeSpec::integer("inverse", "1 to turn back", 0, 1),
                    optional(AttributeSpec::reals(
                        "frequencies", "the angle of each pair at position 1, in place of those that base gives")),
                    optional(AttributeSpec::real("factor", "what the result is multiplied by"))},
     .rule = rope_rule,
     .gradient = rope_gradient,
     .flops = flops_per_element<3>,
     .in_place = {{0, 0}},
     .cheap = true,
     .example = {.attributes = {{"dim", std::int64_t{1}},
                                {"base", 10000.0},
                                {"offset", std::int64_t{0}},
                                {"interleaved", std::int64_t{0}},
                                {"inverse", std::int64_t{0}}},
                 .operands = {example({2, 5, 3, 8})}}});

}  // namespace
}  // namespace shardrun::graph
