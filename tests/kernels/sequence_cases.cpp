#include <limits>

#include "tests/kernels/case.h"
#include "tests/support/evaluate.h"

// Cases of ops that work along a sequence or a row: attention of separate operands.

namespace shardrun::test {
namespace {

struct AttentionSize {
  std::int64_t batch, seq, keys, heads, group, width;
};

/// Which keys a query sees.
struct Sight {
  std::int64_t causal = 0;
  std::int64_t window = 0;
  double scale = 0;
  bool mask = false;
};

/// Of every third key, -infinity for every second query: a mask that hides some keys.
void fill_mask(Random& random, Tensor& mask) {
  random.fill_normal(mask, 0, 1);
  const std::int64_t keys = mask.type.shape[1];
  for (std::size_t i = 0; i < mask.values.size(); ++i) {
    const auto key = static_cast<std::int64_t>(i) % keys;
    const auto query = static_cast<std::int64_t>(i) / keys;
    if (key % 3 == 2 && query % 2 == 1) {
      mask.values[i] = -std::numeric_limits<double>::infinity();
    }
  }
}

graph::Attributes attributes_of(const Sight& sight, double dropout) {
  return {{"causal", sight.causal},
          {"window", sight.window},
          {"scale", sight.scale},
          {"dropout", dropout},
          {"stream", "attention"}};
}

/// out and lse, operands 3 and 4 of a gradient.
void derive_separate(std::vector<Tensor>& inputs, const Sight& sight, double dropout) {
  const graph::Attributes attributes = attributes_of(sight, dropout);
  std::vector<Tensor> operands(inputs.begin(), inputs.begin() + 3);
  operands.insert(operands.end(), inputs.begin() + 6, inputs.end());
  const std::vector<Tensor> outputs = {inputs[3], inputs[4]};
  const std::vector<Tensor> results = execute(device::Device::find("reference"), {.op = "scaled_dot_product_attention",
                                                                                  .attributes = attributes,
                                                                                  .inputs = operands,
                                                                                  .outputs = outputs,
                                                                                  .scalars = scalars_of_tests()});
  inputs[3] = results[0];
  inputs[4] = results[1];
}

constexpr Sight sights[] = {{},
                            {.causal = 1},
                            {.causal = 1, .window = 3},
                            {.window = 2, .scale = 0.3},
                            {.causal = 1, .mask = true},
                            {.mask = true}};

template <std::size_t number, int percent>
void add_attention(std::vector<Case>& cases, const AttentionSize& s) {
  constexpr Sight sight = sights[number];
  if (sight.window > 0 && s.seq - sight.window >= s.keys) {
    return;
  }
  const Shape q = {s.batch, s.seq, s.heads, s.group, s.width};
  const Shape k = {s.batch, s.keys, s.heads, s.width};
  const Shape lse = {s.batch, s.heads, s.group, s.seq};
  std::vector<Operand> operands = {normal(q), normal(k), normal(k)};
  std::vector<Operand> of_gradient = {normal(q), normal(k), normal(k), normal(q), normal(lse), normal(q)};
  if (sight.mask) {
    operands.push_back({type_of({s.seq, s.keys}), fill_mask});
    of_gradient.push_back(operands.back());
  }
  const graph::Attributes attributes = attributes_of(sight, percent / 100.0);
  cases.push_back({"scaled_dot_product_attention", attributes, operands});
  if (s.keys > 1) {  // the probability of a single key is 1: the gradient of its score is rounding alone
    cases.push_back({"scaled_dot_product_attention_gradient", attributes, of_gradient,
                     [](std::vector<Tensor>& inputs) { derive_separate(inputs, sights[number], percent / 100.0); }, 4});
  }
}

void add_attentions(std::vector<Case>& cases) {
  const std::vector<AttentionSize> small = {
      {1, 1, 1, 1, 1, 1}, {2, 3, 3, 2, 1, 5}, {1, 5, 5, 1, 3, 2}, {2, 4, 7, 2, 2, 3}, {1, 7, 4, 3, 1, 3}};
  const std::vector<AttentionSize> large = {
      {2, 17, 17, 1, 3, 8}, {1, 65, 65, 2, 1, 13}, {1, 70, 45, 1, 2, 33}, {1, 33, 129, 2, 2, 16}};
  for (const AttentionSize& size : small) {
    add_attention<0, 0>(cases, size);
    add_attention<1, 0>(cases, size);
    add_attention<2, 0>(cases, size);
    add_attention<3, 0>(cases, size);
    add_attention<4, 0>(cases, size);
    add_attention<5, 0>(cases, size);
    add_attention<2, 20>(cases, size);
    add_attention<5, 20>(cases, size);
  }
  for (const AttentionSize& size : large) {
    add_attention<0, 0>(cases, size);
    add_attention<2, 20>(cases, size);
    add_attention<3, 0>(cases, size);
    add_attention<4, 0>(cases, size);
  }
}

}  // namespace

void add_sequence_cases(std::vector<Case>& cases) { add_attentions(cases); }

}  // namespace shardrun::test
