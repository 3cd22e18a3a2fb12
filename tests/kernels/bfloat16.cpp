// Fast kernels on bfloat16, compared with the float64 reference. Each operand and each result is float32 or bfloat16,
// independently of the others. A kernel computes in float32 and rounds once, so a bfloat16 result may be off by half a
// unit in the last place more than a float32 result of the same operands.

#include <cmath>
#include <limits>

#include "core/device/elements.h"
#include "tests/kernels/typed.h"
#include "tests/support/catch.h"
#include "tests/support/depth.h"

using namespace shardrun;
using namespace shardrun::test;
using graph::DType;

namespace {

/// Calls check(case, prepared) for every case and typing of an op. Large cases are all bfloat16.
template <typename Check>
void for_each_typing(const graph::Op& op, const Check& check) {
  int typed = 0;
  for (const Case& test : cases_of(op.name)) {
    for (const Typing& typing : typings) {
      if (typed++ % depth(1, 1, 2) != 0) {
        continue;
      }
      const bool too_large = largest_operand(test) > 10000 && &typing != &typings[0];
      if (too_large || normalises_one_element(test)) {
        continue;
      }
      INFO(to_string(test) << ", " << typing.name);
      check(test, prepare_as(test, typing));
    }
  }
}

}  // namespace

TEST_CASE("kernels with bfloat16 operands and results have the same bits on 1 and 3 threads", "[kernels]") {
  for (const graph::Op* op : graph::all_ops()) {
    DYNAMIC_SECTION(op->name) {
      for_each_typing(*op, [&](const Case& test, const Prepared& prepared) {
        const std::vector<Tensor> expected = unrounded(prepared);
        for (const device::cpu::LevelKernel& variant : variants(op->name)) {
          INFO("instruction set " << variant.level);
          const std::vector<Tensor> found = run(fast(), prepared, {.kernel = &variant.kernel});
          CHECK(typed_difference(found, expected, float_tolerance(test)) == "");
          const std::vector<Tensor> again = run(fast(), prepared, {.threads = 3, .kernel = &variant.kernel});
          CHECK(difference(again, found, bit_for_bit) == "");
        }
      });
    }
  }
}

TEST_CASE("kernels of bfloat16 take parts that are empty", "[kernels]") {
  for (const graph::Op* op : graph::all_ops()) {
    DYNAMIC_SECTION(op->name) {
      for_each_typing(*op, [&](const Case& test, const Prepared& prepared) {
        for (const graph::FactorId factor : prepared.rule.factors.ids()) {
          if (prepared.rule.factors[factor].kind == graph::FactorClass::whole) {
            continue;
          }
          INFO("nothing of the factor " << prepared.rule.factors[factor].name);
          const Prepared part = without_indices(prepared, factor);
          const std::vector<Tensor> expected = unrounded(part);
          for (const int threads : {1, 3}) {
            CHECK(typed_difference(run(fast(), part, {.threads = threads}), expected, float_tolerance(test)) == "");
          }
        }
      });
    }
  }
}

TEST_CASE("kernels that accumulate add to bfloat16 in float32", "[kernels]") {
  for (const graph::Op* op : graph::all_ops()) {
    if (!op->accumulates) {
      continue;
    }
    DYNAMIC_SECTION(op->name) {
      for_each_typing(*op, [&](const Case&, Prepared prepared) {
        const std::vector<Tensor> expected = expected_sums(prepared);
        for (const device::cpu::LevelKernel& variant : variants(op->name)) {
          INFO("instruction set " << variant.level);
          const Manner adding = {.threads = 2, .accumulate = true, .kernel = &variant.kernel};
          CHECK(typed_difference(run(fast(), prepared, adding), expected, {.of_largest = 1e-6}) == "");
        }
      });
    }
  }
}

TEST_CASE("a bfloat16 result may take a bfloat16 operand's memory", "[kernels]") {
  for (const graph::Op* op : graph::all_ops()) {
    DYNAMIC_SECTION(op->name) {
      for_each_typing(*op, [&](const Case&, const Prepared& prepared) {
        for (const auto& pair : possible_in_place(prepared)) {
          INFO("output " << pair.first << " in the place of input " << pair.second);
          const std::vector<Tensor> apart = run(fast(), prepared);
          CHECK(difference(run(fast(), prepared, {.threads = 3, .in_place = {pair}}), apart, bit_for_bit) == "");
        }
      });
    }
  }
}

