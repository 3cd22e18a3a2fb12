// The bytes that ranks send, compared with numbers worked out by hand.

#include "core/graph/builder.h"
#include "core/partition/partition.h"
#include "tests/support/catch.h"
#include "tests/support/model_cases.h"
#include "tests/support/plans.h"

using namespace shardrun;
using namespace shardrun::test;
using partition::Collective;
using partition::SentBytes;
using partition::Transfer;

namespace {

/// The bytes that each of `members` members sends.
std::vector<std::uint64_t> sent(Transfer transfer, std::int64_t members, graph::DType dtype = graph::DType::f32) {
  transfer.dtype = dtype;
  std::vector<std::uint64_t> bytes;
  for (std::int64_t member = 0; member < members; ++member) {
    bytes.push_back(partition::sent_bytes(transfer, member, members));
  }
  return bytes;
}

/// Biases, one tied embedding, 6816 parameters: embeddings 10·16 + 4·16, the last norm 2·16, and for each of two
/// layers 2·2·16 of norms, 16·48 + 48 of qkv, 16·16 + 16 behind the heads, 16·64 + 64 and 64·16 + 16 of the mlp.
ModelCase gpt(std::int64_t microbatches = 1) {
  return training_case("gpt", "gpt",
                       {{"layers", "2"}, {"heads", "2"}, {"width", "16"}, {"context", "4"}, {"bias", "true"}},
                       {.vocab = 10}, {.batch = 3, .microbatches = microbatches});
}

/// The bytes that a rank sends in one call.
SentBytes sent_in(const ModelCase& model, const plan::Plan& plan, std::int64_t rank, const char* function,
                  std::int64_t rows, bool last = true) {
  const partition::Programs programs = partition::programs_of(model.graph, partition::split(model.graph, plan),
                                                              {.device = device::Device::find("cpu"), .rank = rank});
  SentBytes sum;
  partition::add_sent_bytes(sum, programs, programs.find(function, rows, last));
  return sum;
}

/// Attention of 8 queries, of which 2 heads share the only head of 8 keys, and the gradients of all operands.
ModelCase attention() {
  ModelCase model{.name = "attention", .graph = {}};
  const graph::TensorType q{graph::DType::f32, {1, 8, 1, 2, 4}, {"batch", "seq", "heads", "group", "head_dim"}};
  const graph::TensorType k{graph::DType::f32, {1, 8, 1, 4}, {"batch", "seq", "heads", "head_dim"}};
  for (const auto& [name, type] :
       {std::pair{"q", q}, {"k", k}, {"v", k}, {"dout", q}, {"dq", q}, {"dk", k}, {"dv", k}}) {
    model.graph.states.push_back({.name = name, .type = type, .kind = graph::StateKind::field});
  }
  graph::FunctionBuilder builder(model.graph, "f", graph::Role::on_demand, 1);
  const std::vector<graph::ValueId> operands = {builder.state("q"), builder.state("k"), builder.state("v")};
  const graph::Attributes attributes = {
      {"causal", std::int64_t{1}}, {"window", std::int64_t{0}}, {"scale", 0.0}, {"dropout", 0.0}, {"stream", "s"}};
  const std::vector<graph::ValueId> results = builder.call_all("scaled_dot_product_attention", operands, attributes);
  for (std::size_t i = 0; i < 3; ++i) {
    const graph::ValueId gradient = graph::find_op("scaled_dot_product_attention")
                                        .gradient(builder, {.attributes = attributes,
                                                            .inputs = operands,
                                                            .outputs = results,
                                                            .output_gradients = {builder.state("dout"), {}},
                                                            .input = i});
    builder.write(graph::StateId(4 + i), gradient, graph::StateWrite::Mode::assign);
  }
  builder.finish();
  return model;
}

}  // namespace

TEST_CASE("an all_reduce sends all but two blocks, twice over", "[partition]") {
  const auto all_reduce = [](std::int64_t elements) {
    return Transfer{
        .collective = Collective::all_reduce, .send = {.elements = elements}, .recv = {.elements = elements}};
  };
  CHECK(sent(all_reduce(8), 2) == std::vector<std::uint64_t>{32, 32});
  CHECK(sent(all_reduce(8), 4) == std::vector<std::uint64_t>{48, 48, 48, 48});
  // Blocks of 3, 3, 2 and 2: 20 less a rank's own block and less its neighbour's.
  CHECK(sent(all_reduce(10), 4) == std::vector<std::uint64_t>{56, 60, 64, 60});
  // Blocks of 1, 0 and 0.
  CHECK(sent(all_reduce(1), 3) == std::vector<std::uint64_t>{4, 8, 4});
  CHECK(sent(all_reduce(1), 2, graph::DType::i64) == std::vector<std::uint64_t>{8, 8});
  CHECK(sent(all_reduce(1), 2, graph::DType::bf16) == std::vector<std::uint64_t>{2, 2});
}

