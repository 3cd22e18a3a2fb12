// Compares the mathematics of models with plain loops: operators and functions of the SDK, written as in a plugin, and
// run on the reference device.

#include <shardrun/sdk/model/math.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "core/device/elements.h"
#include "core/runtime/interpreter.h"
#include "plugins/loader/function_recorder.h"
#include "tests/kernels/compare.h"
#include "tests/support/catch.h"
#include "tests/support/parts.h"
#include "tests/support/plans.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

using Formula = std::function<sdk::Value(sdk::Function& f, const std::vector<sdk::Value>& operands)>;

std::string input_name(std::size_t number) { return "x" + std::to_string(number); }

sdk::Dims dims_of(const Tensor& tensor) {
  sdk::Dims dims;
  for (std::size_t d = 0; d < tensor.type.shape.size(); ++d) {
    dims.push_back({tensor.type.axes[d], tensor.type.shape[d]});
  }
  return dims;
}

/// The result of a formula for these operands.
Tensor evaluate(const std::vector<Tensor>& operands, const Formula& formula) {
  graph::Graph graph;
  graph::FunctionBuilder builder(graph, "f", graph::Role::on_demand, 1);
  plugins::FunctionRecorder recorder(builder, 1, "");
  sdk::Function f(recorder.writer(), 1, false);
  std::vector<sdk::Value> values;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    values.push_back(f.input(input_name(i), sdk::Element::f32, dims_of(operands[i])));
  }
  const sdk::Value result = formula(f, values);
  graph::TensorType type;
  for (const sdk::Dim& dim : result.dims()) {
    type.shape.push_back(dim.size);
    type.axes.push_back(dim.axis);
  }
  graph.states.push_back({.name = "result", .type = type, .kind = graph::StateKind::field});
  f.write("result", result);
  builder.finish();

  runtime::Interpreter ranks(graph, partition::split(graph, plan_of({}, {})), reference(), 1);
  for (std::size_t i = 0; i < operands.size(); ++i) {
    write_part(operands[i], ranks.rank(0).input(0, input_name(i)));
  }
  ranks.run("f", 1, true, scalars_of_tests());
  return read_view(type, ranks.rank(0).state(graph::StateId(0)));
}

Tensor random_tensor(Random& random, const std::vector<std::int64_t>& shape) {
  Tensor tensor = zeros({.dtype = graph::DType::f32, .shape = shape, .axes = {}});
  for (std::size_t d = 0; d < shape.size(); ++d) {
    tensor.type.axes.push_back("d" + std::to_string(d));
  }
  random.fill_normal(tensor, 0, 1);
  device::round_elements(graph::DType::f32, tensor.values);
  return tensor;
}

std::vector<Tensor> triples(std::initializer_list<std::vector<double>> values) {
  std::vector<Tensor> operands;
  for (const std::vector<double>& each : values) {
    Tensor tensor =
        zeros({.dtype = graph::DType::f32, .shape = {static_cast<std::int64_t>(each.size())}, .axes = {"x"}});
    tensor.values = each;
    operands.push_back(tensor);
  }
  return operands;
}

/// A formula's results over three elements.
std::vector<double> three(const std::vector<double>& a, const std::vector<double>& b,
                          const std::function<sdk::Value(const sdk::Value& a, const sdk::Value& b)>& formula) {
  return evaluate(triples({a, b}),
                  [&](sdk::Function&, const std::vector<sdk::Value>& x) { return formula(x[0], x[1]); })
      .values;
}

using Catch::Matchers::Contains;
using V = sdk::Value;
using Doubles = std::vector<double>;

}  // namespace

