#include <algorithm>

#include "tests/kernels/case.h"

namespace shardrun::test {
namespace {

const std::vector<Shape> shapes = {{}, {1}, {7}, {65}, {3, 5}, {2, 3, 13}, {1, 2, 17, 5}, {301, 129}, {40007}};

void relu_of_second(std::vector<Tensor>& inputs) {
  for (double& y : inputs[1].values) {
    y = std::max(y, 0.0);
  }
}

void add_unary_cases(std::vector<Case>& cases) {
  for (const Shape& shape : shapes) {
    for (const char* op : {"relu", "negate", "sin", "cos", "copy"}) {
      cases.push_back({op, {}, {normal(shape)}});
    }
    cases.push_back({"relu_gradient", {}, {normal(shape), normal(shape)}, relu_of_second});
    for (const char* form : {"tanh", "erf"}) {
      cases.push_back({"gelu", {{"form", form}}, {normal(shape)}});
      cases.push_back({"gelu", {{"form", form}}, {off_centre(shape)}});
      cases.push_back({"gelu_gradient", {{"form", form}}, {normal(shape), normal(shape)}});
    }
    cases.push_back({"linear_combination", {{"coefficients", std::vector<double>{0.3}}}, {normal(shape)}});
    cases.push_back({"linear_combination",
                     {{"coefficients", std::vector<double>{0.5, 0.25, -0.1, 2}}},
                     {normal(shape), normal(shape), normal(shape), normal(shape)}});
  }
}

void add_binary_cases(std::vector<Case>& cases) {
  for (const Shape& shape : shapes) {
    cases.push_back({"add", {}, {normal(shape), normal(shape)}});
    cases.push_back({"multiply", {}, {normal(shape), normal(shape)}});
    for (std::size_t operands : {1U, 2U, 3U, 5U}) {
      cases.push_back({"add_n", {}, std::vector<Operand>(operands, normal(shape))});
    }
  }
  cases.push_back({"add", {}, {normal({5}), normal({})}});
  cases.push_back({"add", {}, {normal({3, 1}), normal({1})}});
  cases.push_back({"add", {}, {normal({2, 3, 33}), normal({33})}});
  cases.push_back({"add", {}, {normal({5, 7, 13}), normal({7, 13})}});
  cases.push_back({"add", {}, {normal({2, 3, 5, 17}), normal({5, 17})}});
  cases.push_back({"add", {}, {normal({701, 65}), normal({65})}});
}

void add_shift_cases(std::vector<Case>& cases) {
  const std::vector<Shape> grids = {{1}, {7}, {5, 3}, {2, 13, 5}, {257, 129}};
  for (const Shape& shape : grids) {
    for (std::int64_t dim = 0; dim < static_cast<std::int64_t>(shape.size()); ++dim) {
      for (const std::int64_t offset : {-3, -1, 0, 1, 2}) {
        for (const char* boundary : {"periodic", "fixed"}) {
          cases.push_back(
              {"shift", {{"dim", dim}, {"offset", offset}, {"boundary", boundary}, {"value", 0.0}}, {normal(shape)}});
        }
      }
    }
  }
  cases.push_back({"shift", {{"dim", 1}, {"offset", 1}, {"boundary", "fixed"}, {"value", 2.5}}, {normal({3, 5})}});
}

}  // namespace

void add_elementwise_cases(std::vector<Case>& cases) {
  add_unary_cases(cases);
  add_binary_cases(cases);
  add_shift_cases(cases);
  const std::vector<Shape> batches = {{1}, {3, 5}, {5, 1}, {2, 7, 13}, {3, 2, 5, 3}, {37, 9, 129}};
  for (const Shape& shape : batches) {
    for (const double rate : {0.0, 0.1, 0.5}) {
      cases.push_back({"dropout", {{"rate", rate}, {"stream", "layer.0/dropout"}}, {normal(shape)}});
    }
  }
}

}  // namespace shardrun::test
