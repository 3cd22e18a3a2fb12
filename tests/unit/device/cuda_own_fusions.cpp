// Pairs of ops that one of our own kernels computes, on the device `cuda` over a fake of CUDA.

#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "tests/unit/device/on_library.h"

using namespace shardrun;
using namespace shardrun::device;
using namespace shardrun::test;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Tensors that follow each other in memory, and two ops on them.
struct Pair : OnFakeGpu {
  Pair() : OnFakeGpu(fake::lend_to_cublaslt, {}, 1 << 20) {}
  ~Pair() { queue->finish(); }

  TensorView tensor(DType dtype, const std::vector<std::int64_t>& shape) {
    const TensorView made = view(end, {.dtype = dtype, .shape = shape, .axes = {}});
    end += static_cast<std::int64_t>(made.bytes() + 255) / 256 * 256;
    return made;
  }
  /// Fills a tensor with random numbers. Returns them as the tensor has rounded them.
  std::vector<double> fill(const TensorView& to, double scale = 1) {
    std::uniform_real_distribution<double> values(-scale, scale);
    std::vector<double> random(static_cast<std::size_t>(to.elements()));
    std::ranges::generate(random, [&] { return values(generator); });
    write(to, random);
    return read(to);
  }
  void first(std::string_view op, std::vector<TensorView> inputs, std::vector<TensorView> outputs) {
    one = device.prepare(kernel_of(op), none, std::move(inputs), std::move(outputs), {}, "one");
  }
  void then(std::string_view op, std::vector<TensorView> inputs, std::vector<TensorView> outputs) {
    other = device.prepare(kernel_of(op), none, std::move(inputs), std::move(outputs), {}, "other");
  }
  bool is_fused() { return device.fuse(*one, *other) != nullptr; }
  void run_fused() {
    fused = device.fuse(*one, *other);
    REQUIRE(fused != nullptr);
    CHECK(fused->makes == "other");
    queue->run(*fused, false, {});
    queue->finish();
  }

  std::int64_t end = 0;
  std::mt19937 generator{7};
  graph::Attributes none;
  std::unique_ptr<const PreparedKernel> one;
  std::unique_ptr<const PreparedKernel> other;
  std::unique_ptr<const PreparedKernel> fused;
};

/// A row's maximum and the terms of its softmax.
struct Terms : Pair {
  Terms(DType dtype, std::int64_t rows, std::int64_t width)
      : logits(tensor(dtype, {rows, width})),
        targets(tensor(DType::i32, {rows})),
        max(tensor(dtype, {rows})),
        sum(tensor(DType::f32, {rows})),
        target(tensor(DType::f32, {rows})) {
    first("row_max", {logits}, {max});
    then("softmax_terms", {logits, max, targets}, {sum, target});
  }
  TensorView logits;
  TensorView targets;
  TensorView max;
  TensorView sum;
  TensorView target;
};

/// A norm's gradient and the sum of it and another gradient.
struct Gradients : Pair {
  Gradients(DType dtype, std::int64_t rows, std::int64_t width)
      : dy(tensor(dtype, {rows, width})),
        x(tensor(dtype, {rows, width})),
        gain(tensor(dtype, {width})),
        mean(tensor(DType::f32, {rows})),
        rstd(tensor(DType::f32, {rows})),
        dx(tensor(dtype, {rows, width})),
        residual(tensor(dtype, {rows, width})) {}

  TensorView dy;
  TensorView x;
  TensorView gain;
  TensorView mean;
  TensorView rstd;
  TensorView dx;
  TensorView residual;
};

/// An update of a parameter, and the bfloat16 copy of it.
struct Update : Pair {
  explicit Update(std::int64_t size)
      : parameter(tensor(DType::f32, {size})),
        first_moment(tensor(DType::f32, {size})),
        second_moment(tensor(DType::f32, {size})),
        gradient(tensor(DType::f32, {size})),
        copy(tensor(DType::bf16, {size})),
        states({parameter, first_moment, second_moment}) {
    one = device.prepare(kernel_of("adamw"), settings, {parameter, first_moment, second_moment, gradient}, states, {},
                         "one");
    then("cast", {parameter}, {copy});
    for (const TensorView& state : {parameter, first_moment, gradient}) {
      fill(state);
    }
    write(second_moment, std::vector<double>(static_cast<std::size_t>(size), 0.5));
  }
  /// The copy and the states after two steps.
  std::vector<std::vector<double>> after(const std::vector<const PreparedKernel*>& kernels) {
    for (const std::int64_t step : {0, 1}) {
      for (const PreparedKernel* const kernel : kernels) {
        queue->run(*kernel, false, {.step = step, .learning_rate = 0.25});
      }
    }
    queue->finish();
    return {read(copy), read(parameter), read(first_moment), read(second_moment)};
  }

