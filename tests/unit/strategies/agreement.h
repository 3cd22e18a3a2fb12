#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/partition/partition.h"
#include "core/verify/verify.h"
#include "plugins/loader/strategy.h"
#include "tests/support/verify_case.h"

namespace shardrun::test {

/// A strategy with its options, and the mesh of the job.
struct Choice {
  std::string strategy;
  std::vector<plan::MeshAxis> mesh;  ///< one axis without a name: the job has ranks, and no [mesh]
  OptionValues options = {};
  std::vector<std::int64_t> order = {};  ///< the rank at each place of the mesh
};

/// `ranks` without a [mesh].
[[nodiscard]] inline std::vector<plan::MeshAxis> ranks(std::uint32_t number) { return {{"", number}}; }

/// A pipeline's schedule by its name; "interleaved 3" has three chunks a stage.
void add_schedule(OptionValues& options, const std::string& schedule);
[[nodiscard]] const std::vector<std::string>& all_schedules();

[[nodiscard]] std::string to_string(const Choice& choice);

/// The answer of the built plugin for a model.
struct Answer {
  plan::Plan plan;
  std::shared_ptr<const plugins::Hooks> hooks;  ///< null: the plan has none
};
[[nodiscard]] Answer answer_by(const ModelCase& model, const Choice& choice);
[[nodiscard]] partition::Partition split_by(const ModelCase& model, const Choice& choice);
[[nodiscard]] partition::Programs programs_by(const ModelCase& model, const partition::Partition& partition,
                                              std::int64_t rank);

// Models whose sizes divide by nothing: 7 heads, a vocabulary of 65, 7 rows in 3 microbatches.

struct GptSettings {
  const char* layers = "2";
  const char* bias = "false";
  const char* tied = "true";
  const char* dropout = "0";
  graph::Remat remat = graph::Remat::none;
};

[[nodiscard]] VerifyCase gpt_case(std::string name, const GptSettings& settings);
[[nodiscard]] VerifyCase plain_gpt();    ///< two layers, tied
[[nodiscard]] VerifyCase full_gpt();     ///< two layers, with biases and dropout, untied
[[nodiscard]] VerifyCase five_layers();  ///< tied, with biases
[[nodiscard]] VerifyCase mlp_of_numbers();
[[nodiscard]] VerifyCase mlp_of_labels();  ///< by stochastic gradient descent with momentum

/// A model with the states that a strategy's hooks keep, split over the strategy's ranks.
struct Split {
  Split(const VerifyCase& given, const Choice& choice);

  void interpret(std::int64_t steps, const verify::AtMoment& at_moment, std::string_view device = "cpu") const;

  VerifyCase checked;
  std::shared_ptr<const plugins::Hooks> hooks;
  partition::Partition partition;
};

/// Checks two steps and an evaluation on all ranks. They compute what the reference does; ranks that hold the same
/// elements hold the same bits, and every element is held; each rank sends what was planned, and touches the
/// planned pages.
void check_agrees(const VerifyCase& checked, const Choice& choice, std::string_view device = "cpu");

/// Checks all choices for all models; under a sanitizer only some choices, other ones for each model.
void check_all_agree(const std::vector<VerifyCase>& models, const std::vector<Choice>& choices);

}  // namespace shardrun::test
