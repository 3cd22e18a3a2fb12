#pragma once

#include <vector>

#include "core/conformance/kinds.h"
#include "core/conformance/member.h"

namespace shardrun::conformance {

using Case = CaseOf<Member, 4>;

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

/// All cases; those with the same world are adjacent.
[[nodiscard]] std::vector<Case> transport_cases();

}  // namespace shardrun::conformance
