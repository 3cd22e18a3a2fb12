#include "tests/kernels/cuda_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "tests/support/depth.h"

namespace shardrun::test {
namespace {

using graph::DType;

/// Larger cases are not run in mixtures of types, or not at all. Under a sanitizer the emulator takes ten
/// times as long.
constexpr auto largest_of_mixtures = depth<std::int64_t>(3000, 400, 0);
constexpr auto largest_of_all = depth<std::int64_t>(INT64_MAX, INT64_MAX, 2500);

/// The cases of an op, and some of them again with longer rows: of a length that is read in packs, and of more elements
/// than a warp takes. A row of 129 is in the cases of each op that has rows.
std::vector<Case> cases_with_long_rows(std::string_view op) {
  std::vector<Case> cases = cases_of(op);
  const std::size_t count = cases.size();
  for (const std::int64_t length : {64, 1032, 1030}) {
    for (std::size_t i = 0; i < count; ++i) {
      Case longer = cases[i];
      bool has_rows = false;
      for (Operand& operand : longer.operands) {
        Shape& shape = operand.type.shape;
        has_rows = has_rows || (!shape.empty() && shape.back() == 129);
        std::replace(shape.begin(), shape.end(), std::int64_t{129}, length);
      }
      if (has_rows && largest_operand(cases[i]) <= 5 * 129) {
        cases.push_back(longer);
      }
    }
  }
  if (op == "embedding_gradient") {
    const auto add = [&](std::int64_t tokens, std::int64_t width) {
      cases.push_back({"embedding_gradient",
                       {{"rows", 17}, {"axis", "vocab"}},
                       {integers_below<17>({tokens}), normal({tokens, width})}});
    };
    add(4500, 3);
    add(300, 2100);
    // Rows that are listed by several blocks.
    cases.push_back(
        {"embedding_gradient", {{"rows", 600}, {"axis", "vocab"}}, {integers_below<600>({700}), normal({700, 40})}});
    // Places of a few rows that fill several chunks.
    cases.push_back(
        {"embedding_gradient", {{"rows", 3}, {"axis", "vocab"}}, {integers_below<3>({1000}), normal({1000, 8})}});
  }
  if (op == "scatter_add") {
    cases.push_back({"scatter_add",
                     {{"dim", std::int64_t{1}}, {"rows", 3}, {"axis", "vocab"}},
                     {integers_below<3>({700}), normal({2, 700, 3})}});
  }
  return cases;
}

/// Adds heads wider than tensor cores take, products of many tiles and, for libraries of products, long sums and
/// batches with several layouts. Each case has only the types that it is for.
void add_cases_of_cuda(std::string_view op, std::vector<TypedCase>& cases) {
  if (op == "attention") {
    cases.push_back(
        {{"attention", {{"dropout", 0.0}, {"stream", "attention"}}, {normal({1, 2, 3, 1, 257})}}, all_float32});
  }
  if (op == "einsum") {
    const std::map<char, std::int64_t> sizes = {{'b', 2}, {'q', 9}, {'k', 70}, {'h', 3}, {'d', 8}};
    for (const std::string spec : {"bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", "bhqk,bqhd->bkhd", "qd,bkd->bkq"}) {
      std::vector<Operand> operands;
      for (const std::string& letters :
           {spec.substr(0, spec.find(',')), spec.substr(spec.find(',') + 1, spec.find('-') - spec.find(',') - 1)}) {
        Shape shape;
        std::ranges::transform(letters, std::back_inserter(shape), [&](char letter) { return sizes.at(letter); });
        operands.push_back(normal(shape));
      }
      for (const Typing& typing : {all_float32, all_bfloat16}) {
        cases.push_back({{"einsum", {{"spec", spec}}, operands}, typing});
      }
    }
  }
  for (const std::int64_t transpose : {0, 1}) {
    const graph::Attributes attributes = {{"contract", std::int64_t{1}}, {"transpose", transpose}};
    if (op == "matmul") {
      cases.push_back(
          {{"matmul", attributes, {normal({7, 200}), normal(transpose == 0 ? Shape{200, 9} : Shape{9, 200})}},
           all_bfloat16});
      const Shape w = transpose == 0 ? Shape{40, 1501} : Shape{1501, 40};
      cases.push_back({{"matmul", attributes, {normal({1500, 40}), normal(w)}}, all_bfloat16});
    } else if (op == "matmul_gradient_weights") {
      cases.push_back(
          {{"matmul_gradient_weights", attributes, {normal({35, 1500}), normal({35, 1501})}}, all_bfloat16});
    }
  }
}

/// The types of attention in jobs with `precision = mixed`: log-sum-exp is float32, all else is bfloat16. Null for
/// other ops.
const Typing* typing_of_jobs(std::string_view op) {
  static constexpr Typing forward = {"float32 log-sum-exp", all_bfloat16.operand, [](std::size_t i) { return i != 1; }};
  static constexpr Typing packed = {forward.name, [](std::size_t i) { return i != 2; }, all_bfloat16.result};
  static constexpr Typing separate = {forward.name, [](std::size_t i) { return i != 4; }, all_bfloat16.result};
  return op == "attention" || op == "scaled_dot_product_attention" ? &forward
         : op == "attention_gradient"                              ? &packed
         : op == "scaled_dot_product_attention_gradient"           ? &separate
                                                                   : nullptr;
}

/// Attention of bfloat16 rounds probabilities and the gradients of scores to bfloat16 before it multiplies them.
Tolerance cuda_tolerance(const Case& test, const Prepared& prepared, const KernelRunner& runner) {
  Tolerance tolerance = float_tolerance(test);
  tolerance.of_largest += lost_by_tensor_cores(prepared, runner.has_convolutions_of_library());
  const bool is_attention = test.op.find("attention") != std::string::npos;
  if (is_attention && prepared.inputs[0].type.dtype == DType::bf16 && prepared.outputs[0].type.dtype == DType::bf16) {
    tolerance.of_largest += 0x1p-8;
  }
  return tolerance;
}

std::string equals_reference(const TypedCase& typed, const Prepared& prepared, KernelRunner& runner) {
  const std::vector<Tensor> found = runner.run(prepared, {}, 0);
  std::string wrong = typed_difference(found, unrounded(prepared), cuda_tolerance(typed.test, prepared, runner));
  for (std::size_t turn = 1; turn < runner.turns() && wrong.empty(); ++turn) {
    wrong = difference(runner.run(prepared, {}, turn), found, bit_for_bit);
    if (!wrong.empty()) {
      return fmt::format("turn {} has other bits than turn 0: {}", turn, wrong);
    }
  }
  return wrong;
}

std::string takes_empty_parts(const TypedCase& typed, const Prepared& prepared, KernelRunner& runner) {
  for (const graph::FactorId factor : prepared.rule.factors.ids()) {
    if (prepared.rule.factors[factor].kind == graph::FactorClass::whole) {
      continue;
    }
    const Prepared part = without_indices(prepared, factor);
    const std::string wrong =
        typed_difference(runner.run(part, {}, 0), unrounded(part), cuda_tolerance(typed.test, prepared, runner));
    if (!wrong.empty()) {
      return fmt::format("with nothing of the factor {}: {}", prepared.rule.factors[factor].name, wrong);
    }
  }
  return {};
}

std::string accumulates(const TypedCase&, const Prepared& given, KernelRunner& runner) {
  if (!given.op->accumulates) {
    return {};
  }
  Prepared prepared = given;
  const std::vector<Tensor> expected = expected_sums(prepared);
  const bool by_library = runner.has_convolutions_of_library();
  Tolerance tolerance = {.of_largest = 1e-6 + lost_by_tensor_cores(prepared, by_library)};
  // cuDNN rounds a bfloat16 gradient of weights before it adds it, and the sum again.
  if (by_library && prepared.op->name == "conv_gradient_weights" && prepared.outputs[0].type.dtype == DType::bf16) {
    tolerance.of_largest += 0x1p-8;
  }
  return typed_difference(runner.run(prepared, {.accumulate = true}, 0), expected, tolerance);
}

std::string takes_operands_memory(const TypedCase&, const Prepared& prepared, KernelRunner& runner) {
  const std::vector<std::pair<std::size_t, std::size_t>> pairs = possible_in_place(prepared);
  if (pairs.empty()) {
    return {};
  }
  const std::vector<Tensor> apart = runner.run(prepared, {}, 0);
  for (const auto& pair : pairs) {
    const std::string wrong = difference(runner.run(prepared, {.in_place = {pair}}, 1), apart, bit_for_bit);
    if (!wrong.empty()) {
      return fmt::format("output {} in the place of input {}: {}", pair.first, pair.second, wrong);
    }
  }
  return {};
}

constexpr KernelCheck checks[] = {{"equals float64, with the same bits each time", equals_reference},
                                  {"takes parts that are empty", takes_empty_parts},
                                  {"adds to what is there when it accumulates", accumulates},
                                  {"takes an operand's memory where the op says so", takes_operands_memory}};

}  // namespace

std::string to_string(const TypedCase& typed) {
  return fmt::format("{}: {}", typed.typing.name, to_string(typed.test));
}

std::vector<TypedCase> cuda_cases(std::string_view op) {
  std::vector<TypedCase> cases;
  for (const Case& test : cases_with_long_rows(op)) {
    cases.push_back({test, all_float32});
    for (const Typing& typing : typings) {
      const bool too_large = largest_operand(test) > largest_of_mixtures && &typing != &typings[0];
      if (!too_large && !normalises_one_element(test)) {
        cases.push_back({test, typing});
      }
    }
    if (const Typing* const of_jobs = typing_of_jobs(op)) {
      cases.push_back({test, *of_jobs});
    }
  }
  add_cases_of_cuda(op, cases);
  std::erase_if(cases, [](const TypedCase& typed) { return largest_operand(typed.test) > largest_of_all; });
  return cases;
}

std::vector<TypedCase> large_cuda_cases(std::string_view op) {
  // More than 2^27 multiplications, and 256 for each element of what is copied.
  const Shape x = {520, 520};
  const Shape other = {520, 521};
  std::vector<TypedCase> cases;
  if (op == "matmul" || op == "matmul_gradient_weights") {
    for (const std::int64_t transpose : {0, 1}) {
      const bool is_turned = op == "matmul" && transpose == 1;
      cases.push_back({{std::string(op),
                        {{"contract", std::int64_t{1}}, {"transpose", transpose}},
                        {normal(x), normal(is_turned ? Shape{521, 520} : other)}},
                       all_bfloat16});
    }
  }
  return cases;
}

std::span<const KernelCheck> cuda_checks() { return checks; }

}  // namespace shardrun::test
