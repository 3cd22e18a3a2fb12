#include <algorithm>

#include "tests/kernels/case.h"
#include "tests/support/evaluate.h"

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

void add_sum_cases(std::vector<Case>& cases) {
  for (const Shape& shape : shapes) {
    for (std::size_t operands : {1U, 2U, 3U, 5U}) {
      cases.push_back({"add_n", {}, std::vector<Operand>(operands, normal(shape))});
    }
  }
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
  for (const std::int64_t offset : {-(std::int64_t{1} << 62), std::int64_t{-41}, std::int64_t{1'000'000'007}}) {
    for (const char* boundary : {"periodic", "fixed"}) {
      cases.push_back(
          {"shift", {{"dim", 1}, {"offset", offset}, {"boundary", boundary}, {"value", 0.5}}, {normal({3, 5})}});
    }
  }
}

}  // namespace

void add_elementwise_cases(std::vector<Case>& cases) {
  add_unary_cases(cases);
  add_sum_cases(cases);
  add_shift_cases(cases);
  for (const Shape& shape : shapes) {
    cases.push_back({"cast", {{"dtype", "f32"}}, {normal(shape)}});
  }
  const std::vector<Shape> batches = {{1}, {3, 5}, {5, 1}, {2, 7, 13}, {3, 2, 5, 3}, {37, 9, 129}};
  for (const Shape& shape : batches) {
    for (const double rate : {0.0, 0.1, 0.5}) {
      cases.push_back({"dropout", {{"rate", rate}, {"stream", "layer.0/dropout"}}, {normal(shape)}});
    }
  }
}

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
  const std::vector<Size> sizes = {{1, 1, 1, 1},    {2, 3, 2, 5},    {1, 7, 3, 3},   {3, 5, 1, 2},
                                   {2, 17, 3, 8},   {1, 65, 2, 13},  {5, 33, 3, 16}, {1, 129, 2, 33},
                                   {1, 200, 1, 64}, {1, 70, 1, 100}, {1, 67, 2, 130}};
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

namespace {

Shape with_last(Shape shape, std::int64_t last) {
  shape.push_back(last);
  return shape;
}

void derive_row_max(std::vector<Tensor>& inputs) {
  const auto width = inputs[0].type.shape.back();
  for (std::size_t l = 0; l < inputs[1].values.size(); ++l) {
    const auto row = inputs[0].values.begin() + static_cast<std::ptrdiff_t>(l) * width;
    inputs[1].values[l] = *std::max_element(row, row + width);
  }
}

template <std::int32_t vocabulary>
void add_cross_entropy_cases(std::vector<Case>& cases, const Shape& rows) {
  const Shape logits = with_last(rows, vocabulary);
  cases.push_back({"row_max", {}, {normal(logits)}});
  cases.push_back(
      {"softmax_terms", {}, {normal(logits), normal(rows), integers_below<vocabulary>(rows)}, derive_row_max});
  cases.push_back({"softmax_terms_gradient",
                   {},
                   {normal(logits), normal(rows), integers_below<vocabulary>(rows), normal(rows), normal(rows)},
                   derive_row_max});
}

}  // namespace

void add_loss_cases(std::vector<Case>& cases) {
  for (const Shape& rows : {Shape{}, Shape{1}, Shape{7}, Shape{2, 3, 5}, Shape{40007}}) {
    cases.push_back({"token_loss", {}, {normal(rows), positive(rows), normal(rows)}});
    cases.push_back({"token_loss_gradient_sum", {}, {normal(rows), positive(rows)}});
  }
  const std::vector<Shape> leading = {{}, {1}, {5}, {2, 7}, {3, 2, 5}, {617}};
  for (const Shape& rows : leading) {
    add_cross_entropy_cases<1>(cases, rows);
    add_cross_entropy_cases<2>(cases, rows);
    add_cross_entropy_cases<7>(cases, rows);
    add_cross_entropy_cases<65>(cases, rows);
    add_cross_entropy_cases<129>(cases, rows);
    for (const std::int64_t width : {1, 3, 33}) {
      const Shape shape = with_last(rows, width);
      cases.push_back({"squared_error", {}, {normal(shape), normal(shape)}});
      cases.push_back({"squared_error_gradient", {}, {normal(shape), normal(shape), normal(rows)}});
    }
  }
}

namespace {

const std::vector<Shape> state_shapes = {{}, {1}, {7}, {3, 5}, {2, 3, 13}, {301, 129}, {40007}};

void add_reduction_cases(std::vector<Case>& cases) {
  for (const Shape& shape : state_shapes) {
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
  for (const Shape& shape : state_shapes) {
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
