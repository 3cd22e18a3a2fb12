#include "tests/kernels/case.h"

namespace shardrun::test {
namespace {

const std::vector<Shape> shapes = {{}, {1}, {7}, {3, 5}, {2, 3, 13}, {301, 129}, {40007}};

void add_reduction_cases(std::vector<Case>& cases) {
  for (const Shape& shape : shapes) {
    cases.push_back({"sum_all", {{"scale", 0.125}}, {normal(shape)}});
    cases.push_back({"square_sum", {}, {normal(shape)}});
    cases.push_back({"broadcast_scalar", {{"scale", -0.3}}, {normal({}), normal(shape)}});
    for (std::int64_t keep = 0; keep <= static_cast<std::int64_t>(shape.size()); ++keep) {
      cases.push_back({"sum_leading", {{"keep", keep}}, {normal(shape)}});
    }
  }
  cases.push_back({"constant", {{"value", 1.0}}, {}});
  for (const double limit : {0.0, 0.5, 100.0}) {
    cases.push_back({"clip_scale", {{"limit", limit}}, {positive({})}});
  }
}

void add_optimizer_cases(std::vector<Case>& cases) {
  for (const Shape& shape : shapes) {
    for (const double decay : {0.0, 0.1}) {
      cases.push_back({"adamw",
                       {{"beta1", 0.9}, {"beta2", 0.99}, {"epsilon", 1e-8}, {"decay", decay}},
                       {normal(shape), normal(shape), small_positive(shape), normal(shape), positive({})}});
      cases.push_back({"adamw",
                       {{"beta1", 0.9}, {"beta2", 0.99}, {"epsilon", 1e-8}, {"decay", decay}},
                       {normal(shape), normal(shape), small_positive(shape), normal(shape)}});
      cases.push_back({"sgd", {{"momentum", 0.0}, {"decay", decay}}, {normal(shape), normal(shape), positive({})}});
      cases.push_back({"sgd", {{"momentum", 0.0}, {"decay", decay}}, {normal(shape), normal(shape)}});
      cases.push_back(
          {"sgd", {{"momentum", 0.9}, {"decay", decay}}, {normal(shape), normal(shape), normal(shape), positive({})}});
    }
  }
}

}  // namespace

void add_update_cases(std::vector<Case>& cases) {
  add_reduction_cases(cases);
  add_optimizer_cases(cases);
}

}  // namespace shardrun::test