TEST_CASE("other collectives send blocks of their own sizes", "[partition]") {
  CHECK(sent({.collective = Collective::reduce_scatter, .send = {.elements = 10}, .recv_counts = {5, 3, 2}}, 3) ==
        std::vector<std::uint64_t>{20, 28, 32});
  CHECK(sent({.collective = Collective::all_gather, .recv = {.elements = 10}, .recv_counts = {5, 3, 2}}, 3) ==
        std::vector<std::uint64_t>{28, 32, 20});
  CHECK(sent({.collective = Collective::all_to_all, .send = {.elements = 6}, .send_counts = {1, 2, 3}}, 3) ==
        std::vector<std::uint64_t>{20, 16, 12});
}

// Rajbhandari et al. 2020, arXiv:1910.02054, section 7.1: 2Ψ elements, times (N−1)/N. And the loss: one element.
TEST_CASE("data parallelism sends each gradient and the loss once a step", "[partition]") {
  const auto step = [](std::uint32_t ranks, std::uint64_t bucket_bytes, std::int64_t rank) {
    return sent_in(gpt(), data_parallel(ranks, bucket_bytes), rank, "micro", 3);
  };
  const auto expect = [](std::uint64_t bytes) { return SentBytes{{"data", {{"all_reduce", bytes}}}}; };
  for (const std::uint64_t bucket_bytes : {std::uint64_t{0}, std::uint64_t{5000}}) {
    CHECK(step(2, bucket_bytes, 0) == expect(27264 + 4));
    CHECK(step(2, bucket_bytes, 1) == expect(27264 + 4));
  }
  CHECK(step(4, 0, 0) == expect(40896 + 4));
  CHECK(step(4, 0, 1) == expect(40896 + 8));
  CHECK(step(4, 0, 3) == expect(40896 + 4));
  CHECK(sent_in(gpt(), data_parallel(2), 0, "update", 0).empty());
}

TEST_CASE("data parallelism sends nothing between the microbatches of a step", "[partition]") {
  const ModelCase model = gpt(3);
  CHECK(sent_in(model, data_parallel(2), 0, "micro", 1, false).empty());
  CHECK(sent_in(model, data_parallel(2), 0, "micro", 1, true) == SentBytes{{"data", {{"all_reduce", 27264 + 4}}}});
}

// Shoeybi et al. 2019, arXiv:1909.08053, section 3: two sums forward and two backward in each layer, over 3 rows of 4
// tokens of width 16, 768 bytes. One more for the embedding split by vocabulary and one for what the logits' gradient
// gives back; and of each token the largest logit, the sum of exponentials and the target's logit, 48 bytes each.
TEST_CASE("tensor parallelism sends four sums a layer", "[partition]") {
  const std::uint64_t activations = (4 * 2 + 2) * 768 + 3 * 48;
  const auto expect = [](std::uint64_t bytes) { return SentBytes{{"model", {{"all_reduce", bytes}}}}; };
  CHECK(sent_in(gpt(), tensor_parallel(2), 0, "micro", 3) == expect(activations));
  CHECK(sent_in(gpt(), tensor_parallel(2), 1, "micro", 3) == expect(activations));
  // The squares of the gradients: one element.
  CHECK(sent_in(gpt(), tensor_parallel(2), 0, "update", 0) == expect(4));
  // Forward alone.
  const ModelCase evaluated = training_case(
      "gpt", "gpt", {{"layers", "2"}, {"heads", "2"}, {"width", "16"}, {"context", "4"}, {"bias", "true"}},
      {.vocab = 10}, {.batch = 3, .eval_rows = 3, .eval_samples = 3});
  CHECK(sent_in(evaluated, tensor_parallel(2), 0, "evaluate", 3) == expect((2 * 2 + 1) * 768 + 3 * 48));
}

TEST_CASE("ranks with parts of the queries gather the keys and sum the keys' gradients", "[partition]") {
  // A rank has 4 of 8 rows of keys, and as many of values: 64 bytes of each.
  const SentBytes by_queries = sent_in(attention(), plan_of({{"m", 2}}, {{"seq", {"m"}}}), 0, "f", 1);
  CHECK(by_queries == SentBytes{{"m", {{"all_gather", 2 * 64}, {"reduce_scatter", 2 * 64}}}});
  // Each has all keys and values, and makes a part of the sum of their gradients.
  const SentBytes by_group = sent_in(attention(), plan_of({{"m", 2}}, {{"group", {"m"}}}), 0, "f", 1);
  CHECK(by_group == SentBytes{{"m", {{"all_reduce", 2 * 128}}}});
}
