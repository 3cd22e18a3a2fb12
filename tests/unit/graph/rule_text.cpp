#include "core/graph/rule_text.h"

#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace shardrun;
using namespace shardrun::graph;
using Catch::Contains;
using test::error_of;

namespace {

TensorType of(std::vector<std::int64_t> shape) {
  return {.dtype = DType::f32, .shape = shape, .axes = std::vector<std::string>(shape.size(), "a")};
}

std::string read_again(const char* text, const std::vector<TensorType>& operands) {
  return to_string(rule_from_text(text, operands));
}

std::string refused(const char* text, const std::vector<TensorType>& operands = {of({2, 3})}) {
  return error_of([&] { static_cast<void>(rule_from_text(text, operands)); });
}

}  // namespace

TEST_CASE("a rule's text has the classes of its factors", "[graph]") {
  CHECK(read_again("b t k, k n -> b t n; reduced k", {of({2, 3, 4}), of({4, 5})}) == "b t k, k n -> b t n; reduced k");
  CHECK(read_again("b c -> b; reduced c (max)", {of({2, 3})}) == "b c -> b; reduced c (max)");
  CHECK(read_again("b c d -> d ; reduced b c (min)", {of({2, 3, 4})}) == "b c d -> d; reduced b c (min)");
  CHECK(read_again("b d -> b d; whole d", {of({2, 3})}) == "b d -> b d; whole d");
  CHECK(read_again("b, . -> b", {of({2}), of({})}) == "b, . -> b");
}

TEST_CASE("a group in a rule has the dimensions that its operand has left", "[graph]") {
  CHECK(read_again("b* d, k d -> b* k; reduced d", {of({2, 3, 4}), of({5, 4})}) ==
        "b0 b1 d, k d -> b0 b1 k; reduced d");
  CHECK(read_again("b* d, k d -> b* k; reduced d", {of({4}), of({5, 4})}) == "d, k d -> k; reduced d");
  CHECK(read_again("a*, a* b* -> b*; reduced a* (max)", {of({2}), of({2, 3, 4})}) ==
        "a0, a0 b0 b1 -> b0 b1; reduced a0 (max)");
  CHECK_THAT(refused("b* d e -> b* d e", {of({4})}), Contains("does not fit operand 0, f32[a 4]"));
  CHECK_THAT(refused("a* b* -> a* b*"), Contains("does not say how many dimensions 'a*' and 'b*' have"));
}

TEST_CASE("operands that a call leaves out are left out of the rule, with their factors", "[graph]") {
  const char* const rule = "b d, d, e -> b d; whole e";
  CHECK(read_again(rule, {of({2, 3}), of({3}), of({4})}) == "b d, d, e -> b d; whole e");
  CHECK(read_again(rule, {of({2, 3}), of({3})}) == "b d, d -> b d");
  CHECK(read_again(rule, {of({2, 3})}) == "b d -> b d");
}

TEST_CASE("a rule's text has windows", "[graph]") {
  for (const char* text : {"b x[-1..1] -> b x", "2x[0..1], b -> x b", "b x/2[-1..0] -> b x", "b x/2[-1..0], x -> b x",
                           "y[0..2] 3x[-5..-4] -> y x"}) {
    CHECK(read_again(text, {of({6, 4}), of({7})}) == std::string(text));
  }
  ShardingRule rule = rule_from_text("b x[-1..1] -> b x", {of({2, 5})});
  CHECK(infer_types(rule, {of({2, 5})}, "op") == std::vector<TensorType>{of({2, 5})});
  rule = rule_from_text("b 2x[0..1] -> b x", {of({2, 5})});  // the last one reads one index
  CHECK(infer_types(rule, {of({2, 5})}, "op") == std::vector<TensorType>{of({2, 3})});
  CHECK(rule.windows.front().window == shardrun::Window{.stride = 2, .last = 1});
  rule = rule_from_text("b x/2[-1..0] -> b x", {of({2, 5})});
  CHECK(infer_types(rule, {of({2, 5})}, "op") == std::vector<TensorType>{of({2, 10})});
  rule =
      rule_from_text("b x/2[-1..0], b x -> b x", {of({2, 5}), of({2, 9})});  // the second operand gives the size of x
  CHECK(infer_types(rule, {of({2, 5}), of({2, 9})}, "op") == std::vector<TensorType>{of({2, 9})});
  CHECK(read_again("b x, b x[0..1] -> b x", {of({2, 3})}) == "b x -> b x");  // a factor that is left out
}

