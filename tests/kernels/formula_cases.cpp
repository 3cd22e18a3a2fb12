#include "tests/kernels/case.h"

// Cases of the ops of core/graph/formulas.h and of their derivatives.

namespace shardrun::test {
namespace {

const std::vector<Shape> formula_shapes = {{}, {1}, {7}, {65}, {3, 5}, {1, 2, 17, 5}, {40007}};

void add_unary(std::vector<Case>& cases, const Shape& shape) {
  for (const char* op : {"exp", "tanh", "sigmoid", "erf", "silu", "abs", "sign"}) {
    cases.push_back({op, {}, {normal(shape)}});
  }
  for (const char* op : {"log", "sqrt", "rsqrt"}) {
    cases.push_back({op, {}, {positive(shape)}});
  }
  for (const char* op : {"tanh_gradient", "sigmoid_gradient", "erf_gradient", "silu_gradient", "abs_gradient"}) {
    cases.push_back({op, {}, {normal(shape), normal(shape)}});
  }
  for (const char* op : {"exp_gradient", "log_gradient", "sqrt_gradient", "rsqrt_gradient"}) {
    cases.push_back({op, {}, {normal(shape), positive(shape)}});
  }
  const graph::Attributes limits = {{"low", -0.5}, {"high", 0.75}};
  cases.push_back({"clamp", limits, {normal(shape)}});
  cases.push_back({"clamp_gradient", limits, {normal(shape), normal(shape)}});
}

void add_binary(std::vector<Case>& cases, const Shape& a, const Shape& b) {
  for (const char* op : {"add", "subtract", "multiply", "minimum", "maximum"}) {
    cases.push_back({op, {}, {normal(a), normal(b)}});
  }
  cases.push_back({"divide", {}, {normal(a), positive(b)}});
  cases.push_back({"power", {}, {positive(a), normal(b)}});
  for (const char* op : {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}) {
    cases.push_back({op, {}, {few_values(a), few_values(b)}});
  }
  const Shape& result = a.size() >= b.size() ? a : b;
  for (const std::int64_t operand : {0, 1}) {
    const graph::Attributes attributes = {{"operand", operand}};
    for (const char* op : {"minimum_gradient", "maximum_gradient"}) {
      cases.push_back({op, attributes, {normal(result), normal(a), normal(b)}});
      cases.push_back({op, attributes, {normal(result), few_values(a), few_values(b)}});
    }
    cases.push_back({"divide_gradient", attributes, {normal(result), normal(a), positive(b)}});
    cases.push_back({"power_gradient", attributes, {normal(result), positive(a), normal(b)}, nullptr, 2});
  }
}

}  // namespace

void add_formula_cases(std::vector<Case>& cases) {
  for (const Shape& shape : formula_shapes) {
    add_unary(cases, shape);
    add_binary(cases, shape, shape);
    cases.push_back({"where", {}, {few_values(shape), normal(shape), normal(shape)}});
  }
  const std::vector<std::pair<Shape, Shape>> broadcasts = {{{5}, {}},           {{3, 1}, {1}},     {{2, 3, 33}, {33}},
                                                           {{5, 7, 3}, {7, 3}}, {{701, 65}, {65}}, {{129, 300}, {300}},
                                                           {{40007}, {}}};
  for (const auto& [larger, smaller] : broadcasts) {
    add_binary(cases, larger, smaller);
    add_binary(cases, smaller, larger);
    cases.push_back({"where", {}, {few_values(smaller), normal(larger), normal({})}});
    cases.push_back({"where", {}, {few_values(larger), normal(smaller), normal(larger)}});
    cases.push_back({"where", {}, {few_values({}), normal(smaller), normal(larger)}});
  }
}

}  // namespace shardrun::test
