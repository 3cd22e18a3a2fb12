// Dropout's masks: how many elements they keep, and that they depend on an element's global place alone.

#include <algorithm>
#include <cmath>

#include "core/graph/builder.h"
#include "tests/kernels/compare.h"
#include "tests/support/catch.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

std::vector<const device::Device*> devices() {
  return {&device::Device::find("cpu"), &device::Device::find("cuda-emulated"), &device::Device::find("reference")};
}

Tensor ones(std::vector<std::int64_t> shape) {
  Tensor tensor = zeros(type_of(std::move(shape)));
  std::fill(tensor.values.begin(), tensor.values.end(), 1.0);
  return tensor;
}

struct Draw {
  double rate = 0.5;
  std::string stream = "layer.0/dropout";
  device::Scalars scalars = scalars_of_tests();
};

Tensor drop(const device::Device& device, const Tensor& x, const Draw& draw) {
  const graph::Attributes attributes = {{"rate", draw.rate}, {"stream", draw.stream}};
  return execute(
      device, {.op = "dropout", .attributes = attributes, .inputs = {x}, .outputs = {x}, .scalars = draw.scalars})[0];
}

/// The operand of a causal attention whose result shows the mask. Values are unit vectors, so out[i, j] is the
/// probability of key j for query i, or zero if it was dropped. Heads and samples differ only in their queries.
Tensor attention_operand(std::int64_t batch, std::int64_t length, std::int64_t heads) {
  Tensor qkv = zeros(type_of({batch, length, 3, heads, length}));
  Random(5).fill_normal(qkv, 0, 1);
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t t = 0; t < length; ++t) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t d = 0; d < length; ++d) {
          const std::int64_t row = ((b * length + t) * 3 + 2) * heads + h;
          qkv.values[static_cast<std::size_t>(row * length + d)] = d == t ? 1 : 0;
        }
      }
    }
  }
  return qkv;
}

std::vector<Tensor> attend(const device::Device& device, const Tensor& qkv, const Draw& draw) {
  const graph::Attributes attributes = {{"dropout", draw.rate}, {"stream", draw.stream}};
  const std::vector<std::int64_t>& s = qkv.type.shape;
  Tensor out = zeros(type_of({s[0], s[1], s[3], s[4]}));
  Tensor lse = zeros(type_of({s[0], s[3], s[1]}));
  out.origin = {qkv.origin[0], 0, qkv.origin[3], 0};
  out.global = {qkv.global[0], qkv.global[1], qkv.global[3], qkv.global[4]};
  lse.origin = {qkv.origin[0], qkv.origin[3], 0};
  lse.global = {qkv.global[0], qkv.global[3], qkv.global[1]};
  return execute(
      device,
      {.op = "attention", .attributes = attributes, .inputs = {qkv}, .outputs = {out, lse}, .scalars = draw.scalars});
}

/// 1 for each element that was kept, 0 for each that was dropped.
Tensor mask_of(Tensor tensor) {
  for (double& value : tensor.values) {
    value = value != 0 ? 1 : 0;
  }
  return tensor;
}

double mean(const Tensor& tensor) {
  double sum = 0;
  for (const double value : tensor.values) {
    sum += value;
  }
  return sum / static_cast<double>(tensor.values.size());
}

std::size_t differing(const Tensor& a, const Tensor& b) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    count += a.values[i] != b.values[i] ? 1U : 0U;
  }
  return count;
}

/// The draws that must not share a mask with `Draw{}`.
std::vector<Draw> other_draws() {
  std::vector<Draw> draws(5);
  draws[0].stream = "layer.1/dropout";
  draws[1].scalars.seed += 1;
  draws[2].scalars.seed += std::uint64_t{1} << 40U;
  draws[3].scalars.step += 1;
  draws[4].scalars.first_sample += 64;
  return draws;
}

}  // namespace

TEST_CASE("dropout keeps its share of elements, scaled", "[kernels]") {
  const Tensor x = ones({50, 40, 50});
  for (const device::Device* device : devices()) {
    for (const double rate : {0.1, 0.5, 0.9}) {
      INFO(device->name() << ", rate " << rate);
      const Tensor y = drop(*device, x, {.rate = rate});
      const double deviation = std::sqrt(rate * (1 - rate) / static_cast<double>(x.values.size()));
      CHECK(std::abs(mean(mask_of(y)) - (1 - rate)) <= 5 * deviation);
      const double kept = *std::max_element(y.values.begin(), y.values.end());
      CHECK(kept == Approx(1 / (1 - rate)).epsilon(1e-7));
      CHECK(std::all_of(y.values.begin(), y.values.end(), [&](double v) { return v == 0 || v == kept; }));
    }
  }
}

