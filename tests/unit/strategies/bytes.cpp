// The bytes that ZeRO keeps and sends, tensor by tensor, compared with its paper (Rajbhandari et al.
// 2019, arXiv:1910.02054).

#include <cmath>
#include <map>

#include "tests/support/catch.h"
#include "tests/unit/strategies/agreement.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

/// A gpt with biases and one microbatch.
ModelCase gpt(bool tied) {
  return training_case(tied ? "gpt tied" : "gpt", "gpt",
                       {{"layers", "2"},
                        {"heads", "2"},
                        {"width", "10"},
                        {"context", "5"},
                        {"bias", "true"},
                        {"tied", tied ? "true" : "false"}},
                       {.vocab = 13}, {.batch = 4, .optimizer = {.clip = 1}});
}

std::vector<graph::State> parameters_of(const graph::Graph& graph) {
  std::vector<graph::State> parameters;
  for (const graph::State& state : graph.states) {
    if (state.kind == graph::StateKind::parameter) {
      parameters.push_back(state);
    }
  }
  return parameters;
}

/// A step's transfers are named after the parameter, its gradient, its change, or what computes the gradient.
std::map<std::string, std::string> parameters_by_transfer(const graph::Graph& graph, std::int64_t rows) {
  std::map<std::string, std::string> names;
  for (const graph::State& parameter : parameters_of(graph)) {
    for (const char* prefix : {"", "gradients/", "step/"}) {
      names[prefix + parameter.name] = parameter.name;
    }
  }
  const graph::Function& micro = *graph.find("micro", rows);
  for (const graph::StateWrite& write : micro.writes) {
    const graph::State& state = graph.states[write.state];
    if (state.kind == graph::StateKind::gradient) {
      names[micro.values[write.value].name] = graph.states[state.of_parameter].name;
    }
  }
  return names;
}

/// The bytes that all ranks together send in a step, by parameter; "" for transfers of no parameter.
std::map<std::string, std::uint64_t> sent_of_parameters(const ModelCase& model, const Choice& choice) {
  const partition::Partition partition = split_by(model, choice);
  const std::int64_t members = partition.placements.mesh.ranks();
  const std::map<std::string, std::string> names = parameters_by_transfer(model.graph, model.microbatch_rows[0]);
  std::map<std::string, std::uint64_t> sent;
  for (std::int64_t rank = 0; rank < members; ++rank) {
    const partition::Programs programs = programs_by(model, partition, rank);
    for (const partition::Program* program :
         {&programs.find("micro", model.microbatch_rows[0]), &programs.find("update", 0)}) {
      for (const partition::Transfer& transfer : program->transfers) {
        const auto name = names.find(transfer.name);
        sent[name == names.end() ? "" : name->second] += partition::sent_bytes(transfer, rank, members);
      }
    }
  }
  return sent;
}

/// How often each rank sends a parameter's size, times (N−1)/N, in a step.
std::uint64_t times_of(const std::string& strategy, const graph::State& state, bool tied) {
  const std::string& parameter = state.name;
  if (parameter == "embedding/tokens" && tied && strategy != "dp" && strategy != "zero1") {
    // Used before the first layer and after the last one: its gradient is reduced after each use. It is gathered for
    // each use, too, and backward begins with what the end of forward has gathered.
    return strategy == "zero2" ? 3 : 4;
  }
  if (strategy != "zero3") {
    return 2;
  }
  // Used at the end of forward, and at once again in backward.
  const bool is_last = parameter.starts_with("final_norm/") || parameter == "head/weights";
  // Not read in backward.
  const bool is_added = parameter.ends_with("/bias") || parameter.starts_with("embedding/");
  return is_last || is_added ? 2 : 3;
}

struct Stage {
  std::string strategy;
  double whole = 0;  ///< bytes a parameter that every rank has
  double split = 0;  ///< and those that are divided by the number of ranks
};

}  // namespace

// Parameters, gradients and Adam's two moments, four bytes each: section 5.
TEST_CASE("each stage of ZeRO keeps the bytes of its formula, within an element for each tensor", "[strategies]") {
  for (const bool tied : {true, false}) {
    const ModelCase model = gpt(tied);
    const auto tensors = static_cast<double>(parameters_of(model.graph).size());
    const auto all = static_cast<double>(graph::parameter_count(model.graph));
    for (const Stage& stage :
         {Stage{"dp", 16, 0}, Stage{"zero1", 8, 8}, Stage{"zero2", 4, 12}, Stage{"zero3", 0, 16}}) {
      for (const std::uint32_t number : {1U, 2U, 3U, 4U, 8U}) {
        const partition::Partition partition = split_by(model, {stage.strategy, ranks(number)});
        double over_all = 0;
        for (std::int64_t rank = 0; rank < number; ++rank) {
          const partition::MemoryUse use = programs_by(model, partition, rank).memory;
          const auto kept = static_cast<double>(use.parameters + use.gradients + use.optimizer);
          INFO(model.name << ", " << stage.strategy << " of " << number << ", rank " << rank);
          CHECK(std::abs(kept - all * (stage.whole + stage.split / number)) <= tensors * stage.split);
          over_all += kept;
        }
        CHECK(over_all == all * (stage.whole * number + stage.split));
      }
    }
  }
}

// Section 7: 2Ψ, 2Ψ, 2Ψ and 3Ψ elements at the most, times (N−1)/N.
TEST_CASE("each stage of ZeRO sends each tensor as often as its formula says", "[strategies]") {
  for (const bool tied : {true, false}) {
    const ModelCase model = gpt(tied);
    for (const char* strategy : {"dp", "zero1", "zero2", "zero3"}) {
      for (const std::uint32_t number : {2U, 3U, 4U, 16U}) {
        std::map<std::string, std::uint64_t> sent =
            sent_of_parameters(model, {strategy, ranks(number), {{"bucket_mb", 0.0}}});
        for (const graph::State& parameter : parameters_of(model.graph)) {
          const auto size = static_cast<std::uint64_t>(graph::element_count(parameter.type)) * sizeof(float);
          INFO(model.name << ", " << strategy << " of " << number << ", " << parameter.name);
          CHECK(sent[parameter.name] == times_of(strategy, parameter, tied) * (number - 1) * size);
        }
        // The loss and, if no rank has all gradients, their norm: all_reduces of one element.
        INFO(model.name << ", " << strategy << " of " << number);
        CHECK(sent[""] == (strategy == std::string("dp") ? 1U : 2U) * 2 * (number - 1) * sizeof(float));
      }
    }
  }
}