TEST_CASE("operators on values compute what they compute on numbers", "[kernels]") {
  const Doubles a = {1, -2, 3};
  const Doubles b = {4, 0.5, 3};
  CHECK(three(a, b, [](V x, V y) { return x + y; }) == Doubles{5, -1.5, 6});
  CHECK(three(a, b, [](V x, V y) { return x - y; }) == Doubles{-3, -2.5, 0});
  CHECK(three(a, b, [](V x, V y) { return x * y; }) == Doubles{4, -1, 9});
  CHECK(three(a, b, [](V x, V y) { return x / y; }) == Doubles{0.25, -4, 1});
  CHECK(three(a, b, [](V x, V) { return -x; }) == Doubles{-1, 2, -3});
  CHECK(three(a, b, [](V x, V) { return 2 * x + 1; }) == Doubles{3, -3, 7});
  CHECK(three(a, b, [](V x, V y) { return 1 - 2 * x * 3 - y; }) == Doubles{-9, 12.5, -20});
  CHECK(three(a, b, [](V x, V) { return (x - 1) / 2; }) == Doubles{0, -1.5, 1});
  CHECK(three(a, b, [](V, V y) { return 2 / y; }) == Doubles{0.5, 4, 2.0 / 3});
  CHECK(three(a, b, [](V x, V) { return 1.0 * x; }) == a);
  CHECK(three(a, b, [](V x, V) { return -(-x); }) == a);
  CHECK(three(a, b, [](V x, V y) { return -(-x - y - x); }) == Doubles{6, -3.5, 9});
  CHECK(three(a, b, [](V x, V) { return 2 * (0.5 * x + 0.5 * x + 0.5 * x); }) == Doubles{3, -6, 9});
  CHECK(three(a, b, [](V x, V y) { return x < y; }) == Doubles{1, 1, 0});
  CHECK(three(a, b, [](V x, V y) { return x <= y; }) == Doubles{1, 1, 1});
  CHECK(three(a, b, [](V x, V y) { return x > y; }) == Doubles{0, 0, 0});
  CHECK(three(a, b, [](V x, V y) { return x >= y; }) == Doubles{0, 0, 1});
  CHECK(three(a, b, [](V x, V y) { return x == y; }) == Doubles{0, 0, 1});
  CHECK(three(a, b, [](V x, V y) { return x != y; }) == Doubles{1, 1, 0});
  CHECK(three(a, b, [](V x, V) { return x > 0; }) == Doubles{1, 0, 1});
  CHECK(three(a, b, [](V x, V) { return 0 > x; }) == Doubles{0, 1, 0});
  CHECK(three(a, b, [](V x, V y) { return where(x < 2, x, y); }) == Doubles{1, -2, 3});
  CHECK(three(a, b, [](V x, V) { return where(x < 0, 7, 8); }) == Doubles{8, 7, 8});
  CHECK(three(a, b, [](V x, V y) { return minimum(x, y) + maximum(x, 2); }) == Doubles{3, 0, 6});
  CHECK(three(a, b, [](V x, V) { return power(x, 2) + clamp(x, -1, 2) + abs(x) + sign(x); }) == Doubles{4, 4, 15});
}

TEST_CASE("a sum adds operands that have to be broadcast last", "[kernels]") {
  Random random(3);
  const Tensor x = random_tensor(random, {2, 3});
  Tensor bias = random_tensor(random, {3});
  bias.type.axes = {"d1"};
  const Tensor sum = evaluate(
      {x, bias}, [](sdk::Function&, const std::vector<sdk::Value>& v) { return 3 - 2 * v[1] + v[0] + 0.5 * v[0]; });
  for (std::size_t i = 0; i < 6; ++i) {
    CHECK(sum.values[i] == Approx(3 - 2 * bias.values[i % 3] + 1.5 * x.values[i]).epsilon(1e-12));
  }
}

TEST_CASE("tensors are reduced, rearranged and indexed, also from the end", "[kernels]") {
  Tensor x = zeros({.dtype = graph::DType::f32, .shape = {2, 3}, .axes = {"a", "b"}});
  x.values = {1, 5, 3, 4, 2, 6};
  const auto of = [&](const std::function<sdk::Value(const sdk::Value&)>& formula) {
    return evaluate({x}, [&](sdk::Function&, const std::vector<sdk::Value>& v) { return formula(v[0]); }).values;
  };
  CHECK(of([](V v) { return sum(v, {-1}); }) == Doubles{9, 12});
  CHECK(of([](V v) { return mean(v, {0}); }) == Doubles{2.5, 3.5, 4.5});
  CHECK(of([](V v) { return max(v, {1}); }) == Doubles{5, 6});
  CHECK(of([](V v) { return min(v); }) == Doubles{1});
  CHECK(of([](V v) { return mean(v); }) == Doubles{3.5});
  CHECK(of([](V v) { return sum(v); }) == Doubles{21});
  CHECK(of([](V v) { return v - expand(max(v, {-1}), v, {-1}); }) == Doubles{-4, 0, -2, -2, -4, 0});
  CHECK(of([](V v) { return transpose(v); }) == Doubles{1, 4, 5, 2, 3, 6});
  CHECK(of([](V v) { return transpose(v, {-1, 0}); }) == Doubles{1, 4, 5, 2, 3, 6});
  CHECK(of([](V v) { return sum(reshape(v, {{"c", 3}, {"d", 2}}), {1}); }) == Doubles{6, 7, 8});
  CHECK(of([](V v) { return sdk::concatenate({v, v}, -1); }) == Doubles{1, 5, 3, 1, 5, 3, 4, 2, 6, 4, 2, 6});
  CHECK(of([](V v) { return slice(v, 1, -2, 3); }) == Doubles{5, 3, 2, 6});
  CHECK(of([](V v) { return pad(v, -1, 1, 0, 9); }) == Doubles{9, 1, 5, 3, 9, 4, 2, 6});
  CHECK(of([](V v) { return gather(argmax(v, -1), transpose(v)); }) == Doubles{5, 2, 3, 6});
  CHECK(of([](V v) { return one_hot(argmax(v, 1), {"c", 3}); }) == Doubles{0, 1, 0, 0, 0, 1});
  CHECK(of([](V v) {
          return scatter_add(argmax(v, 1), v, 0, {"rows", 4});
        }) == Doubles{0, 0, 0, 1, 5, 3, 4, 2, 6, 0, 0, 0});
  CHECK(of([](V v) { return cast(cast(v / 2, sdk::Element::i32), sdk::Element::f32); }) == Doubles{0, 2, 1, 2, 1, 3});
  CHECK(of([](V v) { return iota(v.function(), {"b", 3}) + v; }) == Doubles{1, 6, 5, 4, 3, 8});
}