  graph::Attributes settings = {{"beta1", 0.9}, {"beta2", 0.99}, {"epsilon", 1e-6}, {"decay", 0.1}};
  TensorView parameter;
  TensorView first_moment;
  TensorView second_moment;
  TensorView gradient;
  TensorView copy;
  std::vector<TensorView> states;
};

}  // namespace

TEST_CASE("an update and the bfloat16 copy of its parameter become one kernel", "[unit]") {
  for (const std::int64_t size : {1, 3, 4, 257, 4096}) {
    INFO(size);
    std::vector<std::vector<double>> apart;
    {
      Update at(size);
      apart = at.after({at.one.get(), at.other.get()});
    }
    Update at(size);
    at.fused = at.device.fuse(*at.one, *at.other);
    REQUIRE(at.fused != nullptr);
    CHECK(at.after({at.fused.get()}) == apart);
  }
  Update at(8);
  at.then("cast", {at.gradient}, {at.copy});
  CHECK_FALSE(at.is_fused());
  // The update reads what the copy would overwrite.
  TensorView over_gradient = at.gradient;
  over_gradient.dtype = DType::bf16;
  at.then("cast", {at.parameter}, {over_gradient});
  CHECK_FALSE(at.is_fused());
}

TEST_CASE("a row's maximum and softmax terms become one kernel over the logits", "[unit]") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t width : {1, 7, 96, 1024, 1032, 9000}) {
      INFO(width);
      const std::int64_t rows = 5;
      Terms at(dtype, rows, width);
      std::vector<double> values = at.fill(at.logits, 30);
      // A row that rises, a row that begins with infinite logits, a row with a NaN, and a row without a finite logit.
      std::sort(values.begin(), values.begin() + width);
      std::fill(values.begin() + 2 * width, values.begin() + 2 * width + width / 2, -infinity);
      std::fill(values.begin() + 4 * width, values.end(), -infinity);
      values[static_cast<std::size_t>(3 * width)] = std::numeric_limits<double>::quiet_NaN();
      at.write(at.logits, values);
      std::vector<double> targets;
      for (std::int64_t row = 0; row < rows; ++row) {
        targets.push_back(static_cast<double>((row + 1) * (width - 1) / rows));
      }
      at.write(at.targets, targets);

      at.run_fused();

      const std::vector<double> max = at.read(at.max);
      const std::vector<double> sum = at.read(at.sum);
      const std::vector<double> target = at.read(at.target);
      for (std::size_t row = 0; row < 5; ++row) {
        INFO(row);
        if (row == 3) {
          CHECK((std::isnan(max[row]) && std::isnan(sum[row])));
          continue;
        }
        if (row == 4) {
          CHECK((max[row] == -infinity && std::isnan(sum[row])));
          continue;
        }
        const auto begin = values.begin() + static_cast<std::ptrdiff_t>(row) * width;
        const double largest = *std::max_element(begin, begin + width);
        double expected = 0;
        std::for_each(begin, begin + width, [&](double logit) { expected += std::exp(logit - largest); });
        CHECK(max[row] == largest);
        CHECK(std::abs(sum[row] - expected) <= 4e-6 * expected);
        CHECK(target[row] == *(begin + static_cast<std::ptrdiff_t>(targets[row])));
      }
    }
  }
}

