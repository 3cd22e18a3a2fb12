#include <limits>

#include "tests/kernels/case.h"
#include "tests/support/evaluate.h"

// Cases of ops that work along a row or a sequence: softmax, rms_norm, cumulative_sum, rope, and attention of separate
// operands.

namespace shardrun::test {
namespace {

Shape with_width(Shape shape, std::int64_t width) {
  shape.push_back(width);
  return shape;
}

/// The results of an op of the reference for its first operand.
std::vector<Tensor> results_of(const char* op, const graph::Attributes& attributes, const std::vector<Tensor>& operands,
                               const std::vector<Tensor>& outputs) {
  return execute(device::Device::find("reference"),
                 {.op = op, .attributes = attributes, .inputs = operands, .outputs = outputs});
}

void add_rows(std::vector<Case>& cases) {
  for (const Shape& rows : std::vector<Shape>{{}, {1}, {5}, {2, 7}, {3, 2, 5}, {257}}) {
    for (const std::int64_t width : {1, 2, 3, 17, 65, 129}) {
      const Shape shape = with_width(rows, width);
      for (const char* op : {"softmax", "log_softmax"}) {
        cases.push_back({op, {}, {normal(shape)}});
        cases.push_back({op, {}, {off_centre(shape)}});
      }
      cases.push_back({"softmax_gradient", {}, {normal(shape), normal(shape)}, [](std::vector<Tensor>& in) {
                         in[1] = results_of("softmax", {}, {in[1]}, {in[1]})[0];
                       }});
      cases.push_back({"log_softmax_gradient", {}, {normal(shape), normal(shape)}, [](std::vector<Tensor>& in) {
                         in[1] = results_of("log_softmax", {}, {in[1]}, {in[1]})[0];
                       }});
    }
  }
}

void derive_rms(const Tensor& x, Tensor& rms) {
  rms = results_of("rms_norm", {{"epsilon", 1e-5}}, {x, zeros(type_of({x.type.shape.back()}))}, {x, rms})[1];
}

void add_rms_norms(std::vector<Case>& cases) {
  for (const Shape& rows : std::vector<Shape>{{}, {1}, {5}, {2, 7}, {3, 2, 5}, {257}}) {
    for (const std::int64_t width : {1, 2, 3, 17, 65, 129}) {
      const Shape shape = with_width(rows, width);
      cases.push_back({"rms_norm", {{"epsilon", 1e-3}}, {normal(shape), normal({width})}});
      cases.push_back({"rms_norm", {{"epsilon", 0.1}}, {off_centre(shape), normal({width})}});
      if (width > 1) {  // one element normalises to 1 or -1, always: its gradient is rounding alone
        cases.push_back({"rms_norm_gradient_input",
                         {},
                         {normal(shape), normal(shape), normal({width}), normal(rows)},
                         [](std::vector<Tensor>& in) { derive_rms(in[1], in[3]); }});
      }
      cases.push_back(
          {"rms_norm_gradient_gain", {}, {normal(shape), normal(shape), normal(rows)}, [](std::vector<Tensor>& in) {
             derive_rms(in[1], in[2]);
           }});
    }
  }
}

void add_cumulative_sums(std::vector<Case>& cases) {
  const std::vector<std::pair<Shape, std::int64_t>> sums = {
      {{1}, 0},        {{7}, 0},        {{40007}, 0},      {{3, 5}, 0},         {{3, 5}, 1},        {{301, 129}, 0},
      {{301, 129}, 1}, {{2, 3, 13}, 1}, {{2, 5, 2, 3}, 1}, {{3, 65, 2, 17}, 1}, {{3, 17, 2, 65}, 0}};
  for (const auto& [shape, dim] : sums) {
    for (const std::int64_t reverse : {0, 1}) {
      cases.push_back({"cumulative_sum", {{"dim", dim}, {"reverse", reverse}}, {normal(shape)}});
    }
  }
}

void add_ropes(std::vector<Case>& cases) {
  const std::vector<std::pair<Shape, std::int64_t>> sizes = {
      {{1, 2}, 0}, {{7, 6}, 0}, {{2, 5, 3, 4}, 1}, {{2, 3, 5, 8}, 2}, {{3, 65, 2, 34}, 1}, {{2, 3, 2, 3, 2}, 2}};
  for (const auto& [shape, dim] : sizes) {
    for (const std::int64_t interleaved : {0, 1}) {
      for (const std::int64_t inverse : {0, 1}) {
        cases.push_back({"rope",
                         {{"dim", dim},
                          {"base", interleaved == 1 ? 100.0 : 10000.0},
                          {"offset", inverse == 1 ? std::int64_t{0} : std::int64_t{100000}},
                          {"interleaved", interleaved},
                          {"inverse", inverse}},
                         {normal(shape)}});
      }
    }
  }
  cases.push_back({"rope",
                   {{"dim", std::int64_t{1}},
                    {"base", 10000.0},
                    {"offset", std::int64_t{70000}},
                    {"interleaved", std::int64_t{0}},
                    {"inverse", std::int64_t{0}},
                    {"frequencies", std::vector<double>{1, 0.3, 0.0171, 1e-5}},
                    {"factor", 1.25}},
                   {normal({2, 5, 3, 8})}});
  const auto with_positions = [&](const Shape& shape, std::int64_t dim, std::int64_t inverse) {
    cases.push_back(
        {"rope",
         {{"dim", dim}, {"base", 100.0}, {"offset", std::int64_t{3}}, {"interleaved", inverse}, {"inverse", inverse}},
         {normal(shape), integers_below<90>(Shape(shape.begin(), shape.begin() + dim + 1))}});
  };
  with_positions({2, 5, 3, 8}, 1, 0);
  with_positions({3, 1, 2, 34}, 1, 1);
  with_positions({7, 6}, 0, 0);
}

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
void derive_separate(std::vector<Tensor>& inputs, const graph::Attributes& attributes) {
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
    cases.push_back(
        {"scaled_dot_product_attention_gradient", attributes, of_gradient,
         [](std::vector<Tensor>& inputs) { derive_separate(inputs, attributes_of(sights[number], percent / 100.0)); },
         4});
  }
}

template <std::size_t number, int percent, std::int64_t group>
graph::Attributes grouped_attributes() {
  graph::Attributes attributes = attributes_of(sights[number], percent / 100.0);
  attributes.add("group", group);
  return attributes;
}

/// Heads of queries in one dimension, `group` of them to a head of keys.
template <std::size_t number, int percent, std::int64_t group>
void add_grouped_attention(std::vector<Case>& cases, const AttentionSize& s) {
  const graph::Attributes attributes = grouped_attributes<number, percent, group>();
  const Shape q = {s.batch, s.seq, s.heads * group, s.width};
  const Shape k = {s.batch, s.keys, s.heads, s.width};
  const Shape lse = {s.batch, s.heads * group, s.seq};
  cases.push_back({"scaled_dot_product_attention", attributes, {normal(q), normal(k), normal(k)}});
  cases.push_back(
      {"scaled_dot_product_attention_gradient",
       attributes,
       {normal(q), normal(k), normal(k), normal(q), normal(lse), normal(q)},
       [](std::vector<Tensor>& inputs) { derive_separate(inputs, grouped_attributes<number, percent, group>()); },
       4});
}

void add_attentions(std::vector<Case>& cases) {
  add_grouped_attention<1, 0, 3>(cases, {1, 5, 5, 3, 0, 2});
  add_grouped_attention<1, 20, 7>(cases, {2, 3, 3, 2, 0, 3});
  add_grouped_attention<0, 0, 4>(cases, {1, 3, 6, 1, 0, 4});
  add_grouped_attention<2, 0, 3>(cases, {1, 70, 70, 2, 0, 8});
  const std::vector<AttentionSize> small = {
      {1, 1, 1, 1, 1, 1}, {2, 3, 3, 2, 1, 5}, {1, 5, 5, 1, 3, 2}, {2, 4, 7, 2, 2, 3}, {1, 7, 4, 3, 1, 3}};
  const std::vector<AttentionSize> large = {{2, 17, 17, 1, 3, 8},
                                            {1, 65, 65, 2, 1, 13},
                                            {1, 70, 45, 1, 2, 33},
                                            {1, 33, 129, 2, 2, 16},
                                            {1, 70, 68, 1, 2, 100}};
  // Several tiles of queries and keys whose rows can be read in eights, of narrow and wide heads.
  const std::vector<AttentionSize> tiled = {{1, 150, 150, 1, 2, 24}, {1, 70, 140, 1, 1, 128}};
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
  for (const AttentionSize& size : tiled) {
    add_attention<0, 0>(cases, size);
    add_attention<1, 0>(cases, size);
    add_attention<2, 0>(cases, size);
    add_attention<2, 20>(cases, size);
    add_attention<4, 0>(cases, size);
  }
}

/// Places of tokens on pages: a table [batch, n] and positions [batch, seq].
struct Paged {
  std::int64_t pages, heads, page, width, batch, seq, of_sequence;
  [[nodiscard]] Shape cache() const { return {pages, heads, page, width}; }
};

/// Different positions in a sequence, ascending; every fourth token is missing.
void fill_positions(Random& random, Tensor& positions) {
  const std::int64_t seq = positions.type.shape[1];
  for (std::size_t i = 0; i < positions.values.size(); ++i) {
    const auto t = static_cast<double>(static_cast<std::int64_t>(i) % seq);
    positions.values[i] = i % 4 == 3 ? -1 : t == 0 ? static_cast<double>(random.below(7)) : t + 6;
  }
}

/// The last positions that a table has room for.
void fill_last_positions(Random&, Tensor& positions) {
  for (std::size_t i = 0; i < positions.values.size(); ++i) {
    positions.values[i] = static_cast<double>(1000 - positions.values.size() + i);
  }
}

/// Each page once, in a random order, so that no two tokens are at one place.
void fill_table(Random& random, Tensor& table) {
  for (std::size_t i = 0; i < table.values.size(); ++i) {
    table.values[i] = static_cast<double>(i);
    std::swap(table.values[i], table.values[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i) + 1))]);
  }
}

