// Compares every fast kernel with the float64 reference, in all cases of all ops of the registry.

#include <cmath>
#include <limits>
#include <set>

#include "core/device/contraction.h"
#include "tests/kernels/compare.h"
#include "tests/support/catch.h"
#include "tests/support/depth.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

/// The numbers of threads to test besides one. Under a sanitizer, three threads show accesses outside of a thread's
/// part as well as other numbers do.
std::vector<int> numbers_of_threads(std::initializer_list<int> numbers) {
  return depth(false, false, true) ? std::vector{3} : numbers;
}

/// Whether an einsum is computed as products of matrices.
bool is_product(const Prepared& prepared) {
  const std::vector<graph::TensorType> inputs = {prepared.inputs[0].type, prepared.inputs[1].type};
  const std::vector<graph::TensorType> outputs = {prepared.outputs[0].type};
  return device::Contraction(graph::parse_einsum(prepared.attributes.text("spec")),
                             {prepared.attributes, inputs, outputs})
             .products &&
         prepared.outputs[0].values.size() > 1;
}

}  // namespace

TEST_CASE("every op has cases, and a kernel on each device", "[kernels]") {
  for (const graph::Op* op : graph::all_ops()) {
    INFO(op->name);
    CHECK_FALSE(cases_of(op->name).empty());
    CHECK_NOTHROW(fast().kernel(op->name));
    CHECK_NOTHROW(reference().kernel(op->name));
  }
}

TEST_CASE("products and tables take float16 weights", "[kernels]") {
  for (const char* const op : {"matmul", "einsum", "embedding"}) {
    DYNAMIC_SECTION(op) {
      for (Case test : cases_of(op)) {
        test.operands[1].type.dtype = graph::DType::f16;
        const Prepared prepared = prepare(test);
        // Einsums that are no products of matrices keep bfloat16, and a single sum of many terms is none.
        if (op == std::string_view("einsum") && !is_product(prepared)) {
          continue;
        }
        INFO(to_string(test));
        for (const int threads : {1, 3}) {
          CHECK(difference(run(fast(), prepared, {.threads = threads}), run(reference(), prepared),
                           float_tolerance(test)) == "");
        }
      }
    }
  }
}

TEST_CASE("fast kernels equal the reference, with the same bits on 1, 2 and 3 threads", "[kernels]") {
  for (const graph::Op* op : graph::all_ops()) {
    DYNAMIC_SECTION(op->name) {
      for (const Case& test : cases_of(op->name)) {
        const Prepared prepared = prepare(test);
        const std::vector<Tensor> expected = run(reference(), prepared);
        for (const device::cpu::LevelKernel& variant : variants(op->name)) {
          INFO(to_string(test) << ", instruction set " << variant.level);
          const std::vector<Tensor> found = run(fast(), prepared, {.kernel = &variant.kernel});
          CHECK(difference(found, expected, float_tolerance(test)) == "");
          for (const int threads : numbers_of_threads({2, 3})) {
            INFO(threads << " threads");
            const std::vector<Tensor> again = run(fast(), prepared, {.threads = threads, .kernel = &variant.kernel});
            CHECK(difference(again, found, bit_for_bit) == "");
          }
        }
      }
    }
  }
}

TEST_CASE("the reference has the same bits on 1, 2, 3 and 7 threads", "[kernels]") {
  if (depth(false, false, true)) {
    SUCCEED("a sanitizer watches it where the fast kernels are compared with it");
    return;
  }
  for (const graph::Op* op : graph::all_ops()) {
    DYNAMIC_SECTION(op->name) {
      for (const Case& test : cases_of(op->name)) {
        const Prepared prepared = prepare(test);
        const std::vector<Tensor> expected = run(reference(), prepared);
        for (const int threads : {2, 3, 7}) {
          INFO(to_string(test) << ", " << threads << " threads");
          CHECK(difference(run(reference(), prepared, {.threads = threads}), expected, bit_for_bit) == "");
        }
      }
    }
  }
}

TEST_CASE("kernels that accumulate add to what the result held", "[kernels]") {
  for (const graph::Op* op : graph::all_ops()) {
    if (!op->accumulates) {
      continue;
    }
    DYNAMIC_SECTION(op->name) {
      for (const Case& test : cases_of(op->name)) {
        INFO(to_string(test));
        Prepared prepared = prepare(test);
        Random(2).fill_normal(prepared.outputs[0], 0, 1);
        std::vector<Tensor> expected = run(reference(), prepared);
        for (std::size_t i = 0; i < expected[0].values.size(); ++i) {
          expected[0].values[i] += prepared.outputs[0].values[i];
        }
        CHECK(difference(run(reference(), prepared, {.accumulate = true}), expected, bit_for_bit) == "");
        for (const device::cpu::LevelKernel& variant : variants(op->name)) {
          INFO("instruction set " << variant.level);
          const std::vector<Tensor> found = run(fast(), prepared, {.accumulate = true, .kernel = &variant.kernel});
          CHECK(difference(found, expected, {.of_largest = 1e-6}) == "");
          const Manner three_threads = {.threads = 3, .accumulate = true, .kernel = &variant.kernel};
          CHECK(difference(run(fast(), prepared, three_threads), found, bit_for_bit) == "");
        }
      }
    }
  }
}

