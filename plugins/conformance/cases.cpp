#include "plugins/conformance/cases.h"

namespace shardrun::conformance {

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  add_collective_cases(cases);
  add_group_cases(cases);
  add_letter_cases(cases);
  add_mismatch_cases(cases);
  add_failure_cases(cases);
  add_restart_cases(cases);
  add_death_cases(cases);
  return cases;
}

}  // namespace shardrun::conformance
