#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "plugins/conformance/engine_member.h"
#include "plugins/conformance/member.h"
#include "plugins/conformance/model_member.h"
#include "plugins/conformance/strategy_member.h"

namespace shardrun::conformance {

/// A description of a case, for the program that starts its processes.
struct CaseInfo {
  std::string name;
  std::uint32_t ranks = 4;                   ///< of the world that it needs
  std::optional<std::uint32_t> victim = {};  ///< a rank that kills itself; then the case gets a world of its own
  bool is_first_of_all = false;              ///< where it fails, no other case can pass
};

/// Something that every plugin of a kind must do. Every rank of the world calls `run`, which throws where it does not.
struct Case {
  std::string name;
  std::uint32_t ranks = 4;
  std::function<void(Member&)> run;
  std::optional<std::uint32_t> victim = {};
};

/// The same for strategies. Every rank has its own instance of the strategy.
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
void add_collective_cases(std::vector<Case>& cases);
void add_group_cases(std::vector<Case>& cases);
void add_message_cases(std::vector<Case>& cases);
void add_mismatch_cases(std::vector<Case>& cases);
void add_failure_cases(std::vector<Case>& cases);
void add_awaited_cases(std::vector<Case>& cases);
void add_memory_cases(std::vector<Case>& cases);
void add_restart_cases(std::vector<Case>& cases);
void add_death_cases(std::vector<Case>& cases);
void add_queue_cases(std::vector<Case>& cases);

void add_plan_cases(std::vector<StrategyCase>& cases);
void add_option_cases(std::vector<StrategyCase>& cases);
void add_purity_cases(std::vector<StrategyCase>& cases);
void add_hook_cases(std::vector<StrategyCase>& cases);

void add_model_cases(std::vector<ModelCase>& cases);
void add_op_cases(std::vector<ModelCase>& cases);
void add_training_cases(std::vector<ModelCase>& cases);

void add_engine_cases(std::vector<EngineCase>& cases);

/// All cases; those with the same world are adjacent.
[[nodiscard]] std::vector<Case> transport_cases();
[[nodiscard]] std::vector<StrategyCase> strategy_cases();
[[nodiscard]] std::vector<ModelCase> model_cases();
[[nodiscard]] std::vector<EngineCase> engine_cases();
[[nodiscard]] std::vector<CaseInfo> case_infos(plugins::PluginKind kind);

}  // namespace shardrun::conformance
