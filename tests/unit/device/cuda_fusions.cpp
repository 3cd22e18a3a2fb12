// Ops that a product by cuBLASLt computes as its epilogue, on the device `cuda` over fakes of CUDA and of cuBLASLt.

#include <cmath>
#include <functional>
#include <random>
#include <string>

#include "tests/support/errors.h"
#include "tests/unit/device/on_library.h"

using namespace shardrun;
using namespace shardrun::device;
using namespace shardrun::test;
using Catch::Matchers::Contains;

namespace {

constexpr std::int64_t other_memory = 5 << 20;  ///< behind the product's memory and scratch
constexpr std::int64_t more_memory = 6 << 20;

double gelu_of(double x) {
  const double inner = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1 + std::tanh(inner));
}

double slope_of(double x) {
  constexpr double step = 1e-5;
  return (gelu_of(x + step) - gelu_of(x - step)) / (2 * step);
}

/// A product of random matrices, and ops that follow it.
struct Chain : OnLibrary {
  struct Op {
    std::string_view name;
    graph::Attributes attributes;
    std::unique_ptr<const PreparedKernel> kernel;
  };

  using OnLibrary::OnLibrary;
  ~Chain() { queue->finish(); }

  /// Fills a tensor with random numbers. Returns them as the tensor has rounded them.
  std::vector<double> fill(const TensorView& tensor, double scale = 1) {
    std::uniform_real_distribution<double> values(-scale, scale);
    std::vector<double> random(static_cast<std::size_t>(tensor.elements()));
    std::ranges::generate(random, [&] { return values(generator); });
    write(tensor, random);
    return read(tensor);
  }

  /// Fills x and w, and returns their product in float64.
  std::vector<double> fill_product() {
    const std::vector<double> of_x = fill(x);
    const std::vector<double> of_w = fill(w, 0.3);
    std::vector<double> sums(static_cast<std::size_t>(rows * columns));
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      for (std::int64_t k = 0; k < inner; ++k) {
        sums[static_cast<std::size_t>(i)] += of_x[static_cast<std::size_t>(i / columns * inner + k)] *
                                             of_w[static_cast<std::size_t>(k * columns + i % columns)];
      }
    }
    return sums;
  }

  void then(std::string_view op, std::vector<TensorView> inputs, const TensorView& output,
            graph::Attributes attributes = {}) {
    const auto& added = ops.emplace_back(std::make_unique<Op>(Op{op, std::move(attributes), nullptr}));
    added->kernel = device.prepare(kernel_of(op), added->attributes, std::move(inputs), {output}, {}, "result");
  }
  void then_gelu(const TensorView& output, const char* form = "tanh") { then("gelu", {y}, output, {{"form", form}}); }

  /// Fuses ops into the product. Returns how many of them it computes.
  std::size_t fuse() {
    prepare();
    std::size_t count = 0;
    for (; count < ops.size(); ++count) {
      auto made = device.fuse(fused == nullptr ? *prepared : *fused, *ops[count]->kernel);
      if (made == nullptr) {
        break;
      }
      fused = std::move(made);
    }
    return count;
  }

  /// Fuses all ops, and runs them. Checks that one product is given to the stream, and no kernel of ours.
  void run_fused() {
    REQUIRE(fuse() == ops.size());
    queue->run(*fused, false, {});  // the first run fills the scratch
    queue->finish();
    const fake::CublasLtCounts before = fake::cublaslt_counts();
    queue->run(*fused, false, {});
    queue->finish();
    CHECK(fake::cublaslt_counts().products == before.products + 1);
    CHECK(fake::cublaslt_counts().fused == before.fused + 1);
  }

  /// Checks that all elements are the expected numbers, rounded once.
  void check_values(const TensorView& tensor, const std::vector<double>& sums,
                    const std::function<double(double sum, std::size_t i)>& expected) {
    const std::vector<double> found = read(tensor);
    REQUIRE(found.size() == sums.size());
    const double unit = tensor.dtype == DType::bf16 ? 1.0 / 256 : 1e-6;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const double exact = expected(sums[i], i);
      INFO(i);
      CHECK(std::abs(found[i] - exact) <= 1.01 * unit * std::abs(exact) + 2e-6);
    }
  }

  void use_f32() {
    for (TensorView* const tensor : {&x, &w, &y}) {
      tensor->dtype = tensor->rounded = DType::f32;
    }
  }

  std::mt19937 generator{7};
  std::vector<std::unique_ptr<Op>> ops;
  std::unique_ptr<const PreparedKernel> fused;
};

}  // namespace