/// Every second entry names no page.
void fill_table_with_holes(Random& random, Tensor& table) {
  fill_table(random, table);
  for (std::size_t i = 0; i < table.values.size(); i += 2) {
    table.values[i] = i % 4 == 0 ? -1 : 1000;
  }
}

void add_pages(std::vector<Case>& cases) {
  for (const Paged& s : std::vector<Paged>{{6, 2, 4, 8, 2, 3, 3},
                                           {1, 1, 16, 1, 1, 1, 1},
                                           {9, 3, 5, 17, 3, 1, 3},
                                           {8, 1, 16, 64, 2, 9, 4},
                                           {3, 2, 8, 128, 1, 3, 2},
                                           {5, 2, 32, 33, 1, 20, 2}}) {
    const Operand positions = {type_of({s.batch, s.seq}, graph::DType::i32), fill_positions};
    for (auto* const fill : {fill_table, fill_table_with_holes}) {
      const Operand table = {type_of({s.batch, s.of_sequence}, graph::DType::i32), fill};
      cases.push_back(
          {"write_pages", {}, {normal(s.cache()), normal({s.batch, s.seq, s.heads, s.width}), table, positions}});
      for (const std::int64_t group : {1, 3}) {
        const std::int64_t window = (group == 1) == (fill == fill_table) ? 0 : 4;
        cases.push_back({"paged_attention",
                         {{"group", group}, {"window", window}, {"scale", window == 0 ? 0.0 : 0.3}},
                         {normal({s.batch, s.seq, s.heads * group, s.width}), normal(s.cache()), normal(s.cache()),
                          table, positions}});
      }
    }
  }
  // A long context.
  const Shape cache = {45, 1, 25, 3};
  cases.push_back({"paged_attention",
                   {{"group", std::int64_t{2}}, {"window", std::int64_t{0}}, {"scale", 0.0}},
                   {normal({1, 2, 2, 3}),
                    normal(cache),
                    normal(cache),
                    {type_of({1, 40}, graph::DType::i32), fill_table},
                    {type_of({1, 2}, graph::DType::i32), fill_last_positions}}});
}