TEST_CASE("ops after a reshape or a broadcast see the new shape, also when memory is reused", "[kernels]") {
  Tensor x = zeros({.dtype = graph::DType::f32, .shape = {4, 6}, .axes = {"a", "b"}});
  for (std::size_t i = 0; i < 24; ++i) {
    x.values[i] = static_cast<double>(i + 1);
  }
  const auto of = [&](const std::function<sdk::Value(const sdk::Value&)>& formula) {
    return evaluate({x}, [&](sdk::Function&, const std::vector<sdk::Value>& v) { return formula(v[0]); }).values;
  };
  const auto made = [](const V& v) { return sin(v) * 0 + v; };  // a value of its own, which may be overwritten
  CHECK(of([&](V v) { return sum(reshape(made(v), {{"c", 3}, {"d", 8}}), {1}); }) == Doubles{36, 100, 164});
  CHECK(of([&](V v) {
          return transpose(reshape(made(slice(v, 0, 0, 1)), {{"c", 2}, {"d", 3}}));
        }) == Doubles{1, 4, 2, 5, 3, 6});
  CHECK(of([&](V v) { return transpose(made(slice(v, 0, 0, 1)) * made(sum(v, {0}) * 0 + 1)); }) ==
        Doubles{1, 2, 3, 4, 5, 6});
}

TEST_CASE("gradients reach both operands of squared_error, and results without a gradient are refused", "[kernels]") {
  const auto of = [&](const std::function<sdk::Value(const sdk::Value&)>& formula) {
    return evaluate(triples({{1, -2, 3}}),
                    [&](sdk::Function&, const std::vector<sdk::Value>& v) { return gradient(formula(v[0]), v[0]); })
        .values;
  };
  CHECK(of([](V x) { return squared_error(x, 2 * x); }) == Doubles{1, -2, 3});
  CHECK(of([](V x) { return sum(x * (x > 0)); }) == Doubles{1, 0, 1});
  CHECK(of([](V x) { return sum(x + sign(x)); }) == Doubles{1, 1, 1});
  CHECK_THROWS_WITH(of([](V x) { return sum(gradient(sum(tanh(x)), x)); }),
                    Contains("second derivatives of tanh are not offered"));
  CHECK_THROWS_WITH(of([](V x) {
                      return sum(x.function().call_all("rms_norm", {x, x}, {{"epsilon", 1e-5}})[1]);
                    }),
                    Contains("result 1 of the op rms_norm has no gradient"));
}

namespace {

/// An einsum with one to three operands. A letter may stand twice in an operand.
struct Sum {
  std::vector<std::string> operands;
  std::string result;
  std::map<char, std::int64_t> sizes;

