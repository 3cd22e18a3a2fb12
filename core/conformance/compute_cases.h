#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/conformance/engine_member.h"
#include "core/conformance/model_member.h"
#include "core/conformance/strategy_member.h"

namespace shardrun::conformance {

/// A case (cases.h) for plugins that compute. Every rank is a member with its own instance of the plugin.
template <class RankMember, std::uint32_t usual_ranks>
struct ComputeCase {
  std::string name;
  std::function<void(RankMember&)> run;
  std::uint32_t ranks = usual_ranks;
};
using StrategyCase = ComputeCase<StrategyMember, strategy_members>;
using ModelCase = ComputeCase<ModelMember, model_members>;
using EngineCase = ComputeCase<EngineMember, engine_members>;

// One function for each file of cases.
void add_plan_cases(std::vector<StrategyCase>& cases);
void add_option_cases(std::vector<StrategyCase>& cases);
void add_purity_cases(std::vector<StrategyCase>& cases);
void add_hook_cases(std::vector<StrategyCase>& cases);

void add_model_cases(std::vector<ModelCase>& cases);
void add_op_cases(std::vector<ModelCase>& cases);
void add_training_cases(std::vector<ModelCase>& cases);

void add_engine_cases(std::vector<EngineCase>& cases);

}  // namespace shardrun::conformance
