// Answers of another library (PyTorch 1.13, float64). They reveal a formula that both devices have wrong in the
// same way.

#include <limits>

#include "core/device/cpu/variant.h"
#include "tests/kernels/compare.h"
#include "tests/support/catch.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

Tensor tensor(std::vector<std::int64_t> shape, std::vector<double> values) {
  Tensor result = zeros(type_of(std::move(shape)));
  REQUIRE(values.size() == result.values.size());
  result.values = std::move(values);
  return result;
}

Tensor vector(std::vector<double> values) {
  const auto size = static_cast<std::int64_t>(values.size());
  return tensor({size}, std::move(values));
}

struct DeviceCase {
  const device::Device* device;
  Tolerance tolerance;
};

std::vector<DeviceCase> devices() {
  return {{&device::Device::find("reference"), {.of_largest = 1e-15}},
          {&device::Device::find("cpu"), {.of_largest = 1e-6}}};
}

std::vector<Tensor> call(const DeviceCase& on, std::string_view op, const graph::Attributes& attributes,
                         const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
                         const device::Scalars& scalars = {}) {
  return execute(*on.device,
                 {.op = op, .attributes = attributes, .inputs = inputs, .outputs = outputs, .scalars = scalars});
}

Tensor parameter() { return vector({1.0, -0.5, 0.25, 2.0}); }
std::vector<Tensor> gradients() {
  return {vector({0.5, -1.0, 0.125, 0.0}), vector({-0.25, -1.0, 0.5, 0.0}), vector({1.0, 0.75, -0.125, 0.0})};
}

/// Three steps of an optimizer whose states are `states`, parameter first. The gradients come at twice their size,
/// and the scale of clipping halves them again.
std::vector<Tensor> train(const DeviceCase& on, std::string_view op, const graph::Attributes& attributes,
                          std::vector<Tensor> states) {
  std::int64_t step = 0;
  for (Tensor doubled : gradients()) {
    for (double& value : doubled.values) {
      value *= 2;
    }
    std::vector<Tensor> inputs = states;
    inputs.push_back(doubled);
    inputs.push_back(tensor({}, {0.5}));
    states = call(on, op, attributes, inputs, states, {.step = step++, .learning_rate = 0.01});
  }
  return states;
}

}  // namespace

TEST_CASE("gelu's two forms are PyTorch's", "[kernels]") {
  const Tensor x = vector({-6, -3, -1.5, -0.5, -0.125, 0, 0.125, 0.5, 1.5, 3, 6});
  const Tensor exact = vector({-5.919525869479969e-09, -0.00404969409489031, -0.10021080190328704, -0.15426876936299344,
                               -0.056282721896235885, 0.0, 0.06871727810376412, 0.34573123063700656, 1.399789198096713,
                               2.99595030590511, 5.999999994080474});
  const Tensor approximate = vector({-8.43964897967453e-11, -0.0036373920817729943, -0.10042842301976707,
                                     -0.15428599017485606, -0.05628280137577661, 0.0, 0.06871719862422339,
                                     0.34571400982514394, 1.3995715769802328, 2.996362607918227, 5.9999999999156035});
  for (const DeviceCase& on : devices()) {
    INFO(on.device->name());
    CHECK(difference(call(on, "gelu", {{"form", "erf"}}, {x}, {x})[0], exact, on.tolerance) == "");
    CHECK(difference(call(on, "gelu", {{"form", "tanh"}}, {x}, {x})[0], approximate, on.tolerance) == "");
  }
}

// Computed with 40 digits by another program (mpmath).
TEST_CASE("functions of one number have their known values", "[kernels]") {
  const Tensor x = vector({-6, -1.5, -0.25, 0, 0.5, 3, 12});
  const Tensor p = vector({0.0078125, 0.5, 0.75, 1, 1.5, 3, 1000});
  struct Known {
    const char* op;
    const Tensor& at;
    std::vector<double> expected;
  };
  const std::vector<Known> all = {
      {"exp",
       x,
       {0.0024787521766663585, 0.22313016014842982, 0.7788007830714049, 1.0, 1.6487212707001282, 20.085536923187668,
        162754.79141900392}},
      {"tanh",
       x,
       {-0.9999877116507956, -0.9051482536448664, -0.24491866240370913, 0.0, 0.46211715726000974, 0.9950547536867305,
        0.9999999999244973}},
      {"erf", x, {-1.0, -0.9661051464753108, -0.27632639016823696, 0.0, 0.5204998778130465, 0.9999779095030014, 1.0}},
      {"sigmoid",
       x,
       {0.0024726231566347743, 0.18242552380635635, 0.4378234991142019, 0.5, 0.6224593312018546, 0.9525741268224333,
        0.9999938558253978}},
      {"silu",
       x,
       {-0.014835738939808645, -0.2736382857095345, -0.10945587477855047, 0.0, 0.3112296656009273, 2.8577223804672998,
        11.999926269904773}},
      {"abs", x, {6, 1.5, 0.25, 0, 0.5, 3, 12}},
      {"sign", x, {-1, -1, -1, 0, 1, 1, 1}},
      {"log",
       p,
       {-4.852030263919617, -0.6931471805599453, -0.2876820724517809, 0.0, 0.4054651081081644, 1.0986122886681098,
        6.907755278982137}},
      {"sqrt",
       p,
       {0.08838834764831845, 0.7071067811865476, 0.8660254037844386, 1.0, 1.224744871391589, 1.7320508075688772,
        31.622776601683793}},
      {"rsqrt",
       p,
       {11.313708498984761, 1.4142135623730951, 1.1547005383792515, 1.0, 0.816496580927726, 0.5773502691896257,
        0.03162277660168379}}};
  for (const DeviceCase& on : devices()) {
    for (const Known& known : all) {
      INFO(known.op << " on " << on.device->name());
      CHECK(difference(call(on, known.op, {}, {known.at}, {known.at})[0], vector(known.expected), on.tolerance) == "");
    }
    CHECK(difference(call(on, "clamp", {{"low", -1.0}, {"high", 2.0}}, {x}, {x})[0],
                     vector({-1, -1, -0.25, 0, 0.5, 2, 2}), on.tolerance) == "");
  }
}