  [[nodiscard]] std::string text() const {
    std::string all = operands[0];
    for (std::size_t i = 1; i < operands.size(); ++i) {
      all += "," + operands[i];
    }
    return all + "->" + result;
  }
};

Sum random_sum(Random& random) {
  Sum drawn;
  const std::int64_t letters = 1 + random.below(5);
  for (char c = 'a'; c < static_cast<char>('a' + letters); ++c) {
    drawn.sizes[c] = 1 + random.below(4);
  }
  std::string all;
  for (std::int64_t operand = 0; operand < 3; ++operand) {
    std::string text;
    for (std::int64_t d = random.below(4); d > 0; --d) {
      text += static_cast<char>('a' + random.below(letters));
    }
    if (operand == 0 || random.below(3) > 0) {
      drawn.operands.push_back(text);
      all += text;
    }
  }
  for (const char c : all) {
    if (drawn.result.find(c) == std::string::npos && random.below(2) == 0) {
      drawn.result.insert(static_cast<std::size_t>(random.below(static_cast<std::int64_t>(drawn.result.size()) + 1)), 1,
                          c);
    }
  }
  return drawn;
}

/// Adds the product of the operands' elements to the result, for all indices of all letters.
Doubles looped(const Sum& sum, const std::vector<Tensor>& operands) {
  std::map<char, std::int64_t> at;
  std::int64_t results = 1;
  for (const auto& [c, size] : sum.sizes) {
    at[c] = 0;
    results *= sum.result.find(c) != std::string::npos ? size : 1;
  }
  const auto index = [&](const std::string& letters) {
    std::int64_t i = 0;
    for (const char c : letters) {
      i = i * sum.sizes.at(c) + at.at(c);
    }
    return static_cast<std::size_t>(i);
  };
  std::string used;
  for (const std::string& operand : sum.operands) {
    used += operand;
  }
  Doubles result(static_cast<std::size_t>(results), 0.0);
  for (bool more = true; more;) {
    double product = 1;
    for (std::size_t i = 0; i < operands.size(); ++i) {
      product *= operands[i].values[index(sum.operands[i])];
    }
    result[index(sum.result)] += product;
    more = false;
    for (auto& [c, i] : at) {
      if (used.find(c) == std::string::npos) {
        continue;
      }
      if (++i < sum.sizes.at(c)) {
        more = true;
        break;
      }
      i = 0;
    }
  }
  return result;
}

}  // namespace

TEST_CASE("300 random einsums of one to three operands equal a loop", "[kernels]") {
  Random random(7);
  std::size_t with_diagonals = 0;
  for (int number = 0; number < 300; ++number) {
    const Sum sum = random_sum(random);
    std::vector<Tensor> operands;
    for (const std::string& letters : sum.operands) {
      std::vector<std::int64_t> shape;
      for (const char c : letters) {
        shape.push_back(sum.sizes.at(c));
        with_diagonals += std::count(letters.begin(), letters.end(), c) > 1 ? 1 : 0;
      }
      operands.push_back(random_tensor(random, shape));
    }
    INFO(sum.text());
    const Tensor found = evaluate(
        operands, [&](sdk::Function&, const std::vector<sdk::Value>& v) { return sdk::einsum(sum.text(), v); });
    Tensor expected = found;
    expected.values = looped(sum, operands);
    REQUIRE(found.values.size() == expected.values.size());
    CHECK(difference(found, expected, {.of_largest = 1e-12}) == "");
  }
  CHECK(with_diagonals > 30);
}

TEST_CASE("an ellipsis stands for the dimensions that have no letter", "[kernels]") {
  Random random(9);
  const Tensor a = random_tensor(random, {2, 3, 4, 5});
  const Tensor b = random_tensor(random, {3, 5, 4});
  const auto same = [&](const char* with, const char* without) {
    const auto value = [&](const char* spec) {
      return evaluate({a, b}, [&](sdk::Function&, const std::vector<sdk::Value>& v) { return sdk::einsum(spec, v); });
    };
    CHECK(value(with).values == value(without).values);
  };
  same("...ij,...ji->...i", "xyij,yji->xyi");
  same("x...ij, ...ji -> ...x", "xyij,yji->yx");
  same("...,zab->...", "wxyz,abc->wxyz");
}

TEST_CASE("an einsum that cannot be is refused with its text", "[kernels]") {
  Random random(11);
  const Tensor a = random_tensor(random, {2, 3});
  const auto refusal = [&](const char* spec) -> std::string {
    try {
      static_cast<void>(
          evaluate({a}, [&](sdk::Function&, const std::vector<sdk::Value>& v) { return sdk::einsum(spec, v); }));
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "nothing";
  };
  CHECK(refusal("ij").find("einsum \"ij\": expected operands, -> and the result") != std::string::npos);
  CHECK(refusal("ij,jk->ik").find("it has 2 operands, and 1 are given") != std::string::npos);
  CHECK(refusal("ii->i").find("'i' stands for dimensions of different sizes") != std::string::npos);
  CHECK(refusal("ij->k").find("the result's 'k' stands in no operand") != std::string::npos);
  CHECK(refusal("...ijk->i").find("operand 0 has only 2 dimensions") != std::string::npos);
  CHECK(refusal("i->i").find("operand 0 has 2 dimensions, expected 1") != std::string::npos);
}
