// What mixed precision keeps and sends. All numbers of ranks divide the sizes, so formulas hold exactly.

#include <map>
#include <optional>
#include <set>

#include "tests/support/catch.h"
#include "tests/unit/strategies/agreement.h"

using namespace shardrun;
using namespace shardrun::test;
using graph::DType;

namespace {

/// An untied gpt with biases and two microbatches.
ModelCase gpt(std::optional<DType> mixed, DType moments = DType::f32) {
  return training_case(
      "gpt", "gpt",
      {{"layers", "2"}, {"heads", "4"}, {"width", "16"}, {"context", "4"}, {"bias", "true"}, {"tied", "false"}},
      {.vocab = 16}, {.batch = 8, .microbatches = 2, .mixed = mixed, .optimizer = {.clip = 1, .moments = moments}});
}

/// The bytes that an element of a parameter takes with Adam, by precision. Masters count as optimizer states.
struct Precision {
  std::optional<DType> mixed;
  double parameter = 0;
  double gradient = 0;
  double optimizer = 0;
  DType moments = DType::f32;
};

const Precision precisions[] = {{std::nullopt, 4, 4, 8},
                                {DType::f32, 2, 4, 12},
                                {DType::bf16, 2, 2, 12},
                                {std::nullopt, 4, 4, 4, DType::bf16},
                                {DType::bf16, 2, 2, 8, DType::bf16}};

/// What a strategy divides by `members`, as ZeRO numbers it: 1 optimizer states, 2 gradients too, 3 parameters too.
struct Division {
  Choice choice;
  int zero = 0;
  double members = 1;
};

std::vector<Division> divisions() {
  std::vector<Division> all;
  for (const std::uint32_t d : {2U, 4U}) {
    for (const int zero : {0, 1, 2, 3}) {
      all.push_back({{zero == 0 ? "dp" : "zero" + std::to_string(zero), ranks(d)}, zero, static_cast<double>(d)});
    }
    all.push_back({{"hsdp", {{"replica", 2}, {"shard", d}}}, 3, static_cast<double>(d)});
  }
  all.push_back({{"pp", ranks(2)}});
  const std::vector<plan::MeshAxis> mesh = {{"data", 2}, {"pipe", 2}, {"model", 2}};
  for (const int zero : {0, 1, 2, 3}) {
    all.push_back({{"3d", mesh, {{"zero", std::int64_t{zero}}}}, zero, 2});
  }
  return all;
}

/// The bytes that all ranks together send in a step, by collective and element type.
using Sent = std::map<std::pair<std::string, DType>, std::uint64_t>;

struct Step {
  Sent sent;
  std::set<std::string> wide;  ///< names of float32 transfers
};

/// What one step sends. REQUIRES: the mesh has one axis.
Step step_of(const Choice& choice, std::optional<DType> mixed) {
  const ModelCase model = gpt(mixed);
  const partition::Partition partition = split_by(model, choice);
  const std::int64_t members = partition.placements.mesh.ranks();
  Step step;
  for (std::int64_t rank = 0; rank < members; ++rank) {
    const partition::Programs programs = programs_by(model, partition, rank);
    std::vector<std::size_t> run = programs.find_calls("micro", model.microbatch_rows);
    run.push_back(programs.find_calls("update", {0}).front());
    for (const std::size_t program : run) {
      for (const partition::Transfer& transfer : programs.programs[program].transfers) {
        step.sent[{to_string(transfer.collective), transfer.dtype}] += partition::sent_bytes(transfer, rank, members);
        if (transfer.dtype == DType::f32) {
          step.wide.insert(transfer.name);
        }
      }
    }
  }
  return step;
}

}  // namespace

