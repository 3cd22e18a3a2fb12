#include <algorithm>

#include "tests/kernels/case.h"

// Cases of ops that reduce, contract, move or make dimensions.

namespace shardrun::test {
namespace {

using Dims = std::vector<std::int64_t>;

Shape without_dims(const Shape& shape, const Dims& dims) {
  Shape kept;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (std::ranges::find(dims, static_cast<std::int64_t>(d)) == dims.end()) {
      kept.push_back(shape[d]);
    }
  }
  return kept;
}

void add_reduction(std::vector<Case>& cases, const Shape& shape, const Dims& dims) {
  for (const char* op : {"sum", "mean", "max", "min"}) {
    cases.push_back({op, {{"dims", dims}}, {normal(shape)}});
  }
  cases.push_back({"broadcast", {{"dims", dims}, {"scale", 0.75}}, {normal(without_dims(shape, dims)), normal(shape)}});
  if (dims.size() == 1) {
    cases.push_back({"argmax", {{"dim", dims[0]}}, {normal(shape)}});
    cases.push_back({"argmax", {{"dim", dims[0]}}, {few_values(shape)}});
  }
}

void add_reductions(std::vector<Case>& cases) {
  const std::vector<std::pair<Shape, Dims>> reductions = {{{}, {}},
                                                          {{1}, {0}},
                                                          {{7}, {0}},
                                                          {{7}, {}},
                                                          {{40007}, {0}},
                                                          {{200003}, {0}},
                                                          {{3, 5}, {0}},
                                                          {{3, 5}, {1}},
                                                          {{3, 5}, {1, 0}},
                                                          {{301, 129}, {0}},
                                                          {{301, 129}, {1}},
                                                          {{3, 70001}, {1}},
                                                          {{2, 3, 13}, {0}},
                                                          {{2, 3, 13}, {1}},
                                                          {{2, 3, 13}, {2}},
                                                          {{2, 3, 13}, {0, 1}},
                                                          {{2, 3, 13}, {0, 2}},
                                                          {{2, 3, 13}, {1, 2}},
                                                          {{4, 1, 5, 3}, {0, 2}},
                                                          {{4, 1, 5, 3}, {1, 3}},
                                                          {{4, 1, 5, 3}, {2}},
                                                          {{2, 3, 2, 17, 2}, {0, 2, 4}},
                                                          {{2, 3, 2, 17, 2}, {1, 3}},
                                                          {{3, 65, 2, 65}, {1}},
                                                          {{3, 65, 2, 65}, {0, 3}}};
  for (const auto& [shape, dims] : reductions) {
    add_reduction(cases, shape, dims);
  }
}

}  // namespace

void add_dimension_cases(std::vector<Case>& cases) {
  add_reductions(cases);
}

}  // namespace shardrun::test