/// Weights in blocks, and their scales.
Operand int8_weights(Shape shape) {
  return {type_of(std::move(shape), graph::DType::i8), [](Random& random, Tensor& tensor) {
            for (double& value : tensor.values) {
              value = static_cast<double>(random.below(255) - 127);
            }
          }};
}
Operand scales(Shape shape) {
  return {type_of(std::move(shape), graph::DType::f16),
          [](Random& random, Tensor& tensor) { random.fill_uniform(tensor, 0.001, 0.02); }};
}

void add_blocks(std::vector<Case>& cases) {
  const auto add = [&](const Shape& x, const Shape& weights, const Shape& of_scales, std::vector<std::int64_t> groups) {
    cases.push_back(
        {"block_matmul", {{"groups", std::move(groups)}}, {normal(x), int8_weights(weights), scales(of_scales)}});
  };
  add({2, 64}, {3, 64}, {3, 2}, {32});
  add({5, 2, 96}, {2, 96}, {2, 3}, {32});
  add({96}, {2, 1, 96}, {2, 1, 3}, {32});
  add({3, 5}, {7, 5}, {7, 1}, {32});
  add({2, 71}, {2, 71}, {2, 3}, {32});
  add({4, 3, 32}, {2, 3, 32}, {2, 3, 1}, {1, 32});
  add({3, 2, 64}, {1, 2, 64}, {1, 2, 2}, {1, 32});
  add({2, 16, 4}, {3, 16, 4}, {3, 2, 1}, {8, 4});
  add({2, 9, 2, 4}, {2, 9, 2, 4}, {2, 3, 1, 1}, {4, 2, 4});
  add({33, 160}, {65, 160}, {65, 5}, {32});
  for (const std::int64_t width : {3, 32, 64, 71}) {
    cases.push_back({"block_embedding",
                     {{"groups", std::vector<std::int64_t>{32}}},
                     {integers_below<5>({2, 3}), int8_weights({5, width}), scales({5, (width + 31) / 32})}});
  }
}

}  // namespace

void add_sequence_cases(std::vector<Case>& cases) {
  add_blocks(cases);
  add_rows(cases);
  add_rms_norms(cases);
  add_cumulative_sums(cases);
  add_ropes(cases);
  add_pages(cases);
  add_attentions(cases);
}

}  // namespace shardrun::test