TEST_CASE("a parameter takes the bytes of its precision on every rank", "[strategies]") {
  const auto all = static_cast<double>(graph::parameter_count(gpt(std::nullopt).graph));
  for (const Division& division : divisions()) {
    std::vector<double> held;  // parameters that each rank has a part of, by float32's plan
    for (const Precision& precision : precisions) {
      const ModelCase model = gpt(precision.mixed, precision.moments);
      const partition::Partition partition = split_by(model, division.choice);
      const auto share = [&](int stage, double bytes) {
        return division.zero >= stage ? bytes / division.members : bytes;
      };
      const double parameter = share(3, precision.parameter);
      const double kept = parameter + share(2, precision.gradient) + share(1, precision.optimizer);
      for (std::int64_t rank = 0; rank < partition.placements.mesh.ranks(); ++rank) {
        const partition::MemoryUse use = programs_by(model, partition, rank).memory;
        if (&precision == &precisions[0]) {
          held.push_back(static_cast<double>(use.parameters) / parameter);
        }
        const double of_rank = held[static_cast<std::size_t>(rank)];
        INFO(to_string(division.choice) << ", rank " << rank << ", " << kept << " bytes a parameter");
        CHECK(static_cast<double>(use.parameters) == of_rank * parameter);
        CHECK(static_cast<double>(use.parameters + use.gradients + use.optimizer) == of_rank * kept);
        if (division.choice.strategy != "pp" && division.choice.strategy != "3d") {
          CHECK(of_rank == all);
        }
      }
    }
    if (division.choice.strategy == "pp") {
      CHECK(held[0] + held[1] == all);
    }
  }
}

TEST_CASE("data parallelism sends half the bytes with bfloat16 gradients", "[strategies]") {
  const Step wide = step_of({"dp", ranks(4)}, std::nullopt);
  CHECK(step_of({"dp", ranks(4)}, DType::f32).sent == wide.sent);
  const Step half = step_of({"dp", ranks(4)}, DType::bf16);
  CHECK(half.wide == std::set<std::string>{"loss"});
  const std::pair gradients{"all_reduce", DType::bf16};
  const std::pair rest{"all_reduce", DType::f32};
  CHECK(2 * half.sent.at(gradients) + half.sent.at(rest) == wide.sent.at(rest));
}

TEST_CASE("in mixed precision zero3 gathers half the bytes, and reduces gradients in their type", "[strategies]") {
  const Choice zero3{"zero3", ranks(4)};
  const Step wide = step_of(zero3, std::nullopt);
  for (const DType gradients : {DType::f32, DType::bf16}) {
    const Step half = step_of(zero3, gradients);
    const std::uint64_t factor = gradients == DType::bf16 ? 2 : 1;
    CHECK(2 * half.sent.at({"all_gather", DType::bf16}) == wide.sent.at({"all_gather", DType::f32}));
    CHECK(factor * half.sent.at({"reduce_scatter", gradients}) == wide.sent.at({"reduce_scatter", DType::f32}));
    CHECK_FALSE(half.sent.contains({"all_gather", DType::f32}));
    CHECK(half.sent.contains({"reduce_scatter", DType::f32}) == (gradients == DType::f32));
    CHECK(half.sent.at({"all_reduce", DType::f32}) == wide.sent.at({"all_reduce", DType::f32}));
  }
}

TEST_CASE("in mixed precision tensor parallelism and pipelines send half the bytes of activations", "[strategies]") {
  for (const bool sequence : {false, true}) {
    const Choice tp{"tp", ranks(4), {{"sequence", sequence}}};
    const Step wide = step_of(tp, std::nullopt);
    const Step half = step_of(tp, DType::bf16);
    CHECK(half.wide == std::set<std::string>{"highest_logit", "norm_squared/owed", "softmax_terms", "softmax_terms.1"});
    for (const auto& [kind, bytes] : wide.sent) {
      INFO(kind.first << ", sequence " << sequence);
      const auto narrow = half.sent.find({kind.first, DType::bf16});
      const auto rest = half.sent.find({kind.first, DType::f32});
      CHECK(narrow != half.sent.end());
      CHECK((narrow == half.sent.end() ? 0 : 2 * narrow->second) + (rest == half.sent.end() ? 0 : rest->second) ==
            bytes);
    }
  }
  const Step wide = step_of({"pp", ranks(2)}, std::nullopt);
  const Step half = step_of({"pp", ranks(2)}, DType::bf16);
  CHECK(2 * half.sent.at({"send", DType::bf16}) == wide.sent.at({"send", DType::f32}));
  CHECK_FALSE(half.sent.contains({"send", DType::f32}));
}
