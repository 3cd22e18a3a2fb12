#include "tests/kernels/case.h"
#include "tests/support/evaluate.h"

namespace shardrun::test {
namespace {

const device::Device& reference() { return device::Device::find("reference"); }

Shape joined(Shape first, const Shape& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

void add_embedding_cases(std::vector<Case>& cases) {
  const std::vector<Shape> tokens = {{}, {1}, {5}, {3, 7}, {2, 3, 5}, {331}, {17, 33}};
  for (const Shape& shape : tokens) {
    for (const std::int64_t width : {1, 3, 13, 65}) {
      cases.push_back({"embedding", {}, {integers_below<17>(shape), normal({17, width})}});
      cases.push_back({"embedding_gradient",
                       {{"rows", 17}, {"axis", "vocab"}},
                       {integers_below<17>(shape), normal(joined(shape, {width}))}});
    }
  }
  for (const Shape& shape : {Shape{1, 2, 1}, Shape{3, 5, 7}, Shape{129, 3, 65}}) {
    cases.push_back({"take_position", {}, {normal(shape)}});
  }
}

void derive_mean_and_deviation(const Tensor& x, Tensor& mean, Tensor& deviation) {
  const graph::Attributes attributes = {{"epsilon", 1e-5}};
  Tensor gain = zeros(type_of({x.type.shape.back()}));
  const std::vector<Tensor> inputs = {x, gain};
  const std::vector<Tensor> outputs = {x, mean, deviation};
  const std::vector<Tensor> results =
      execute(reference(), {.op = "layer_norm", .attributes = attributes, .inputs = inputs, .outputs = outputs});
  mean = results[1];
  deviation = results[2];
}

void add_layer_norm_cases(std::vector<Case>& cases) {
  const std::vector<Shape> leading = {{}, {1}, {5}, {2, 7}, {3, 2, 5}, {257}};
  for (const Shape& rows : leading) {
    for (const std::int64_t width : {1, 2, 3, 17, 65, 129}) {
      const Shape shape = joined(rows, {width});
      cases.push_back({"layer_norm", {{"epsilon", 1e-5}}, {normal(shape), normal({width})}, nullptr, 2});
      cases.push_back(
          {"layer_norm", {{"epsilon", 1e-5}}, {off_centre(shape), normal({width}), normal({width})}, nullptr, 20});
      if (width > 2) {  // one element normalises to 0, two to -1 and 1, always: their gradient is rounding alone
        cases.push_back({"layer_norm_gradient_input",
                         {},
                         {normal(shape), normal(shape), normal({width}), normal(rows), normal(rows)},
                         [](std::vector<Tensor>& in) { derive_mean_and_deviation(in[1], in[3], in[4]); }});
      }
      cases.push_back({"layer_norm_gradient_gain",
                       {},
                       {normal(shape), normal(shape), normal(rows), normal(rows)},
                       [](std::vector<Tensor>& in) { derive_mean_and_deviation(in[1], in[2], in[3]); }});
    }
  }
}

struct MatmulShape {
  Shape l;
  Shape k;
  Shape n;
};

void add_matmul_cases(std::vector<Case>& cases) {
  const std::vector<MatmulShape> products = {{{1}, {1}, {1}},
                                             {{}, {3}, {5}},
                                             {{3}, {1}, {7}},
                                             {{5}, {7}, {1}},
                                             {{2, 3}, {5}, {7}},
                                             {{2, 3, 5}, {3}, {2}},
                                             {{7}, {2, 5}, {3}},
                                             {{3}, {5}, {3, 2, 5}},
                                             {{2, 5}, {3, 2}, {2, 3}},
                                             {{2, 17}, {33}, {65}},
                                             {{33}, {65}, {129}},
                                             {{129}, {129}, {17}},
                                             {{13, 17}, {65}, {3, 5, 13}},
                                             {{5, 65}, {3, 11}, {33}},
                                             {{2, 401}, {65}, {65}},
                                             {{65}, {65}, {3, 257}},
                                             {{65}, {771}, {33}},
                                             {{7}, {}, {5}},
                                             {{7}, {5}, {}}};
  for (const MatmulShape& p : products) {
    const auto contract = static_cast<std::int64_t>(p.k.size());
    for (const std::int64_t transpose : {0, 1}) {
      const Shape w = transpose == 0 ? joined(p.k, p.n) : joined(p.n, p.k);
      const graph::Attributes attributes = {{"contract", contract}, {"transpose", transpose}};
      cases.push_back({"matmul", attributes, {normal(joined(p.l, p.k)), normal(w)}});
      cases.push_back({"matmul_gradient_weights", attributes, {normal(joined(p.l, p.k)), normal(joined(p.l, p.n))}});
    }
  }
}

void derive_attention(std::vector<Tensor>& inputs, double rate) {
  const graph::Attributes attributes = {{"dropout", rate}, {"stream", "attention"}};
  const std::vector<Tensor> operands = {inputs[0]};
  const std::vector<Tensor> outputs = {inputs[1], inputs[2]};
  const std::vector<Tensor> results = execute(reference(), {.op = "attention",
                                                            .attributes = attributes,
                                                            .inputs = operands,
                                                            .outputs = outputs,
                                                            .scalars = scalars_of_tests()});
  inputs[1] = results[0];
  inputs[2] = results[1];
}

template <int percent>
void add_attention_cases(std::vector<Case>& cases) {
  struct Size {
    std::int64_t batch, length, heads, width;
  };
  const std::vector<Size> sizes = {{1, 1, 1, 1},   {2, 3, 2, 5},   {1, 7, 3, 3},    {3, 5, 1, 2},   {2, 17, 3, 8},
                                   {1, 65, 2, 13}, {5, 33, 3, 16}, {1, 129, 2, 33}, {1, 200, 1, 64}};
  for (const Size& s : sizes) {
    const graph::Attributes attributes = {{"dropout", percent / 100.0}, {"stream", "attention"}};
    const Shape qkv = {s.batch, s.length, 3, s.heads, s.width};
    const Shape out = {s.batch, s.length, s.heads, s.width};
    cases.push_back({"attention", attributes, {normal(qkv)}});
    cases.push_back({"attention_gradient",
                     attributes,
                     {normal(qkv), normal(out), normal({s.batch, s.heads, s.length}), normal(out)},
                     [](std::vector<Tensor>& inputs) { derive_attention(inputs, percent / 100.0); }});
  }
}

}  // namespace

void add_layer_cases(std::vector<Case>& cases) {
  add_embedding_cases(cases);
  add_layer_norm_cases(cases);
  add_matmul_cases(cases);
  add_attention_cases<0>(cases);
  add_attention_cases<20>(cases);
}

}  // namespace shardrun::test