TEST_CASE("dropout at rate 0 changes nothing", "[kernels]") {
  Tensor x = zeros(type_of({3, 5}));
  Random(1).fill_normal(x, 0, 1);
  for (const device::Device* device : devices()) {
    CHECK(drop(*device, x, {.rate = 0}).values == x.values);
  }
}

TEST_CASE("both devices draw the same mask", "[kernels]") {
  const Tensor x = ones({7, 33, 5});
  const Tensor qkv = attention_operand(3, 33, 2);
  for (const double rate : {0.1, 0.5, 0.9}) {
    CHECK(mask_of(drop(*devices()[0], x, {.rate = rate})).values ==
          mask_of(drop(*devices()[1], x, {.rate = rate})).values);
    CHECK(mask_of(attend(*devices()[0], qkv, {.rate = rate})[0]).values ==
          mask_of(attend(*devices()[1], qkv, {.rate = rate})[0]).values);
  }
}

TEST_CASE("another stream, seed, step or sample has another mask", "[kernels]") {
  const Tensor x = ones({8, 25, 5});
  const Tensor qkv = attention_operand(2, 17, 2);
  for (const device::Device* device : devices()) {
    const Tensor mask = mask_of(drop(*device, x, {}));
    const Tensor attention_mask = mask_of(attend(*device, qkv, {})[0]);
    for (const Draw& draw : other_draws()) {
      INFO(device->name() << ", " << draw.stream << ", seed " << draw.scalars.seed << ", step " << draw.scalars.step);
      // Independent masks of rate 1/2 differ in half of the elements; in attention, of those on or below the diagonal.
      CHECK(differing(mask, mask_of(drop(*device, x, draw))) > x.values.size() / 3);
      CHECK(differing(attention_mask, mask_of(attend(*device, qkv, draw)[0])) > attention_mask.values.size() / 6);
    }
  }
}

TEST_CASE("neighbouring samples and heads have masks of their own", "[kernels]") {
  for (const device::Device* device : devices()) {
    const Tensor mask = mask_of(drop(*device, ones({2, 300}), {}));
    CHECK(differing(slice(mask, 0, 0, 1), slice(mask, 0, 1, 2)) > 100);
    const Tensor attention_mask = mask_of(attend(*device, attention_operand(2, 17, 2), {})[0]);
    CHECK(differing(slice(attention_mask, 0, 0, 1), slice(attention_mask, 0, 1, 2)) > 80);
    CHECK(differing(slice(attention_mask, 2, 0, 1), slice(attention_mask, 2, 1, 2)) > 80);
  }
}

TEST_CASE("microbatches of any size draw the batch's mask", "[kernels]") {
  const Tensor x = ones({7, 3, 11});
  const Tensor qkv = attention_operand(7, 5, 3);
  for (const device::Device* device : devices()) {
    const Tensor whole = drop(*device, x, {});
    const Tensor whole_attention = attend(*device, qkv, {})[0];
    for (const std::int64_t rows : {1, 2, 3, 5}) {
      INFO(device->name() << ", " << rows << " rows a microbatch");
      std::vector<Tensor> parts;
      std::vector<Tensor> attention_parts;
      for (std::int64_t begin = 0; begin < 7; begin += rows) {
        const std::int64_t end = std::min<std::int64_t>(begin + rows, 7);
        Draw draw;
        draw.scalars.first_sample += begin;
        Tensor part = slice(x, 0, begin, end);
        Tensor attention_part = slice(qkv, 0, begin, end);
        // A microbatch is a batch of its own: its rows are counted from first_sample.
        part.origin[0] = attention_part.origin[0] = 0;
        parts.push_back(drop(*device, part, draw));
        attention_parts.push_back(attend(*device, attention_part, draw)[0]);
      }
      CHECK(concatenate(parts, 0).values == whole.values);
      CHECK(differing(mask_of(concatenate(attention_parts, 0)), mask_of(whole_attention)) == 0);
    }
  }
}

TEST_CASE("shards of any dimension draw the whole's mask", "[kernels]") {
  const Tensor x = ones({5, 7, 6});
  const Tensor qkv = attention_operand(5, 9, 6);
  for (const device::Device* device : devices()) {
    const Tensor whole = drop(*device, x, {});
    for (const std::size_t dim : {0U, 1U, 2U}) {
      const Tensor first = drop(*device, slice(x, dim, 0, 2), {});
      const Tensor second = drop(*device, slice(x, dim, 2, x.type.shape[dim]), {});
      CHECK(concatenate({first, second}, dim).values == whole.values);
    }
    const Tensor two_ways = slice(slice(x, 0, 1, 4), 2, 3, 6);
    CHECK(drop(*device, two_ways, {}).values == slice(slice(whole, 0, 1, 4), 2, 3, 6).values);

    const Tensor mask = mask_of(attend(*device, qkv, {})[0]);
    const Tensor shard = slice(slice(qkv, 0, 1, 4), 3, 2, 6);
    CHECK(mask_of(attend(*device, shard, {})[0]).values == slice(slice(mask, 0, 1, 4), 2, 2, 6).values);
  }
}

