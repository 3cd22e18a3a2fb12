#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/conformance/engine_member.h"
#include "core/conformance/model_member.h"
#include "core/conformance/strategy_member.h"

namespace shardrun::conformance {

/// A case (cases.h) for strategies. Every rank has its own instance of the strategy.
struct StrategyCase {
  std::string name;
  std::function<void(StrategyMember&)> run;
  std::uint32_t ranks = strategy_members;
};

/// The same for models.
struct ModelCase {
  std::string name;
  std::function<void(ModelMember&)> run;
  std::uint32_t ranks = model_members;
};

/// The same for engines.
struct EngineCase {
  std::string name;
  std::function<void(EngineMember&)> run;
  std::uint32_t ranks = engine_members;
};

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
