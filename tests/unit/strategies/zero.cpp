#include "tests/support/catch.h"
#include "tests/unit/strategies/agreement.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

const std::vector<std::uint32_t> numbers = {1, 2, 3, 4, 8};

std::vector<VerifyCase> all_models() { return {plain_gpt(), full_gpt(), mlp_of_numbers(), mlp_of_labels()}; }

}  // namespace

TEST_CASE("data parallelism with each stage of ZeRO agrees with the reference", "[strategies]") {
  std::vector<Choice> choices;
  for (const char* strategy : {"dp", "zero1", "zero2", "zero3"}) {
    for (const std::uint32_t number : numbers) {
      choices.push_back({strategy, ranks(number)});
    }
  }
  check_all_agree(all_models(), choices);
}

TEST_CASE("ZeRO with other buckets, units and kept tensors agrees with the reference", "[strategies]") {
  const VerifyCase gpt = full_gpt();
  for (const char* strategy : {"zero1", "zero2", "zero3"}) {
    check_agrees(gpt, {strategy, ranks(3), {{"bucket_mb", 0.0}}});
    check_agrees(gpt, {strategy, ranks(3), {{"bucket_mb", 0.002}}});
  }
  check_agrees(gpt, {"zero3", ranks(3), {{"unit", "tensor"}}});
  check_agrees(gpt, {"zero3", ranks(3), {{"keep", "*"}}});
  check_agrees(plain_gpt(), {"zero3", ranks(3), {{"keep", "embedding/*"}}});
  check_agrees(plain_gpt(), {"zero3", ranks(2), {{"unit", "tensor"}, {"keep", "layer.1/*"}}});
}

TEST_CASE("ZeRO and tensor parallelism with recomputation agree with the reference", "[strategies]") {
  for (const graph::Remat remat : {graph::Remat::layer, graph::Remat::selective}) {
    const VerifyCase gpt = gpt_case(remat == graph::Remat::layer ? "gpt, layers again" : "gpt, what is cheap again",
                                    {.bias = "true", .dropout = "0.2", .remat = remat});
    for (const char* strategy : {"zero1", "zero2", "zero3"}) {
      check_agrees(gpt, {strategy, ranks(3)});
    }
    check_agrees(gpt, {"tp", ranks(3), {{"sequence", true}}});
  }
}

TEST_CASE("tensor parallelism agrees with the reference, with and without a split sequence", "[strategies]") {
  std::vector<Choice> whole;
  std::vector<Choice> split;
  for (const std::uint32_t number : numbers) {
    whole.push_back({"tp", ranks(number)});
    split.push_back({"tp", ranks(number), {{"sequence", true}}});
  }
  check_all_agree(all_models(), whole);
  check_all_agree({plain_gpt(), full_gpt()}, split);
}

TEST_CASE("hybrid sharding with replicas agrees with the reference", "[strategies]") {
  check_all_agree({plain_gpt(), full_gpt(), mlp_of_numbers()},
                  {{"hsdp", {{"replica", 1}, {"shard", 1}}},
                   {"hsdp", ranks(3)},
                   {"hsdp", {{"replica", 2}, {"shard", 2}}},
                   {"hsdp", {{"replica", 3}, {"shard", 2}}, {{"unit", "tensor"}}},
                   {"hsdp", {{"shard", 4}, {"replica", 2}}, {{"keep", "*"}}},
                   {"hsdp", {{"replica", 4}}}});
}
