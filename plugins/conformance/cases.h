#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "plugins/conformance/member.h"
#include "plugins/conformance/strategy_member.h"

namespace shardrun::conformance {

/// What a case is, to whoever starts the processes for it.
struct Outline {
  std::string name;
  std::uint32_t ranks = 4;                   ///< of the world that it needs
  std::optional<std::uint32_t> victim = {};  ///< a rank that kills itself; the case has a world for itself
  bool is_first_of_all = false;              ///< where it fails no other can go well
};

/// Something that every plugin of a kind must do. Every rank of the world calls `run`, which throws where it is not so.
struct Case {
  std::string name;
  std::uint32_t ranks = 4;
  std::function<void(Member&)> run;
  std::optional<std::uint32_t> victim = {};
};

/// The same for strategies. Every rank asks a strategy of its own.
struct StrategyCase {
  std::string name;
  std::function<void(StrategyMember&)> run;
  std::uint32_t ranks = strategy_members;
};

// One function a file of cases.
void add_collective_cases(std::vector<Case>& cases);
void add_group_cases(std::vector<Case>& cases);
void add_letter_cases(std::vector<Case>& cases);
void add_mismatch_cases(std::vector<Case>& cases);
void add_failure_cases(std::vector<Case>& cases);
void add_awaited_cases(std::vector<Case>& cases);
void add_memory_cases(std::vector<Case>& cases);
void add_restart_cases(std::vector<Case>& cases);
void add_death_cases(std::vector<Case>& cases);

void add_plan_cases(std::vector<StrategyCase>& cases);
void add_option_cases(std::vector<StrategyCase>& cases);
void add_purity_cases(std::vector<StrategyCase>& cases);
void add_hook_cases(std::vector<StrategyCase>& cases);

/// All, those of one world side by side.
[[nodiscard]] std::vector<Case> transport_cases();
[[nodiscard]] std::vector<StrategyCase> strategy_cases();
[[nodiscard]] std::vector<Outline> outlines(plugins::PluginKind kind);

}  // namespace shardrun::conformance
