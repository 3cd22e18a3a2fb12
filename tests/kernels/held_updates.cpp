// Updates by the CUDA kernels that are held back because a loss or a norm is not finite (device::Guard).

#include <cmath>
#include <limits>

#include "tests/kernels/compare.h"
#include "tests/support/catch.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

Tensor filled(std::vector<std::int64_t> shape, double value) {
  Tensor tensor = zeros(type_of(std::move(shape)));
  std::fill(tensor.values.begin(), tensor.values.end(), value);
  return tensor;
}

/// Runs an op on the CUDA kernels.
std::vector<Tensor> run(const char* op, const graph::Attributes& attributes, const std::vector<Tensor>& inputs,
                        const std::vector<Tensor>& outputs, const device::Guard& guard) {
  device::Scalars scalars = scalars_of_tests();
  scalars.learning_rate = 0.5;
  scalars.guard = guard;
  return execute(device::Device::find("cuda-emulated"),
                 {.op = op, .attributes = attributes, .inputs = inputs, .outputs = outputs, .scalars = scalars});
}

}  // namespace

TEST_CASE("a norm or a loss that is not finite closes the guard for good", "[kernels][cuda]") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  struct Case {
    double squares;
    float loss;
    std::int32_t before;
    std::int32_t after;
  };
  for (const Case& each : {Case{4, 1, 0, 0}, Case{infinity, 1, 0, 1}, Case{std::nan(""), 1, 0, 1},
                           Case{4, std::numeric_limits<float>::infinity(), 0, 1}, Case{4, std::nanf(""), 0, 1},
                           Case{4, 1, 1, 1}, Case{0, -3e38F, 0, 0}}) {
    std::int32_t held = each.before;
    const Tensor scalar = filled({}, each.squares);

    static_cast<void>(
        run("clip_scale", {{"limit", 1.0}}, {scalar}, {scalar, scalar}, {.loss = &each.loss, .held = &held}));

    CHECK(held == each.after);
  }
}

TEST_CASE("held updates leave parameters and moments unchanged", "[kernels][cuda]") {
  const Tensor p = filled({7, 3}, 2);
  const Tensor m = filled({7, 3}, 0.25);
  const Tensor v = filled({7, 3}, 0.125);
  const Tensor bad = filled({7, 3}, std::nan(""));
  const graph::Attributes adamw = {{"beta1", 0.9}, {"beta2", 0.99}, {"epsilon", 1e-8}, {"decay", 0.1}};
  const graph::Attributes sgd = {{"momentum", 0.9}, {"decay", 0.1}};
  const graph::Attributes plain = {{"momentum", 0.0}, {"decay", 0.1}};
  for (const std::int32_t before : {0, 1}) {
    std::int32_t held = before;
    const device::Guard guard = {.loss = nullptr, .held = &held};

    const std::vector<Tensor> of_adamw = run("adamw", adamw, {p, m, v, bad}, {p, m, v}, guard);
    const std::vector<Tensor> of_sgd = run("sgd", sgd, {p, m, bad}, {p, m}, guard);
    const std::vector<Tensor> of_plain = run("sgd", plain, {p, bad}, {p}, guard);

    CHECK((of_adamw[0].values == p.values) == (before == 1));
    CHECK((of_adamw[1].values == m.values) == (before == 1));
    CHECK((of_adamw[2].values == v.values) == (before == 1));
    CHECK((of_sgd[0].values == p.values) == (before == 1));
    CHECK((of_sgd[1].values == m.values) == (before == 1));
    CHECK((of_plain[0].values == p.values) == (before == 1));
  }
}
