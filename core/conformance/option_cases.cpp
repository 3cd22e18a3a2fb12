#include <fmt/format.h>

#include <string>
#include <vector>

#include "core/conformance/plugin_options.h"
#include "core/conformance/strategy_jobs.h"
#include "core/conformance/strategy_member.h"
#include "core/options/convert.h"

namespace shardrun::conformance {
namespace {

void opens(StrategyMember& member) {
  (void)member.strategy();
  (void)member.open_another();
}

void declared(StrategyMember& member) {
  require_declared(member.strategy().options(), member.open_another().options());
}

void options_at_limits(StrategyMember& member) {
  for (const OptionSpec& option : member.strategy().options()) {
    for (const OptionValue& value : extreme_values(option)) {
      for (const std::string& program : program_names()) {
        for (StrategyJob& job : jobs_of(program, 4)) {
          job.request.options = {{option.name, value}};
          try {
            const Answer answer = ask(member.strategy(), job.request);
            require_same(answer, ask(member.strategy(), job.request),
                         "asked twice for the same, it answers differently");
          } catch (const Failure& failure) {
            throw Failure(fmt::format("{} over 4 ranks with {} and {} = {:.60}: {}", program, job.mesh, option.name,
                                      to_text(option, value), failure.what()));
          }
        }
      }
    }
  }
}

std::vector<StrategyCase> strategy_cases() {
  std::vector<StrategyCase> cases;
  cases.push_back({.name = opening_case, .run = opens});
  cases.push_back({.name = "declared options", .run = declared});
  cases.push_back({.name = "options at their limits", .run = options_at_limits});
  add_plan_cases(cases);
  add_hook_cases(cases);
  add_purity_cases(cases);
  return cases;
}

const RegisterKind strategies({plugins::PluginKind::strategy, [] { return infos_of(strategy_cases()); },
                               [](Store& store, const MemberWords& words, std::string& before) {
                                 go_through(strategy_cases(),
                                            StrategyMember(store, words.directories, words.plugin, words.rank), words,
                                            before);
                               }});

}  // namespace
}  // namespace shardrun::conformance