TEST_CASE("a product, a bias and GELU become one product, which also writes GELU's operand", "[unit]") {
  for (const auto& [m, k, n] : {std::array<std::int64_t, 3>{6, 24, 8}, {33, 40, 24}, {1, 7, 16}, {17, 1, 8}}) {
    Chain at(m, k, n);
    const TensorView bias = at.view(other_memory, {n});
    const TensorView result = at.view(more_memory, {m, n});
    at.then("add", {at.y, bias}, at.y);
    at.then_gelu(result);
    const std::vector<double> sums = at.fill_product();
    const std::vector<double> of_bias = at.fill(bias);

    at.run_fused();

    const auto operand = [&](double sum, std::size_t i) { return sum + of_bias[i % static_cast<std::size_t>(n)]; };
    at.check_values(at.y, sums, operand);
    at.check_values(result, sums, [&](double sum, std::size_t i) { return gelu_of(operand(sum, i)); });
    CHECK(at.fused->makes == "result");
  }
}

TEST_CASE("a product becomes one with the bias and the tensor added to it, in either order", "[unit]") {
  for (const bool is_f32 : {false, true}) {
    for (const bool bias_first : {true, false}) {
      Chain at(7, 36, 5);
      TensorView bias = at.view(other_memory, {5});
      TensorView residual = at.view(more_memory, {7, 5});
      if (is_f32) {
        at.use_f32();
        bias.dtype = residual.dtype = DType::f32;
      }
      at.then("add", {at.y, bias_first ? bias : residual}, at.y);
      at.then("add", {bias_first ? residual : bias, at.y}, at.y);
      const std::vector<double> sums = at.fill_product();
      const std::vector<double> of_bias = at.fill(bias);
      const std::vector<double> of_residual = at.fill(residual);

      at.run_fused();

      at.check_values(at.y, sums, [&](double sum, std::size_t i) { return sum + of_bias[i % 5] + of_residual[i]; });
      CHECK(at.read(residual) == of_residual);
    }
  }
}

TEST_CASE("a bias of several dimensions is fused as one vector for a row", "[unit]") {
  Chain at(6, 16, 12);
  at.y = at.view(1 << 21, {6, 3, 4});
  at.w = at.view(1 << 20, {16, 3, 4});
  const TensorView bias = at.view(other_memory, {3, 4});
  at.then("add", {at.y, bias}, at.y);
  const std::vector<double> sums = at.fill_product();
  const std::vector<double> of_bias = at.fill(bias);

  at.run_fused();

  at.check_values(at.y, sums, [&](double sum, std::size_t i) { return sum + of_bias[i % 12]; });
}

TEST_CASE("GELU in place of a product keeps no operand, so rows of any length are fused", "[unit]") {
  Chain at(6, 24, 5);
  at.then_gelu(at.y);
  const std::vector<double> sums = at.fill_product();

  at.run_fused();

  at.check_values(at.y, sums, [&](double sum, std::size_t) { return gelu_of(sum); });
}

TEST_CASE("a product of gradients and GELU's gradient become one product", "[unit]") {
  Chain at(9, 20, 16);
  const TensorView operand = at.view(other_memory, {9, 16});
  at.then("gelu_gradient", {at.y, operand}, at.y, {{"form", "tanh"}});
  const std::vector<double> sums = at.fill_product();
  const std::vector<double> of_operand = at.fill(operand, 3);

  at.run_fused();

  at.check_values(at.y, sums, [&](double sum, std::size_t i) { return sum * slope_of(of_operand[i]); });
}

