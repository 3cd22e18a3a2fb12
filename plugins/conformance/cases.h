#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "plugins/conformance/member.h"

namespace shardrun::conformance {

/// Something that every transport must do. Every rank of the world calls `run`, which throws where it is not so.
struct Case {
  std::string name;
  std::uint32_t ranks = 4;  ///< of the world that it needs
  std::function<void(Member&)> run;
  std::optional<std::uint32_t> victim = {};  ///< a rank that kills itself; the case has a world for itself
};

// One function a file of cases.
void add_collective_cases(std::vector<Case>& cases);
void add_group_cases(std::vector<Case>& cases);
void add_letter_cases(std::vector<Case>& cases);
void add_mismatch_cases(std::vector<Case>& cases);
void add_failure_cases(std::vector<Case>& cases);
void add_restart_cases(std::vector<Case>& cases);
void add_death_cases(std::vector<Case>& cases);

/// All, those of one world side by side.
[[nodiscard]] std::vector<Case> all_cases();

}  // namespace shardrun::conformance