TEST_CASE("a norm's gradient and the sum with it become one kernel, in place of either operand", "[unit]") {
  for (const std::string_view norm : {"layer_norm_gradient_input", "rms_norm_gradient_input"}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const std::int64_t width : {1, 24, 100, 768, 1024, 1600}) {
        // 0: the sum replaces dx. 1: it replaces the other gradient. 2: dx is in dy's memory. 3: dy is the
        // other gradient.
        for (const int place : {0, 1, 2, 3}) {
          const bool in_place_of_dx = place != 1;
          INFO(norm << " " << width << " " << place);
          constexpr std::int64_t rows = 6;
          Gradients at(dtype, rows, width);
          if (place == 2) {
            at.dx = at.dy;
          } else if (place == 3) {
            at.residual = at.dy;
          }
          const bool has_mean = norm.starts_with("layer");
          const TensorView& result = in_place_of_dx ? at.dx : at.residual;
          at.first(norm,
                   has_mean ? std::vector{at.dy, at.x, at.gain, at.mean, at.rstd}
                            : std::vector{at.dy, at.x, at.gain, at.rstd},
                   {at.dx});
          at.then("add", in_place_of_dx ? std::vector{at.dx, at.residual} : std::vector{at.residual, at.dx}, {result});
          const std::vector<double> dy = at.fill(at.dy);
          const std::vector<double> x = at.fill(at.x);
          const std::vector<double> gain = at.fill(at.gain);
          const std::vector<double> mean = at.fill(at.mean);
          const std::vector<double> rstd = at.fill(at.rstd, 2);
          const std::vector<double> residual = place == 3 ? dy : at.fill(at.residual);

          at.run_fused();

          const std::vector<double> sums = at.read(result);
          const std::vector<double> dx = at.read(at.dx);
          const double unit = dtype == DType::bf16 ? 1.0 / 256 : 1e-5;
          for (std::int64_t row = 0; row < rows; ++row) {
            const auto of = static_cast<std::size_t>(row);
            const auto n = [&](std::size_t i) { return (x[i] - (has_mean ? mean[of] : 0)) * rstd[of]; };
            double sum_g = 0;
            double sum_gn = 0;
            for (std::int64_t e = 0; e < width; ++e) {
              const auto i = static_cast<std::size_t>(row * width + e);
              sum_g += dy[i] * gain[static_cast<std::size_t>(e)];
              sum_gn += dy[i] * gain[static_cast<std::size_t>(e)] * n(i);
            }
            const auto count = static_cast<double>(width);
            for (std::int64_t e = 0; e < width; ++e) {
              const auto i = static_cast<std::size_t>(row * width + e);
              const double expected = rstd[of] * (dy[i] * gain[static_cast<std::size_t>(e)] -
                                                  (has_mean ? sum_g / count : 0) - n(i) * sum_gn / count);
              CHECK(std::abs(sums[i] - expected - residual[i]) <= unit * (1 + std::abs(sums[i])));
              if (!in_place_of_dx) {
                CHECK(std::abs(dx[i] - expected) <= unit * (1 + std::abs(expected)));
              }
            }
          }
          CHECK((in_place_of_dx ? at.read(at.residual) == residual : true));
        }
      }
    }
  }
}

TEST_CASE("softmax terms of other logits or with another maximum are not fused", "[unit]") {
  Terms terms(DType::f32, 4, 16);
  const TensorView elsewhere = terms.tensor(DType::f32, {4, 16});
  const TensorView of_others = terms.tensor(DType::f32, {4});
  CHECK(terms.is_fused());
  terms.then("softmax_terms", {elsewhere, terms.max, terms.targets}, {terms.sum, terms.target});
  CHECK_FALSE(terms.is_fused());
  terms.then("softmax_terms", {terms.logits, of_others, terms.targets}, {terms.sum, terms.target});
  CHECK_FALSE(terms.is_fused());
}

TEST_CASE("a norm's gradient and a sum of other tensors or other shapes are not fused", "[unit]") {
  Gradients at(DType::f32, 4, 16);
  const TensorView third = at.tensor(DType::f32, {4, 16});
  at.first("rms_norm_gradient_input", {at.dy, at.x, at.gain, at.rstd}, {at.dx});
  at.then("add", {at.dx, at.residual}, {at.dx});
  CHECK(at.is_fused());
  // The sum's memory may be that of a tensor which the norm reads.
  at.then("add", {at.dx, at.residual}, {third});
  CHECK_FALSE(at.is_fused());
  at.then("add", {at.dx, at.dx}, {at.dx});
  CHECK_FALSE(at.is_fused());
  at.then("add", {third, at.residual}, {at.residual});
  CHECK_FALSE(at.is_fused());
  // This sum adds a vector to each row.
  at.then("add", {at.dx, at.gain}, {at.dx});
  CHECK_FALSE(at.is_fused());
}