TEST_CASE("functions of two numbers have their known values, also at their edges", "[kernels]") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor a = vector({2, -2, 0, 9, nan, 1});
  const Tensor b = vector({10, 3, 0, 0.5, 1, nan});
  struct Known {
    const char* op;
    std::vector<double> expected;
  };
  const std::vector<Known> all = {
      {"subtract", {-8, -5, 0, 8.5, nan, nan}}, {"divide", {0.2, -2.0 / 3, nan, 18, nan, nan}},
      {"power", {1024, -8, 1, 3, nan, 1}},      {"minimum", {2, -2, 0, 0.5, nan, nan}},
      {"maximum", {10, 3, 0, 9, nan, nan}},     {"equal", {0, 0, 1, 0, 0, 0}},
      {"not_equal", {1, 1, 0, 1, 1, 1}},        {"less", {1, 1, 0, 0, 0, 0}},
      {"less_equal", {1, 1, 1, 0, 0, 0}},       {"greater", {0, 0, 0, 1, 0, 0}},
      {"greater_equal", {0, 0, 1, 1, 0, 0}}};
  for (const DeviceCase& on : devices()) {
    for (const Known& known : all) {
      INFO(known.op << " on " << on.device->name());
      CHECK(difference(call(on, known.op, {}, {a, b}, {a})[0], vector(known.expected), on.tolerance) == "");
    }
    const Tensor chosen = call(on, "where", {}, {vector({1, 0, -3, 0, 1, 0}), a, tensor({}, {7})}, {a})[0];
    CHECK(difference(chosen, vector({2, 7, 0, 7, nan, 7}), on.tolerance) == "");
  }
}

TEST_CASE("three steps of adamw are PyTorch's", "[kernels]") {
  const graph::Attributes attributes = {{"beta1", 0.9}, {"beta2", 0.99}, {"epsilon", 0.05}, {"decay", 0.1}};
  const std::vector<Tensor> expected = {
      vector({0.9794614779715016, -0.47584326593034476, 0.22995059863395884, 1.994005998}),
      vector({0.118, -0.096, 0.042625, 0.0}), vector({0.013069, 0.025326, 0.002784390625, 0.0})};
  for (const DeviceCase& on : devices()) {
    INFO(on.device->name());
    const std::vector<Tensor> found =
        train(on, "adamw", attributes, {parameter(), zeros(type_of({4})), zeros(type_of({4}))});
    CHECK(difference(found, expected, on.tolerance) == "");
  }
}

TEST_CASE("three steps of sgd are PyTorch's", "[kernels]") {
  const std::vector<Tensor> plain = {vector({0.984510494, -0.4860314895, 0.2442582485, 1.994005998})};
  const std::vector<Tensor> heavy = {vector({0.975611294, -0.4586453895, 0.2369709485, 1.988789598}),
                                     vector({1.4494706, -1.09151105, 0.49305515, 0.54124020})};
  for (const DeviceCase& on : devices()) {
    INFO(on.device->name());
    CHECK(difference(train(on, "sgd", {{"momentum", 0.0}, {"decay", 0.1}}, {parameter()}), plain, on.tolerance) == "");
    CHECK(difference(train(on, "sgd", {{"momentum", 0.9}, {"decay", 0.1}}, {parameter(), zeros(type_of({4}))}), heavy,
                     on.tolerance) == "");
  }
}

TEST_CASE("clipping scales as PyTorch's does", "[kernels]") {
  for (const DeviceCase& on : devices()) {
    INFO(on.device->name());
    const std::vector<Tensor> found =
        call(on, "clip_scale", {{"limit", 1.0}}, {tensor({}, {25})}, {tensor({}, {0}), tensor({}, {0})});
    CHECK(difference(found, {tensor({}, {0.599999880000024 / 3}), tensor({}, {5})}, on.tolerance) == "");
  }
}