TEST_CASE("an output may overwrite an operand if the op says so", "[kernels]") {
  for (const graph::Op* op : graph::all_ops()) {
    DYNAMIC_SECTION(op->name) {
      for (const Case& test : cases_of(op->name)) {
        INFO(to_string(test));
        const Prepared prepared = prepare(test);
        for (const auto& pair : possible_in_place(prepared)) {
          INFO("output " << pair.first << " in the place of input " << pair.second);
          for (const device::Device* device : {&fast(), &reference()}) {
            const std::vector<Tensor> apart = run(*device, prepared);
            CHECK(difference(run(*device, prepared, {.in_place = {pair}}), apart, bit_for_bit) == "");
            CHECK(difference(run(*device, prepared, {.threads = 3, .in_place = {pair}}), apart, bit_for_bit) == "");
          }
        }
      }
    }
  }
}

TEST_CASE("an optimizer kernel may update all its states in place at once", "[kernels]") {
  for (const char* op : {"adamw", "sgd"}) {
    for (const Case& test : cases_of(op)) {
      INFO(to_string(test));
      const Prepared prepared = prepare(test);
      const std::vector<std::pair<std::size_t, std::size_t>> pairs = possible_in_place(prepared);
      CHECK(pairs.size() == prepared.outputs.size());
      const std::vector<Tensor> in_place = run(fast(), prepared, {.threads = 2, .in_place = pairs});
      CHECK(difference(in_place, run(fast(), prepared), bit_for_bit) == "");
    }
  }
}

namespace {

/// Replaces infinities by NaN: which of the two a result is depends on the order of operations.
void unite_not_finite(std::vector<Tensor>& results) {
  for (Tensor& result : results) {
    for (double& value : result.values) {
      value = std::isfinite(value) ? value : std::numeric_limits<double>::quiet_NaN();
    }
  }
}

/// Attention computes in tiles, in which masked probabilities are zeros. NaN or infinity times zero is NaN. So it may
/// show NaN in more elements than the reference, but never in fewer.
void allow_more_of_them(const std::vector<Tensor>& found, std::vector<Tensor>& expected) {
  for (std::size_t o = 0; o < expected.size(); ++o) {
    for (std::size_t e = 0; e < expected[o].values.size(); ++e) {
      const double value = found[o].values[e];
      expected[o].values[e] = std::isnan(value) ? value : expected[o].values[e];
    }
  }
}

void check_planted(const Case& test, std::size_t operand, double planted) {
  Prepared prepared = prepare(test);
  std::vector<double>& values = prepared.inputs[operand].values;
  const std::size_t at = values.size() * 2 / 3;
  values[at] = planted;
  std::vector<Tensor> expected = run(reference(), prepared);
  unite_not_finite(expected);
  for (const device::cpu::LevelKernel& variant : variants(test.op)) {
    INFO("element " << at << " of operand " << operand << " is " << planted << ", instruction set " << variant.level);
    std::vector<Tensor> found = run(fast(), prepared, {.threads = 2, .kernel = &variant.kernel});
    unite_not_finite(found);
    if (test.op.find("attention") != std::string::npos) {
      allow_more_of_them(found, expected);
    }
    Tolerance tolerance = float_tolerance(test);
    tolerance.of_element += test.operands[operand].type.dtype == graph::DType::bf16 ? 0x1p-7 : 0;  // rounded twice
    CHECK(difference(found, expected, tolerance) == "");
  }
}

/// The case with all its float32 operands in bfloat16.
Case in_bfloat16(Case test) {
  for (Operand& operand : test.operands) {
    operand.type.dtype = operand.type.dtype == graph::DType::f32 ? graph::DType::bf16 : operand.type.dtype;
  }
  return test;
}

}  // namespace

// A NaN or an infinity in one element of one operand shows in the same elements of the results. Otherwise a run that
// met it would go on.
TEST_CASE("NaN and Inf show in the results as in the reference", "[kernels]") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  constexpr auto largest = depth<std::int64_t>(3000, 3000, 100);  // small for sanitizers: no access to memory changes
  for (const graph::Op* op : graph::all_ops()) {
    DYNAMIC_SECTION(op->name) {
      for (const Case& test : cases_of(op->name)) {
        for (const Case& typed : {test, in_bfloat16(test)}) {
          INFO(to_string(typed));
          for (std::size_t i = 0; i < typed.operands.size() && largest_operand(typed) <= largest; ++i) {
            if (graph::is_real(typed.operands[i].type.dtype)) {
              check_planted(typed, i, std::numeric_limits<double>::quiet_NaN());
              check_planted(typed, i, infinity);
              check_planted(typed, i, -infinity);
            }
          }
        }
      }
    }
  }
}

// exp(-50) in float is as inexact as 50 roundings of its argument. Results below the smallest float are not compared.
TEST_CASE("activations equal the reference far from zero", "[kernels]") {
  Tensor x = zeros(type_of({10}));
  x.values = {-1e10F, -1e4F, -100, -20, -10, 10, 20, 100, 1e4F, 1e10F};
  const Tolerance far_from_zero{.of_element = 2e-5, .of_largest = 1e-37};
  Tensor dy = x;
  Random(1).fill_normal(dy, 0, 1);
  for (const char* form : {"tanh", "erf"}) {
    const graph::Attributes attributes = {{"form", form}};
    for (const auto& [op, inputs] : {std::pair{"gelu", std::vector<Tensor>{x}}, {"gelu_gradient", {dy, x}}}) {
      const std::vector<Tensor> outputs = {x};
      const Execution execution{.op = op, .attributes = attributes, .inputs = inputs, .outputs = outputs};
      INFO(op << " " << form);
      CHECK(difference(execute(fast(), execution), execute(reference(), execution), far_from_zero) == "");
    }
  }
}
