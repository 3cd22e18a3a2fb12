// What the comparison with the reference does not show: exact bits, very large and small operands, and empty tensors.

#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "core/base/philox.h"
#include "core/device/cpu/variant.h"
#include "core/device/device.h"
#include "core/device/threads.h"
#include "tests/support/catch.h"
#include "tests/support/depth.h"

using namespace shardrun;
using namespace shardrun::device;

namespace {

using Floats = std::vector<float>;

TensorView view(Floats& values, std::initializer_list<std::int64_t> shape) {
  TensorView tensor;
  tensor.data = values.data();
  for (const std::int64_t size : shape) {
    tensor.shape[tensor.rank] = tensor.global[tensor.rank] = size;
    ++tensor.rank;
  }
  return tensor;
}

/// y = op(inputs...), all vectors of the same length.
Floats map(const Kernel& kernel, const graph::Attributes& attributes, std::vector<Floats> inputs,
           const Scalars& scalars = {}) {
  const auto size = static_cast<std::int64_t>(inputs[0].size());
  Floats y(inputs[0].size());
  std::vector<TensorView> views;
  for (Floats& input : inputs) {
    views.push_back(view(input, {size}));
  }
  const std::vector<TensorView> outputs = {view(y, {size})};
  std::vector<float> scratch(64);
  Threads threads(1);
  kernel.run({.attributes = attributes,
              .inputs = views,
              .outputs = outputs,
              .scratch = std::as_writable_bytes(std::span(scratch)),
              .scalars = scalars,
              .threads = threads});
  return y;
}

Floats sweep(double from, double to, int count) {
  Floats x;
  for (int i = 0; i <= count; ++i) {
    x.push_back(static_cast<float>(from + (to - from) * i / count));
  }
  return x;
}

double worst_relative(const Floats& found, const Floats& x, double (*function)(double)) {
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double expected = function(static_cast<double>(x[i]));
    worst = std::max(worst, std::abs(static_cast<double>(found[i]) - expected) / std::abs(expected));
  }
  return worst;
}