TEST_CASE("an op that an epilogue cannot compute, or would write elsewhere, runs by itself", "[unit]") {
  struct Case {
    const char* why;
    std::function<void(Chain&)> add;
  };
  const std::vector<Case> cases = {
      {"the sum is not in place",
       [](Chain& at) {
         at.then("add", {at.y, at.view(other_memory, {8})}, at.view(more_memory, {6, 8}));
       }},
      {"both operands are the product",
       [](Chain& at) {
         at.then("add", {at.y, at.y}, at.y);
       }},
      {"the product is no operand",
       [](Chain& at) {
         at.then("add", {at.view(other_memory, {6, 8}), at.view(more_memory, {8})}, at.y);
       }},
      {"a column is added",
       [](Chain& at) {
         at.then("add", {at.y, at.view(other_memory, {6, 1})}, at.y);
       }},
      {"the bias is not aligned",
       [](Chain& at) {
         at.then("add", {at.y, at.view(other_memory + 2, {8})}, at.y);
       }},
      {"the bias is of another type",
       [](Chain& at) {
         TensorView bias = at.view(other_memory, {8});
         bias.dtype = DType::f32;
         at.then("add", {at.y, bias}, at.y);
       }},
      {"another op",
       [](Chain& at) {
         at.then("multiply", {at.y, at.view(other_memory, {8})}, at.y);
       }},
      {"the exact GELU", [](Chain& at) { at.then_gelu(at.y, "erf"); }},
      {"GELU in float32",
       [](Chain& at) {
         at.use_f32();
         at.then_gelu(at.y);
       }},
      {"GELU of something else",
       [](Chain& at) {
         at.then("gelu", {at.view(other_memory, {6, 8})}, at.y, {{"form", "tanh"}});
       }},
      {"GELU where the product reads",
       [](Chain& at) {
         at.then_gelu(at.view(0, {6, 8}));
       }},
      {"GELU where the product works",
       [](Chain& at) {
         at.then_gelu(at.view(at.scratch.data() - at.memory->data(), {6, 8}));
       }},
      {"the gradient is not in place",
       [](Chain& at) {
         at.then("gelu_gradient", {at.y, at.view(other_memory, {6, 8})}, at.view(more_memory, {6, 8}),
                 {{"form", "tanh"}});
       }},
      {"the product is GELU's operand",
       [](Chain& at) {
         at.then("gelu_gradient", {at.view(other_memory, {6, 8}), at.y}, at.y, {{"form", "tanh"}});
       }},
      {"the exact GELU's gradient", [](Chain& at) {
         at.then("gelu_gradient", {at.y, at.view(other_memory, {6, 8})}, at.y, {{"form", "erf"}});
       }}};
  for (const Case& each : cases) {
    Chain at(6, 128, 8);
    each.add(at);
    at.prepare();
    const std::int64_t before = fake::cublaslt_counts().choices;
    INFO(each.why);
    CHECK(at.fuse() == 0);
    CHECK(fake::cublaslt_counts().choices == before);  // the library is not even asked
  }
  for (const bool is_kept : {true, false}) {
    Chain odd(6, 24, 12);
    odd.then_gelu(is_kept ? odd.view(more_memory, {6, 12}) : odd.y);
    CHECK(odd.fuse() == (is_kept ? 0 : 1));
  }
}

TEST_CASE("an epilogue has one bias at most, and GELU last", "[unit]") {
  {
    Chain at(6, 24, 8);
    at.then("add", {at.y, at.view(other_memory, {8})}, at.y);
    at.then("add", {at.y, at.view(other_memory + 1024, {8})}, at.y);
    CHECK(at.fuse() == 1);
  }
  Chain at(6, 24, 8);
  at.then_gelu(at.y);
  at.then("add", {at.y, at.view(other_memory, {8})}, at.y);
  CHECK(at.fuse() == 1);
}