TEST_CASE("a malformed window is refused", "[graph]") {
  for (const char* word : {"x[]", "x[1..0]", "x[1]", "[0..1]", "0x[0..1]", "x/0[0..1]", "x[0..1", "x[0..1]2", "X[0..1]",
                           "-1x[0..1]", "x*[0..1]", "x[0..99999999]"}) {
    CHECK_THAT(refused(("b " + std::string(word) + " -> b x").c_str()),
               Contains("has '" + std::string(word) + "', which is no factor; expected such as"));
  }
  CHECK_THAT(refused("b x -> b x[0..1]"), Contains("has 'x[0..1]', which is no factor"));
  CHECK_THAT(refused("b x[0..1] -> b; reduced x"),
             Contains("has a window of the factor 'x', which is reduced or whole"));
  CHECK_THAT(refused("b x[0..1] -> b x; whole x"),
             Contains("has a window of the factor 'x', which is reduced or whole"));
  CHECK_THAT(refused("b x[0..1] -> b x", {of({2})}), Contains("does not fit operand 0, f32[a 2]"));
}

TEST_CASE("a malformed rule is refused", "[graph]") {
  CHECK_THAT(refused("b d"), Contains("the rule 'b d' has no '->'; expected such as"));
  CHECK_THAT(refused("b d -> b e"), Contains("has the factor 'e' in a result, and in no operand"));
  CHECK_THAT(refused("b D -> b"), Contains("has 'D', which is no factor"));
  CHECK_THAT(refused("b d, -> b d"), Contains("has an empty operand or result: a scalar is '.'"));
  CHECK_THAT(refused("b b -> b"), Contains("has 'b' twice in one operand or result"));
  CHECK_THAT(refused("b d -> b; summed d"), Contains("has the class ' summed d', expected 'reduced' or 'whole'"));
  CHECK_THAT(refused("b d -> b; reduced"), Contains("has the class ' reduced'"));
  CHECK_THAT(refused("b d -> b; reduced c"), Contains("calls 'c' reduced, which is in no operand"));
  CHECK_THAT(refused("b d -> b; reduced d (mean)"), Contains("reduces by '(mean)', expected (sum), (max) or (min)"));
  CHECK_THAT(refused("b d -> b d; reduced d"), Contains("reduces the factor 'd', which a result has"));
  CHECK_THAT(refused("b d -> b"), Contains("has the factor 'd', which is not in every result: call it reduced"));
}

TEST_CASE("typical operands fit a rule", "[graph]") {
  const auto size = [](const std::string& factor) { return factor == "d" ? 3 : 2; };
  const std::vector<TensorType> operands = typical_operands("b* d, k d, . -> b* k; reduced d", size);
  REQUIRE(operands.size() == 3);
  CHECK(to_string(operands[0]) == "f32[b0 2, b1 2, d 3]");
  CHECK(to_string(operands[1]) == "f32[k 2, d 3]");
  CHECK(to_string(operands[2]) == "f32[]");
  const std::vector<TensorType> windowed = typical_operands("2d[0..1] x[-1..1], d/2[-1..0] -> d x", size);
  CHECK(to_string(windowed[0]) == "f32[d 7, x 2]");  // d has 4 indices: one index of the other operand makes two
  CHECK(to_string(windowed[1]) == "f32[d 2]");
}
