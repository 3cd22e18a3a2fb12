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

struct EinsumCase {
  const char* spec;
  Shape a;
  Shape b;
};

void add_einsums(std::vector<Case>& cases) {
  const std::vector<EinsumCase> einsums = {{",->", {}, {}},
                                           {"i,i->i", {7}, {7}},
                                           {"i,i->", {65}, {65}},
                                           {"i,j->ij", {3}, {5}},
                                           {"i,j->ji", {33}, {17}},
                                           {"ij,j->i", {3, 5}, {5}},
                                           {"ij,jk->ik", {3, 5}, {5, 7}},
                                           {"ij,jk->ik", {65, 33}, {33, 129}},
                                           {"ij,kj->ki", {65, 33}, {17, 33}},
                                           {"ji,jk->ik", {33, 65}, {33, 9}},
                                           {"bij,bjk->bik", {3, 17, 5}, {3, 5, 13}},
                                           {"bqhd,bkhd->bhqk", {2, 9, 3, 8}, {2, 7, 3, 8}},
                                           {"bhqk,bkhd->bqhd", {2, 3, 9, 7}, {2, 7, 3, 8}},
                                           {"aib,bjc->cjia", {5, 4, 6}, {6, 3, 7}},
                                           {"ijx,jk->ik", {3, 4, 2}, {4, 5}},
                                           {"ij,jkx->i", {3, 4}, {4, 5, 2}},
                                           {"ix,jx->xij", {9, 4}, {11, 4}},
                                           {"be,beh->beh", {5, 2}, {5, 2, 67}},
                                           {"beh,beh->be", {5, 2, 67}, {5, 2, 67}},
                                           {"bhe,be->bhe", {5, 67, 2}, {5, 2}},
                                           {"bhs,bsh->bs", {3, 19, 35}, {3, 35, 19}},
                                           {"bh,bh->h", {130, 35}, {130, 35}},
                                           {"i,i->i", {9001}, {9001}},
                                           {"i,i->", {9001}, {9001}},
                                           {"bi,bj->bij", {3, 17}, {3, 130}},
                                           {"beh,bd->edh", {90, 2, 65}, {90, 49}},
                                           {"bd,beh->hde", {90, 49}, {90, 65, 3}}};
  for (const EinsumCase& c : einsums) {
    cases.push_back({"einsum", {{"spec", c.spec}}, {normal(c.a), normal(c.b)}});
  }
}

void add_moves(std::vector<Case>& cases) {
  const std::vector<std::pair<Shape, Dims>> orders = {{{}, {}},
                                                      {{7}, {0}},
                                                      {{3, 5}, {1, 0}},
                                                      {{301, 129}, {1, 0}},
                                                      {{2, 3, 13}, {0, 2, 1}},
                                                      {{2, 3, 13}, {2, 0, 1}},
                                                      {{4, 1, 5, 3}, {2, 0, 3, 1}},
                                                      {{2, 3, 4, 5}, {0, 1, 2, 3}}};
  for (const auto& [shape, order] : orders) {
    cases.push_back({"transpose", {{"order", order}}, {normal(shape)}});
    cases.push_back({"transpose", {{"order", order}}, {integers_below<17>(shape)}});
  }
  struct Reshape {
    Shape from;
    Shape to;
    const char* axes;
  };
  const std::vector<Reshape> reshapes = {{{}, {1}, "one"},
                                         {{6}, {2, 3}, "a b"},
                                         {{2, 3, 13}, {2, 39}, "batch features"},
                                         {{2, 3, 13}, {6, 13}, "rows features"},
                                         {{4, 1, 5, 3}, {4, 5, 3}, "a b c"},
                                         {{4, 5, 3}, {4, 1, 5, 1, 3}, "a one b two c"},
                                         {{4, 6, 5}, {4, 2, 3, 5}, "batch heads head_dim x"},
                                         {{4, 6}, {3, 8}, "a b"},
                                         {{6, 6, 2}, {9, 4, 2}, "a b c"},
                                         {{5, 4}, {10, 1, 2}, "a b c"},
                                         {{2, 3, 4}, {4, 6}, "a b"}};
  for (const Reshape& r : reshapes) {
    const graph::Attributes attributes = {{"shape", r.to}, {"axes", r.axes}};
    cases.push_back({"reshape", attributes, {normal(r.from)}});
    cases.push_back({"reshape", attributes, {integers_below<17>(r.from)}});
  }
}

void add_parts(std::vector<Case>& cases) {
  const std::vector<std::pair<Shape, std::int64_t>> dims = {{{7}, 0},        {{3, 5}, 0},     {{3, 5}, 1},
                                                            {{2, 5, 13}, 1}, {{301, 129}, 0}, {{301, 129}, 1}};
  for (const auto& [shape, dim] : dims) {
    Shape other = shape;
    other[static_cast<std::size_t>(dim)] = 4;
    cases.push_back({"concatenate", {{"dim", dim}}, {normal(shape)}});
    cases.push_back({"concatenate", {{"dim", dim}}, {normal(shape), normal(other), normal(shape)}});
    cases.push_back({"concatenate", {{"dim", dim}}, {integers_below<17>(other), integers_below<17>(shape)}});
    cases.push_back({"slice", {{"dim", dim}, {"begin", 1}, {"end", 3}}, {normal(shape)}});
    cases.push_back({"slice", {{"dim", dim}, {"begin", 0}, {"end", 2}}, {integers_below<17>(shape)}});
    cases.push_back({"pad", {{"dim", dim}, {"low", 2}, {"high", 1}, {"value", 0.0}}, {normal(shape)}});
    cases.push_back({"pad", {{"dim", dim}, {"low", 0}, {"high", 3}, {"value", 1.5}}, {normal(shape)}});
  }
}

void add_indexed(std::vector<Case>& cases) {
  const std::vector<Shape> indices = {{}, {1}, {5}, {3, 7}, {331}};
  for (const Shape& index : indices) {
    for (const auto& [before, after] :
         std::vector<std::pair<Shape, Shape>>{{{}, {}}, {{}, {5}}, {{3}, {}}, {{2}, {3, 2}}}) {
      Shape x = before;
      x.push_back(17);
      x.insert(x.end(), after.begin(), after.end());
      Shape y = before;
      y.insert(y.end(), index.begin(), index.end());
      y.insert(y.end(), after.begin(), after.end());
      const auto dim = static_cast<std::int64_t>(before.size());
      cases.push_back({"gather", {{"dim", dim}}, {integers_below<17>(index), normal(x)}});
      cases.push_back(
          {"scatter_add", {{"dim", dim}, {"rows", 17}, {"axis", "vocab"}}, {integers_below<17>(index), normal(y)}});
    }
    cases.push_back({"one_hot", {{"rows", 17}, {"axis", "vocab"}}, {integers_below<17>(index)}});
  }
  for (const char* dtype : {"f32", "i32"}) {
    cases.push_back({"iota", {{"rows", 37}, {"axis", "seq"}, {"dtype", dtype}}, {}});
  }
  cases.push_back({"cast", {{"dtype", "f32"}}, {integers_below<17>({3, 5})}});
  cases.push_back({"cast", {{"dtype", "i32"}}, {positive({3, 5})}});
}

}  // namespace

void add_dimension_cases(std::vector<Case>& cases) {
  add_reductions(cases);
  add_einsums(cases);
  add_moves(cases);
  add_parts(cases);
  add_indexed(cases);
}

}  // namespace shardrun::test
