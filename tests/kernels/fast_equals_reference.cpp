// Every fast kernel against the float64 reference, over all cases of all ops of the registry.

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "tests/kernels/compare.h"
#include "tests/support/catch.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

const device::Device& fast() { return device::Device::find("cpu"); }
const device::Device& reference() { return device::Device::find("reference"); }

const Tolerance bit_for_bit = {};

std::vector<Case> small_cases() {
  std::vector<Case> cases = all_cases();
  std::erase_if(cases, [](const Case& test) {
    return std::any_of(test.operands.begin(), test.operands.end(),
                       [](const Operand& operand) { return graph::element_count(operand.type) > 3000; });
  });
  return cases;
}

/// The pairs of an op's `in_place` that this case has and whose tensors are of one shape.
std::vector<std::pair<int, int>> possible_in_place(const Prepared& prepared) {
  std::vector<std::pair<int, int>> pairs;
  for (const auto& [output, input] : prepared.op->in_place) {
    const auto o = static_cast<std::size_t>(output);
    const auto i = static_cast<std::size_t>(input);
    if (o < prepared.outputs.size() && i < prepared.inputs.size() &&
        prepared.outputs[o].type.shape == prepared.inputs[i].type.shape) {
      pairs.emplace_back(output, input);
    }
  }
  return pairs;
}

}  // namespace

TEST_CASE("every op has cases, and a kernel on each device", "[kernels]") {
  std::set<std::string> tested;
  for (const Case& test : all_cases()) {
    tested.insert(test.op);
  }
  for (const graph::Op* op : graph::all_ops()) {
    INFO(op->name);
    CHECK(tested.count(op->name) == 1);
    CHECK_NOTHROW(fast().kernel(op->name));
    CHECK_NOTHROW(reference().kernel(op->name));
  }
}

TEST_CASE("fast kernels equal the reference, with the same bits on 1, 2 and 3 threads", "[kernels]") {
  for (const Case& test : all_cases()) {
    INFO(to_string(test));
    const Prepared prepared = prepare(test);
    const std::vector<Tensor> found = run(fast(), prepared);
    CHECK(difference(found, run(reference(), prepared), float_tolerance(test.op)) == "");
    for (const int threads : {2, 3}) {
      INFO(threads << " threads");
      CHECK(difference(run(fast(), prepared, {.threads = threads}), found, bit_for_bit) == "");
    }
  }
}

TEST_CASE("kernels that accumulate add to what is there", "[kernels]") {
  for (const Case& test : all_cases()) {
    Prepared prepared = prepare(test);
    if (!prepared.op->accumulates) {
      continue;
    }
    INFO(to_string(test));
    Random(2).fill_normal(prepared.outputs[0], 0, 1);
    std::vector<Tensor> expected = run(reference(), prepared);
    for (std::size_t i = 0; i < expected[0].values.size(); ++i) {
      expected[0].values[i] += prepared.outputs[0].values[i];
    }
    CHECK(difference(run(reference(), prepared, {.accumulate = true}), expected, bit_for_bit) == "");
    const std::vector<Tensor> found = run(fast(), prepared, {.accumulate = true});
    CHECK(difference(found, expected, {.of_largest = 1e-6}) == "");
    CHECK(difference(run(fast(), prepared, {.threads = 3, .accumulate = true}), found, bit_for_bit) == "");
  }
}

TEST_CASE("an output may take an operand's memory where the op says so", "[kernels]") {
  for (const Case& test : all_cases()) {
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

TEST_CASE("an optimizer may update all its states in place at once", "[kernels]") {
  for (const Case& test : all_cases()) {
    if (test.op != "adamw" && test.op != "sgd") {
      continue;
    }
    INFO(to_string(test));
    const Prepared prepared = prepare(test);
    const std::vector<std::pair<int, int>> pairs = possible_in_place(prepared);
    CHECK(pairs.size() == prepared.outputs.size());
    CHECK(difference(run(fast(), prepared, {.threads = 2, .in_place = pairs}), run(fast(), prepared), bit_for_bit) ==
          "");
  }
}

// A NaN or an infinity in one element of one operand shows in the same elements of the results, or the run that met it
// would go on. Attention computes in tiles whose masked probabilities are zeros that NaN and Inf outlive, so it may
// show them in more rows than the reference, never in fewer.
TEST_CASE("NaN and Inf show in the results as in the reference", "[kernels]") {
  const std::set<std::string> may_spread = {"attention", "attention_gradient"};
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const Case& test : small_cases()) {
    for (std::size_t i = 0; i < test.operands.size(); ++i) {
      if (test.operands[i].type.dtype != graph::DType::f32) {
        continue;
      }
      for (const double planted : {std::numeric_limits<double>::quiet_NaN(), infinity, -infinity}) {
        Prepared prepared = prepare(test);
        std::vector<double>& values = prepared.inputs[i].values;
        const std::size_t at = values.size() * 2 / 3;
        values[at] = planted;
        INFO(to_string(test) << ", element " << at << " of operand " << i << " is " << planted);
        const std::vector<Tensor> found = run(fast(), prepared, {.threads = 2});
        std::vector<Tensor> expected = run(reference(), prepared);
        if (may_spread.count(test.op) == 1) {
          for (std::size_t o = 0; o < expected.size(); ++o) {
            for (std::size_t e = 0; e < expected[o].values.size(); ++e) {
              const double value = found[o].values[e];
              expected[o].values[e] = std::isfinite(value) ? expected[o].values[e] : value;
            }
          }
        }
        CHECK(difference(found, expected, float_tolerance(test.op)) == "");
      }
    }
  }
}
