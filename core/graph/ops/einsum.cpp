#include "core/graph/einsum.h"

#include <algorithm>
#include <iterator>

#include "core/graph/builder.h"
#include "core/graph/ops/shapes.h"

namespace shardrun::graph {

namespace {

[[noreturn]] void refuse(std::string_view text, const std::string& reason) {
  throw Error(
      ErrorCode::shape_mismatch,
      fmt::format("einsum \"{}\": {}; expected two operands and a result, as in \"bij,bjk->bik\"", text, reason));
}

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

void require_letters(std::string_view text, const std::string& part) {
  for (const char c : part) {
    if (!is_letter(c)) {
      refuse(text, fmt::format("'{}' is not a letter", c));
    }
    if (std::ranges::count(part, c) > 1) {
      refuse(text, fmt::format("'{}' stands twice in \"{}\"", c, part));
    }
  }
}

}  // namespace

Einsum parse_einsum(std::string_view text) {
  std::string dense;
  std::ranges::copy_if(text, std::back_inserter(dense), [](char c) { return c != ' '; });
  const std::size_t arrow = dense.find("->");
  if (arrow == std::string::npos || std::ranges::count(dense.substr(0, arrow), ',') != 1) {
    refuse(text, "it does not have that form");
  }
  const std::size_t comma = dense.find(',');
  Einsum einsum{dense.substr(0, comma), dense.substr(comma + 1, arrow - comma - 1), dense.substr(arrow + 2)};
  for (const std::string* part : {&einsum.a, &einsum.b, &einsum.result}) {
    require_letters(text, *part);
  }
  for (const char c : einsum.result) {
    if ((einsum.a + einsum.b).find(c) == std::string::npos) {
      refuse(text, fmt::format("the result's '{}' stands in no operand", c));
    }
  }
  return einsum;
}

std::string summed_letters(const Einsum& einsum) {
  std::string summed;
  for (const char c : einsum.a + einsum.b) {
    if ((einsum.result + summed).find(c) == std::string::npos) {
      summed += c;
    }
  }
  return summed;
}

namespace {

/// Letters with spaces between them: "b i j".
std::string spaced(const std::string& letters) {
  std::string text;
  for (const char c : letters) {
    text += text.empty() ? "" : " ";
    text += c;
  }
  return text.empty() ? "." : text;
}

ShardingRule einsum_rule(const Attributes& attributes, const Operands& inputs) {
  require_reals("einsum", inputs);
  const Einsum einsum = parse_einsum(attributes.text("spec"));
  const std::string reduced = spaced(summed_letters(einsum));
  const std::string text = fmt::format("{}, {} -> {}", spaced(einsum.a), spaced(einsum.b), spaced(einsum.result));
  return linear_in(parse_rule(text, {.reduced = reduced}), {0, 1});
}

/// One multiplication and one addition for each combination of indices.
std::int64_t einsum_flops(const OpShape& shape) {
  const Einsum einsum = parse_einsum(shape.attributes.text("spec"));
  std::int64_t product = 2;
  for (std::size_t d = 0; d < einsum.a.size(); ++d) {
    product *= shape.inputs[0].shape[d];
  }
  for (std::size_t d = 0; d < einsum.b.size(); ++d) {
    product *= einsum.a.find(einsum.b[d]) == std::string::npos ? shape.inputs[1].shape[d] : 1;
  }
  return product;
}

/// Contracts the result's gradient with the other operand. Along a letter that neither the result nor the other operand
/// has, the gradient is constant, so it is repeated.
ValueId einsum_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  const Einsum einsum = parse_einsum(request.attributes.text("spec"));
  const std::string& mine = request.input == 0 ? einsum.a : einsum.b;
  const std::string& other = request.input == 0 ? einsum.b : einsum.a;
  std::string found;
  std::vector<std::int64_t> missing;
  for (std::size_t d = 0; d < mine.size(); ++d) {
    if ((einsum.result + other).find(mine[d]) != std::string::npos) {
      found += mine[d];
    } else {
      missing.push_back(static_cast<std::int64_t>(d));
    }
  }
  const ValueId dy = request.output_gradients[0];
  const ValueId gradient = builder.call("einsum", {dy, request.inputs[1 - request.input]},
                                        {{"spec", fmt::format("{},{}->{}", einsum.result, other, found)}});
  return missing.empty() ? gradient
                         : builder.call("broadcast", {gradient, request.inputs[request.input]},
                                        {{"dims", missing}, {"scale", 1.0}});
}

/// The attribute `spec` is a text such as "bij,bjk->bik".
const RegisterOp einsum(
    {.name = "einsum",
     .help = "the sum of a b over the letters that the result lacks",
     .attributes = {AttributeSpec::text("spec", "the letters of a, b and the result"), fixed_order_spec()},
     .rule = einsum_rule,
     .gradient = einsum_gradient,
     .flops = einsum_flops,
     .accumulates = true,
     .example = {.attributes = {{"spec", "bij,bjk->bik"}}, .operands = {example({2, 3, 4}), example({2, 4, 5})}}});

}  // namespace
}  // namespace shardrun::graph
