#include "core/graph/sharding_rule.h"

#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace shardrun;
using namespace shardrun::graph;
using test::error_of;

namespace {

TensorType type(std::vector<std::int64_t> shape, std::vector<std::string> axes) {
  return {.dtype = DType::f32, .shape = std::move(shape), .axes = std::move(axes)};
}

std::string refusal(const char* text, const std::vector<TensorType>& operands) {
  return error_of([&] {
    ShardingRule rule = parse_rule(text);
    static_cast<void>(infer_types(rule, operands, "node y"));
  });
}

}  // namespace

TEST_CASE("a rule prints as written, with groups expanded", "[graph]") {
  CHECK(to_string(parse_rule("i k, k j -> i j")) == "i k, k j -> i j");
  CHECK(to_string(parse_rule("l*2 k,k->l*2,.")) == "l0 l1 k, k -> l0 l1, .");
  CHECK(to_string(parse_rule("->.")) == " -> .");
  ShardingRule windowed = parse_rule("l*2 k, k -> l*2", {.reduced = "k", .whole = "l1"});
  windowed.windows.push_back({.operand = 0, .dim = 0, .window = {.stride = 2, .first = -1, .last = 1}});
  CHECK(to_string(windowed) == "2l0[-1..1] l1 k, k -> l0 l1; reduced k; whole l1");
  windowed.windows.back().window = {.first = 2, .last = 2, .wraps = true};
  CHECK(to_string(windowed) == "l0[2..2] l1 k, k -> l0 l1; reduced k; whole l1; periodic l0");
  CHECK(to_string(parse_rule("a*0, b -> a*0 b")) == "., b -> b");
}

TEST_CASE("a factor that occurs twice is one factor", "[graph]") {
  const ShardingRule rule = parse_rule("i k, k j -> i j", {.reduced = "k"});
  REQUIRE(rule.factors.size() == 3);
  const FactorId i = rule.find("i");
  const FactorId k = rule.find("k");
  const FactorId j = rule.find("j");
  CHECK(i == FactorId(0));
  CHECK(k == FactorId(1));
  CHECK(j == FactorId(2));
  CHECK(rule.inputs == std::vector<std::vector<FactorId>>{{i, k}, {k, j}});
  CHECK(rule.outputs == std::vector<std::vector<FactorId>>{{i, j}});
  CHECK(rule.factors[k].kind == FactorClass::reduced);
  CHECK(rule.factors[i].kind == FactorClass::pass_through);
  CHECK_FALSE(rule.find("z").exists());
}

TEST_CASE("malformed rules are refused", "[graph]") {
  CHECK(error_of([] { static_cast<void>(parse_rule("i j")); }) == "1: no '->' in the sharding rule 'i j'");
  CHECK(error_of([] { static_cast<void>(parse_rule("i -> i", {.reduced = "k"})); }) ==
        "1: no factor 'k' in the rule i -> i");
}

TEST_CASE("results take sizes and axis names from the operands", "[graph]") {
  ShardingRule rule = parse_rule("b t k, k n -> b t n, t");
  const std::vector<TensorType> results =
      infer_types(rule, {type({2, 3, 4}, {"batch", "seq", "embed"}), type({4, 5}, {"embed", "mlp"})}, "node y");
  REQUIRE(results.size() == 2);
  CHECK(results[0] == type({2, 3, 5}, {"batch", "seq", "mlp"}));
  CHECK(results[1] == type({3}, {"seq"}));
  CHECK(rule.factors[rule.find("k")].size == 4);
}

TEST_CASE("operands that do not fit are named", "[graph]") {
  const TensorType x = type({2, 3}, {"batch", "embed"});
  CHECK(refusal("i k, k j -> i j", {x}) ==
        "1: node y: expected 2 operands (i k, k j -> i j), found 1 (f32[batch 2, embed 3])");
  CHECK(refusal("i k, k j -> i j", {x, type({3}, {"embed"})}) ==
        "1: node y: operand 1 should have 2 dimensions (i k, k j -> i j), found f32[embed 3]");
  CHECK(refusal("i k, k j -> i j", {x, type({4, 5}, {"embed", "mlp"})}) ==
        "1: node y: factor 'k' is 3 in an earlier operand and 4 in operand 1 (operands f32[batch 2, embed 3], "
        "f32[embed 4, mlp "
        "5]; rule i k, k j -> i j)");
  CHECK(refusal("i -> i j", {type({2}, {"x"})}) == "1: node y: factor 'j' of a result has no size (rule i -> i j)");
}
