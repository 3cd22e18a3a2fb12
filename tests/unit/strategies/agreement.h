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

/// A model whose graph has what a strategy's hooks keep, and the ranks that the strategy splits it over.
struct Split {
  Split(const VerifyCase& given, const Choice& choice);

  void interpret(std::int64_t steps, const verify::AtMoment& at_moment, std::string_view device = "cpu") const;

  VerifyCase checked;
  std::shared_ptr<const plugins::Hooks> hooks;
  partition::Partition partition;
};

/// Checks that two steps and an evaluation on all ranks compute what the reference does, that ranks which hold the same
/// hold the same bits and every element is held, that each rank sent what was planned and touched the pages that were.
void check_agrees(const VerifyCase& checked, const Choice& choice, std::string_view device = "cpu");

/// All of them for all models; under a sanitizer some, of each model others.
void check_all_agree(const std::vector<VerifyCase>& models, const std::vector<Choice>& choices);

}  // namespace shardrun::test
