// The CUDA kernels, run by the emulator, against the float64 reference: over all cases of all ops, in float32 and
// bfloat16, with the threads of a block in several orders.

#include <algorithm>

#include "core/device/cuda/emulated/emulator.h"
#include "core/device/elements.h"
#include "tests/kernels/typed.h"
#include "tests/support/catch.h"

using namespace shardrun;
using namespace shardrun::test;
using device::cuda::emulated::Order;
using graph::DType;

namespace {

const device::Device& emulated() { return device::Device::find("cuda-emulated"); }

struct NamedOrder {
  const char* name;
  Order order;
  std::uint64_t seed;
};
constexpr NamedOrder forward = {"forward", Order::forward, 0};
constexpr NamedOrder others[] = {{"reversed", Order::reversed, 0}, {"shuffled", Order::shuffled, 7}};

std::vector<Tensor> run_in(const NamedOrder& order, const Prepared& prepared, const Manner& manner = {}) {
  device::cuda::emulated::set_order(order.order, order.seed);
  return run(emulated(), prepared, manner);
}

/// Attention of bfloat16 rounds probabilities and the gradients of scores to bfloat16 before it multiplies them.
Tolerance cuda_tolerance(const Case& test, const Prepared& prepared) {
  Tolerance tolerance = float_tolerance(test);
  const bool is_attention = test.op.find("attention") != std::string::npos;
  if (is_attention && prepared.inputs[0].type.dtype == DType::bf16 && prepared.outputs[0].type.dtype == DType::bf16) {
    tolerance.of_largest += 0x1p-8;
  }
  return tolerance;
}

/// Larger cases are not run in mixtures of types. A sanitizer takes ten times as long.
#if defined(SHARDRUN_SANITIZED)
constexpr std::int64_t largest_of_mixtures = 300;
#else
constexpr std::int64_t largest_of_mixtures = 3000;
#endif

/// The cases of an op, and some of them again with longer rows: of a length that is read in packs, and of more elements
/// than a warp takes. A row of 129 is in the cases of each op that has rows.
std::vector<Case> cases_with_long_rows(const std::string& op) {
  std::vector<Case> cases = cases_of(op);
  const std::size_t count = cases.size();
  for (const std::int64_t length : {64, 1028, 1030}) {
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
      cases.push_back({op, {{"rows", 17}, {"axis", "vocab"}}, {integers_below<17>({tokens}), normal({tokens, width})}});
    };
    add(4500, 3);
    add(300, 2100);
  }
  return cases;
}

/// Calls check(case, prepared) for every case of an op: in float32, in bfloat16, and small cases in mixtures of both.
template <typename Check>
void for_each_typing(const graph::Op& op, const Check& check) {
  for (const Case& test : cases_with_long_rows(op.name)) {
    INFO(to_string(test));
    check(test, prepare_as(test, all_float32));
    for (const Typing& typing : typings) {
      const bool too_large = largest_operand(test) > largest_of_mixtures && &typing != &typings[0];
      if (too_large || normalises_one_element(test)) {
        continue;
      }
      INFO(typing.name);
      check(test, prepare_as(test, typing));
    }
  }
}

}  // namespace

TEST_CASE("every op has a CUDA kernel", "[kernels]") {
  for (const graph::Op* op : graph::all_ops()) {
    CHECK_NOTHROW(emulated().kernel(op->name));
  }
}

TEST_CASE("CUDA kernels equal the reference, with the same bits in each order of threads", "[kernels]") {
  for (const graph::Op* op : graph::all_ops()) {
    DYNAMIC_SECTION(op->name) {
      for_each_typing(*op, [&](const Case& test, const Prepared& prepared) {
        const std::vector<Tensor> expected = unrounded(prepared);
        const std::vector<Tensor> found = run_in(forward, prepared);
        CHECK(typed_difference(found, expected, cuda_tolerance(test, prepared)) == "");
        for (const NamedOrder& order : others) {
          INFO("threads " << order.name);
          CHECK(difference(run_in(order, prepared), found, bit_for_bit) == "");
        }
      });
    }
  }
}

TEST_CASE("CUDA kernels take parts that are empty", "[kernels]") {
  for (const graph::Op* op : graph::all_ops()) {
    DYNAMIC_SECTION(op->name) {
      for_each_typing(*op, [&](const Case& test, const Prepared& prepared) {
        for (const graph::FactorId factor : prepared.rule.factors.ids()) {
          if (prepared.rule.factors[factor].kind == graph::FactorClass::whole) {
            continue;
          }
          INFO("nothing of the factor " << prepared.rule.factors[factor].name);
          const Prepared part = without_indices(prepared, factor);
          CHECK(typed_difference(run_in(forward, part), unrounded(part), cuda_tolerance(test, prepared)) == "");
        }
      });
    }
  }
}

TEST_CASE("CUDA kernels that accumulate add to what is there", "[kernels]") {
  for (const graph::Op* op : graph::all_ops()) {
    if (!op->accumulates) {
      continue;
    }
    DYNAMIC_SECTION(op->name) {
      for_each_typing(*op, [&](const Case&, Prepared prepared) {
        const std::vector<Tensor> expected = expected_sums(prepared);
        const std::vector<Tensor> found = run_in(forward, prepared, {.accumulate = true});
        CHECK(typed_difference(found, expected, {.of_largest = 1e-6}) == "");
      });
    }
  }
}

TEST_CASE("a CUDA kernel's result may take an operand's memory where the op says so", "[kernels]") {
  for (const graph::Op* op : graph::all_ops()) {
    DYNAMIC_SECTION(op->name) {
      for_each_typing(*op, [&](const Case&, const Prepared& prepared) {
        const std::vector<std::pair<std::size_t, std::size_t>> pairs = possible_in_place(prepared);
        if (pairs.empty()) {
          return;
        }
        const std::vector<Tensor> apart = run_in(forward, prepared);
        for (const auto& pair : pairs) {
          INFO("output " << pair.first << " in the place of input " << pair.second);
          CHECK(difference(run_in(others[1], prepared, {.in_place = {pair}}), apart, bit_for_bit) == "");
        }
      });
    }
  }
}

TEST_CASE("CUDA kernels of attention take heads of any width", "[kernels]") {
  const Case test = {"attention", {{"dropout", 0.0}, {"stream", "attention"}}, {normal({1, 2, 3, 1, 257})}};
  const Prepared prepared = prepare(test);
  CHECK(typed_difference(run_in(forward, prepared), unrounded(prepared), float_tolerance(test)) == "");
}

TEST_CASE("a CUDA product of bfloat16 with many tiles equals the reference", "[kernels]") {
  const Shape x = {1500, 40};
  for (const std::int64_t transpose : {0, 1}) {
    const graph::Attributes attributes = {{"contract", std::int64_t{1}}, {"transpose", transpose}};
    const Shape w = transpose == 0 ? Shape{40, 1501} : Shape{1501, 40};
    const std::vector<Case> products = {
        {"matmul", attributes, {normal(x), normal(w)}},
        {"matmul_gradient_weights", attributes, {normal({35, 1500}), normal({35, 1501})}}};
    for (const Case& test : products) {
      INFO(to_string(test));
      const Prepared prepared = prepare_as(test, all_bfloat16);
      CHECK(typed_difference(run_in(forward, prepared), unrounded(prepared), float_tolerance(test)) == "");
    }
  }
}