TEST_CASE("layer_norm is PyTorch's", "[kernels]") {
  const Tensor x = tensor({2, 3}, {1, 2, 4, -1, 0.5, 0.25});
  const Tensor expected = tensor({2, 3}, {-1.0362555203016797, 1.5181277601508398, -0.3523402998114503,
                                          -1.2584790953797578, -0.6017006668469644, -0.7711856190218622});
  for (const DeviceCase& on : devices()) {
    INFO(on.device->name());
    const std::vector<Tensor> found =
        call(on, "layer_norm", {{"epsilon", 0.1}}, {x, vector({1, -2, 0.5}), vector({0, 1, -1})},
             {x, vector({0, 0}), vector({0, 0})});
    CHECK(difference(found[0], expected, on.tolerance) == "");
  }
}

TEST_CASE("causal attention is PyTorch's", "[kernels]") {
  const Tensor qkv =
      tensor({1, 3, 3, 1, 2}, {0.5, -1, 1, 0.25, 2, -1, 1.5, 0.5, -0.5, 1, 0, 3, -1, 2, 0.75, -0.25, -2, 0.5});
  const Tensor out = tensor(
      {1, 3, 1, 2}, {2.0, -1.0, 1.5802984757287648, -0.16059695145752945, 0.08289350810987305, 2.449071422185902});
  const Tensor lse = tensor({1, 1, 3}, {0.17677669529663687, 1.3845819621011175, 1.9420630202422016});
  for (const DeviceCase& on : devices()) {
    INFO(on.device->name());
    const std::vector<Tensor> found = call(on, "attention", {{"dropout", 0.0}, {"stream", "s"}}, {qkv}, {out, lse});
    CHECK(difference(found, {out, lse}, on.tolerance) == "");
  }
}

TEST_CASE("cross-entropy in parts is PyTorch's", "[kernels]") {
  const Tensor logits = tensor({2, 4}, {1, -2, 0.5, 3, 0.25, 0.25, -1, 0});
  Tensor targets = zeros(type_of({2}, graph::DType::i32));
  targets.values = {3, 2};
  const Tensor row = vector({0, 0});
  for (const DeviceCase& on : devices()) {
    INFO(on.device->name());
    const Tensor max = call(on, "row_max", {}, {logits}, {row})[0];
    const std::vector<Tensor> terms = call(on, "softmax_terms", {}, {logits, max, targets}, {row, row});
    const Tensor loss = call(on, "token_loss", {}, {max, terms[0], terms[1]}, {row})[0];
    CHECK(difference(loss, vector({0.20225344767935172, 2.3701472642330286}), on.tolerance) == "");
  }
}

// Simulations are compared bit by bit with plain loops in C, so the op has to round exactly as such a loop does. (This
// file is compiled with -ffp-contract=off, because compilers for plain x86-64 use no fused multiply-adds.)
TEST_CASE("linear_combination has the bits of a plain loop", "[kernels]") {
  constexpr std::size_t size = 1003;
  std::vector<Tensor> x(3, zeros(type_of({size})));
  Random random(9);
  for (Tensor& operand : x) {
    random.fill_normal(operand, 0, 1);
  }
  Tensor expected = x[0];
  for (std::size_t i = 0; i < size; ++i) {
    const auto a = static_cast<float>(x[0].values[i]);
    const auto b = static_cast<float>(x[1].values[i]);
    const auto c = static_cast<float>(x[2].values[i]);
    expected.values[i] = 0.3F * a + 0.1F * b + -0.7F * c;
  }
  const graph::Attributes attributes = {{"coefficients", std::vector<double>{0.3, 0.1, -0.7}}};
  for (const device::cpu::LevelKernel& variant : device::cpu::kernels_of("linear_combination")) {
    INFO("instruction set " << variant.level);
    const std::vector<Tensor> found = execute(device::Device::find("cpu"), {.op = "linear_combination",
                                                                            .attributes = attributes,
                                                                            .inputs = x,
                                                                            .outputs = {x[0]},
                                                                            .kernel = &variant.kernel});
    CHECK(difference(found[0], expected, {}) == "");
  }
}

TEST_CASE("the reference device rounds results to a 16-bit type of the graph, and only to such", "[kernels]") {
  const device::Device& reference = device::Device::find("reference");
  const auto result = [&](const char* op, graph::DType dtype, std::vector<Tensor> inputs, bool accumulate) {
    Tensor to = vector({0x1p-5});
    to.type.dtype = dtype;
    return execute(reference,
                   {.op = op, .attributes = {}, .inputs = inputs, .outputs = {to}, .accumulate = accumulate})[0]
        .values[0];
  };
  const std::vector<Tensor> terms = {vector({1}), vector({0x1p-7 + 0x1p-9})};
  CHECK(result("add", graph::DType::f32, terms, false) == 1 + 0x1p-7 + 0x1p-9);
  CHECK(result("add", graph::DType::bf16, terms, false) == 1 + 0x1p-7);
  CHECK(result("add", graph::DType::f16, terms, false) == 1 + 0x1p-7 + 0x1p-9);
  CHECK(result("copy", graph::DType::bf16, {vector({1 + 0x1p-9})}, true) == 1 + 0x1p-5);
  CHECK(result("copy", graph::DType::f32, {vector({1 + 0x1p-9})}, true) == 1 + 0x1p-5 + 0x1p-9);
}