namespace {

/// Sums of 3,000 terms, the first of which is so large that bfloat16 cannot add a smaller one to it: 512, then 1s and
/// 0.5s, then -512.
Tensor terms_of(Shape shape) {
  Tensor x = zeros(type_of(std::move(shape), DType::bf16));
  for (std::size_t i = 0; i < x.values.size(); ++i) {
    x.values[i] = i % 2 == 0 ? 1 : 0.5;
  }
  x.values.front() = 512;
  x.values.back() = -512;
  return x;
}

Tensor ones(Shape shape, DType dtype) {
  Tensor x = zeros(type_of(std::move(shape), dtype));
  x.values.assign(x.values.size(), 1.0);
  return x;
}

constexpr std::int64_t term_count = 3000;
constexpr double exact_sum = 2998 * 0.75;  // 2248.5

/// Checks that each result is `exact_sum`, rounded once to the result's type.
void check_sum(const std::string& op, const graph::Attributes& attributes, const std::vector<Tensor>& inputs,
               Shape shape) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::vector<Tensor> outputs = {zeros(type_of(shape, dtype))};
    std::vector<double> expected(outputs[0].values.size(), exact_sum);
    device::round_elements(dtype, expected);
    for (const device::cpu::LevelKernel& variant : variants(op)) {
      INFO(op << " to " << graph::to_string(dtype) << ", instruction set " << variant.level);
      const Execution execution{
          .op = op, .attributes = attributes, .inputs = inputs, .outputs = outputs, .kernel = &variant.kernel};
      CHECK(execute(fast(), execution)[0].values == expected);
    }
  }
}

}  // namespace

TEST_CASE("long sums of bfloat16 are made in float32 and rounded once", "[kernels]") {
  double in_bfloat16 = 0;
  for (const double term : terms_of({term_count}).values) {
    in_bfloat16 += term;
    device::round_elements(DType::bf16, {&in_bfloat16, 1});
  }
  REQUIRE(std::abs(in_bfloat16 - exact_sum) > 1000);  // what a kernel that rounds every partial sum gives

  const graph::Attributes plain = {{"contract", 1}, {"transpose", 0}};
  const graph::Attributes transposed = {{"contract", 1}, {"transpose", 1}};
  for (const DType other : {DType::f32, DType::bf16}) {
    check_sum("matmul", plain, {terms_of({1, term_count}), ones({term_count, 70}, other)}, {1, 70});
    check_sum("matmul", transposed, {terms_of({1, term_count}), ones({70, term_count}, other)}, {1, 70});
    check_sum("matmul_gradient_weights", plain, {ones({term_count, 35}, other), terms_of({term_count, 1})}, {35, 1});
    check_sum("matmul_gradient_weights", transposed, {ones({term_count, 35}, other), terms_of({term_count, 1})},
              {1, 35});
  }
  check_sum("sum_leading", {{"keep", 1}}, {terms_of({term_count, 1})}, {1});
  check_sum("sum", {{"dims", std::vector<std::int64_t>{0}}}, {terms_of({term_count, 1})}, {1});
  check_sum("sum", {{"dims", std::vector<std::int64_t>{1}}}, {terms_of({1, term_count})}, {1});
  for (const DType other : {DType::f32, DType::bf16}) {
    check_sum("einsum", {{"spec", "k,k->"}}, {terms_of({term_count}), ones({term_count}, other)}, {});
    check_sum("einsum", {{"spec", "ik,kj->ji"}}, {terms_of({1, term_count}), ones({term_count, 70}, other)}, {70, 1});
  }
  check_sum("sum_all", {{"scale", 1.0}}, {terms_of({term_count})}, {});
  const Tensor tokens = zeros(type_of({term_count}, DType::i32));
  check_sum("embedding_gradient", {{"rows", 1}, {"axis", "vocab"}}, {tokens, terms_of({term_count, 1})}, {1, 1});
}
