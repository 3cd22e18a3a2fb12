#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/verify/interpreted.h"
#include "tests/support/verify_case.h"
#include "tests/unit/strategies/choice.h"

namespace shardrun::test {

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