double gelu_erf(double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }
double gelu_tanh(double x) {
  return x / (1 + std::exp(-2 * std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

}  // namespace

TEST_CASE("gelu keeps its relative precision into the tails", "[device]") {
  for (const cpu::LevelKernel& variant : cpu::kernels_of("gelu")) {
    INFO("instruction set " << variant.level);
    const Floats wide = sweep(-9, 9, 4000);
    const Floats narrow = sweep(-1e-3, 1.003e-3, 1000);
    CHECK(worst_relative(map(variant.kernel, {{"form", "erf"}}, {wide}), wide, gelu_erf) < 1e-5);
    CHECK(worst_relative(map(variant.kernel, {{"form", "tanh"}}, {wide}), wide, gelu_tanh) < 1e-5);
    CHECK(worst_relative(map(variant.kernel, {{"form", "erf"}}, {narrow}), narrow, gelu_erf) < 5e-7);
    CHECK(worst_relative(map(variant.kernel, {{"form", "tanh"}}, {narrow}), narrow, gelu_tanh) < 5e-7);
  }
}

TEST_CASE("sin and cos hold for small, large and very large angles", "[device]") {
  for (const char* op : {"sin", "cos"}) {
    for (const cpu::LevelKernel& variant : cpu::kernels_of(op)) {
      for (const double range : {4.0, 8000.0, 1e6}) {
        const Floats x = sweep(-range, range, 3001);
        const Floats y = map(variant.kernel, {}, {x});
        double worst = 0;
        for (std::size_t i = 0; i < x.size(); ++i) {
          const auto angle = static_cast<double>(x[i]);
          const double expected = op[0] == 's' ? std::sin(angle) : std::cos(angle);
          worst = std::max(worst, std::abs(static_cast<double>(y[i]) - expected));
        }
        INFO(op << " up to " << range << ", instruction set " << variant.level);
        CHECK(worst < 3e-7);
      }
    }
  }
}

TEST_CASE("a linear combination rounds every product and sum, as the plain loop does", "[device]") {
  const std::vector<double> coefficients = {0.1, -0.7, 1.3};
  const std::vector<Floats> x = {sweep(-1, 2, 100), sweep(3, -5, 100), sweep(0.1, 0.2, 100)};
  Floats expected(x[0].size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    // volatile: this file may be compiled with contraction
    volatile float total = static_cast<float>(coefficients[0]) * x[0][i];
    for (std::size_t k = 1; k < x.size(); ++k) {
      volatile const float product = static_cast<float>(coefficients[k]) * x[k][i];
      total = total + product;
    }
    expected[i] = total;
  }
  for (const cpu::LevelKernel& variant : cpu::kernels_of("linear_combination")) {
    INFO("instruction set " << variant.level);
    CHECK(map(variant.kernel, {{"coefficients", coefficients}}, x) == expected);
  }
}

TEST_CASE("dropout draws the blocks of philox, past four billion too", "[device]") {
  Scalars scalars;
  scalars.seed = 7;
  scalars.step = 3;
  scalars.first_sample = 11;
  const PhiloxKey key = stream_key(7, "layer");
  for (const cpu::LevelKernel& variant : cpu::kernels_of("dropout")) {
    for (const std::int64_t origin : {std::int64_t{0}, std::int64_t{5}, (std::int64_t{1} << 34) - 6}) {
      constexpr std::int64_t width = 150;
      const graph::Attributes attributes = {{"rate", 0.25}, {"stream", "layer"}};
      Floats x(width, 3);
      Floats y(width);
      TensorView in = view(x, {1, width});
      in.origin[1] = origin;
      in.global[1] = origin + width;
      TensorView out = view(y, {1, width});
      Threads threads(1);

      variant.kernel.run({.attributes = attributes,
                          .inputs = std::span(&in, 1),
                          .outputs = std::span(&out, 1),
                          .scratch = {},
                          .scalars = scalars,
                          .threads = threads});

      Floats expected(width);
      for (std::int64_t i = 0; i < width; ++i) {
        const auto block = static_cast<std::uint64_t>((origin + i) / 4);
        const PhiloxBlock bits =
            philox({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32U), 11, 3}, key);
        const float draw = uniform(bits[static_cast<std::size_t>((origin + i) % 4)]);
        expected[static_cast<std::size_t>(i)] = draw >= 0.25F ? 4 : 0;
      }
      INFO("from element " << origin << ", instruction set " << variant.level);
      CHECK(y == expected);
    }
  }
}

TEST_CASE("shards may be empty", "[device]") {
  const graph::Attributes attributes = {{"contract", std::int64_t{1}}, {"transpose", std::int64_t{0}}};
  Floats x;
  Floats dy;
  Floats dw(6, 5);
  const std::vector<TensorView> inputs = {view(x, {0, 2}), view(dy, {0, 3})};
  const std::vector<TensorView> outputs = {view(dw, {2, 3})};
  Threads threads(2);
  const Scalars scalars;
  const Kernel& kernel = Device::find("cpu").kernel("matmul_gradient_weights");

  kernel.run({attributes, inputs, outputs, true, {}, scalars, threads});
  CHECK(dw == Floats(6, 5));
  kernel.run({attributes, inputs, outputs, false, {}, scalars, threads});
  CHECK(dw == Floats(6, 0));
}

TEST_CASE("the kernels of the machine's best instruction set are used", "[device]") {
  std::ifstream file("/proc/cpuinfo");
  std::string flags;
  for (std::string line; std::getline(file, line) && flags.empty();) {
    flags = line.starts_with("flags") ? line + " " : "";
  }
  const auto has = [&](const char* flag) { return flags.find(std::string(" ") + flag + " ") != std::string::npos; };
  const bool v3 = has("avx2") && has("fma");
  const bool v4 = v3 && has("avx512f") && has("avx512bw") && has("avx512dq") && has("avx512vl");
  CHECK(device::machine_level() == (v4 ? 4 : v3 ? 3 : 0));

  const std::vector<cpu::LevelKernel> kernels = cpu::kernels_of("gelu");
  if (test::sanitized && !test::all_tests) {  // only the baseline is built
    REQUIRE(kernels.size() == 1);
  } else {
    REQUIRE(kernels.size() == (v4 ? 3U : v3 ? 2U : 1U));
    CHECK(kernels.back().level == device::machine_level());
  }
  CHECK(Device::find("cpu").kernel("gelu").run == kernels.back().kernel.run);
}