TEST_CASE("shards of separate queries, heads and groups draw the whole's mask", "[kernels]") {
  Tensor q = zeros(type_of({5, 7, 4, 3, 9}));
  Tensor k = zeros(type_of({5, 9, 4, 9}));
  Tensor v = k;
  Random(5).fill_normal(q, 0, 1);
  Random(6).fill_normal(k, 0, 1);
  for (std::size_t i = 0; i < v.values.size(); ++i) {  // unit vectors: out is the probabilities
    v.values[i] = i / (4 * 9) % 9 == i % 9 ? 1 : 0;
  }
  const graph::Attributes attributes = {
      {"causal", 0}, {"window", 0}, {"scale", 0.0}, {"dropout", 0.5}, {"stream", "layer.0/dropout"}};
  const auto mask = [&](const device::Device& device, const Tensor& queries, const Tensor& keys, const Tensor& values) {
    const std::vector<std::int64_t>& s = queries.type.shape;
    return mask_of(execute(device, {.op = "scaled_dot_product_attention",
                                    .attributes = attributes,
                                    .inputs = {queries, keys, values},
                                    .outputs = {queries, zeros(type_of({s[0], s[2], s[3], s[1]}))},
                                    .scalars = scalars_of_tests()})[0]);
  };
  const Tensor whole = mask(*devices()[0], q, k, v);
  CHECK(differing(whole, mask(*devices()[1], q, k, v)) == 0);
  CHECK(std::abs(mean(whole) - 0.5) < 0.05);
  CHECK(differing(slice(whole, 3, 0, 1), slice(whole, 3, 1, 2)) > whole.values.size() / 9);
  const auto part = [](const Tensor& tensor, std::size_t heads_dim) {
    return slice(slice(tensor, 0, 1, 4), heads_dim, 1, 3);
  };
  const auto shard = [&](const Tensor& tensor) { return slice(slice(part(tensor, 2), 1, 2, 6), 3, 1, 3); };
  for (const device::Device* device : devices()) {
    INFO(device->name());
    CHECK(mask(*device, shard(q), part(k, 2), part(v, 2)).values == shard(whole).values);
  }
}

TEST_CASE("dropout's gradient drops what dropout dropped", "[kernels]") {
  graph::Graph graph;
  graph::FunctionBuilder builder(graph, "gradient", graph::Role::on_demand, 5);
  const Tensor x = ones({5, 33});
  const graph::ValueId input = builder.input("x", x.type);
  const graph::ValueId cotangent = builder.input("dy", x.type);
  const graph::ValueId y = builder.call("dropout", {input}, {{"rate", 0.5}, {"stream", "s"}});
  const std::vector<graph::ValueId> inputs = {input};
  const std::vector<graph::ValueId> outputs = {y};
  const std::vector<graph::ValueId> cotangents = {cotangent};
  const graph::Attributes attributes = {{"rate", 0.5}, {"stream", "s"}};
  const graph::ValueId dx = graph::find_op("dropout").gradient(builder, {attributes, inputs, outputs, cotangents, 0});
  for (const device::Device* device : devices()) {
    const IdVector<graph::ValueId, Tensor> values =
        evaluate(builder.function(), *device, {{input, x}, {cotangent, x}}, scalars_of_tests());
    CHECK(values[dx].values == values[y].values);
  }
}

TEST_CASE("attention's gradient drops what attention dropped", "[kernels]") {
  // With dout[i] the unit vector i, dv[j][i] is the masked probability out[i][j].
  constexpr std::int64_t length = 17;
  const Tensor qkv = attention_operand(1, length, 1);
  const graph::Attributes attributes = {{"dropout", 0.5}, {"stream", "layer.0/dropout"}};
  for (const device::Device* device : devices()) {
    const std::vector<Tensor> forward = attend(*device, qkv, {});
    Tensor dout = forward[0];
    for (std::size_t i = 0; i < dout.values.size(); ++i) {
      dout.values[i] = i / length == i % length ? 1 : 0;
    }
    const Tensor dqkv = execute(*device, {.op = "attention_gradient",
                                          .attributes = attributes,
                                          .inputs = {qkv, forward[0], forward[1], dout},
                                          .outputs = {qkv},
                                          .scalars = scalars_of_tests()})[0];
    Tensor transposed = forward[0];
    for (std::size_t j = 0; j < length; ++j) {
      for (std::size_t i = 0; i < length; ++i) {
        transposed.values[i * length + j] = dqkv.values[(j * 3 + 2) * length + i];
      }
    }
    CHECK(differing(mask_of(transposed), mask_of(forward[0])) == 0);
    CHECK(difference(transposed, forward[0], {.of_largest = 1e-6}) == "");
  }
}