TEST_CASE("products in padded rows and products of our own kernel are not fused", "[unit]") {
  {
    Chain padded(800, 392, 515);
    padded.then("add", {padded.y, padded.view(other_memory << 1, {515})}, padded.y);
    CHECK(padded.fuse() == 0);
  }
  const Variable none("FAKE_CUBLASLT_NONE", "1");
  Chain own(6, 1016, 8);
  own.then("add", {own.y, own.view(other_memory, {8})}, own.y);
  CHECK(own.fuse() == 0);
}

TEST_CASE("an epilogue without an algorithm, or whose choice fails, is left to the ops", "[unit]") {
  const auto fused = [](std::int64_t inner) {
    Chain at(6, inner, 8);
    at.then("add", {at.y, at.view(other_memory, {8})}, at.y);
    at.then_gelu(at.view(more_memory, {6, 8}));
    return at.fuse();
  };
  {
    const Variable without("FAKE_CUBLASLT_WITHOUT", "32");  // GELU
    CHECK(fused(2008) == 1);
  }
  {
    const Variable without("FAKE_CUBLASLT_WITHOUT", "4");  // a bias
    CHECK(fused(2016) == 0);
  }
  CHECK(fused(2024) == 2);

  Chain at(6, 2032, 8);
  at.prepare();
  const TensorView bias = at.view(other_memory, {8});
  at.then("add", {at.y, bias}, at.y);
  {
    const Variable function("FAKE_CUBLASLT_FAIL", "cublasLtMatmulAlgoGetHeuristic");
    const Variable status("FAKE_CUBLASLT_STATUS", "7");
    CHECK(at.fuse() == 0);
  }
  CHECK(at.fuse() == 0);  // the library is not asked again
}

TEST_CASE("equal products with other biases choose an algorithm once, and each adds its own bias", "[unit]") {
  Chain first(6, 56, 8);
  first.then("add", {first.y, first.view(other_memory, {8})}, first.y);
  CHECK(first.fuse() == 1);
  const std::int64_t before = fake::cublaslt_counts().choices;
  first.then("add", {first.y, first.view(more_memory, {8})}, first.y);
  const std::vector<double> sums = first.fill_product();
  const std::vector<double> of_one = first.fill(first.view(other_memory, {8}));
  const std::vector<double> of_other = first.fill(first.view(more_memory, {8}));
  const auto other = first.device.fuse(*first.prepared, *first.ops.back()->kernel);
  REQUIRE(other != nullptr);
  CHECK(fake::cublaslt_counts().choices == before);

  first.queue->run(*first.fused, false, {});
  first.check_values(first.y, sums, [&](double sum, std::size_t i) { return sum + of_one[i % 8]; });
  first.queue->run(*other, false, {});
  first.check_values(first.y, sums, [&](double sum, std::size_t i) { return sum + of_other[i % 8]; });
}

TEST_CASE("a failure of fused ops names all of them", "[unit]") {
  Chain at(6, 72, 8);
  at.then("add", {at.y, at.view(other_memory, {8})}, at.y);
  at.then_gelu(at.y);
  REQUIRE(at.fuse() == 2);
  const Variable function("FAKE_CUBLASLT_FAIL", "cublasLtMatmul");
  CHECK_THAT(
      test::error_of([&] { at.queue->run(*at.fused, false, {}); }),
      Contains("op matmul + add + gelu (result): multiplying bf16[6, 72] bf16[72, 8] -> bf16, plus a bias, GELU by "
               "cuBLASLt 13.1.0: cublasLtMatmul returned CUBLAS_STATUS_EXECUTION_FAILED"));
}

// With SHARDRUN_CUDA_PRODUCTS=unfused; each process reads it once.
TEST_CASE("nothing is fused if SHARDRUN_CUDA_PRODUCTS is unfused", "[.][unfused]") {
  Chain at(6, 24, 8);
  CHECK(at.device.facts().bf16_products.starts_with("cuBLASLt 13.1.0, unfused; "));
  at.then("add", {at.y, at.view(other_memory, {8})}, at.y);
  CHECK(at.fuse() == 0);
}
