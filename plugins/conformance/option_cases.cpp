#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "plugins/conformance/cases.h"
#include "plugins/conformance/strategy_jobs.h"

namespace shardrun::conformance {
namespace {

using plugins::OptionSpec;
using plugins::OptionType;
using plugins::OptionValue;

void opens(StrategyMember& member) {
  (void)member.strategy();
  (void)member.open_another();
}

void require_help(const OptionSpec& option) {
  if (option.help.empty() || option.help.find('\n') != std::string::npos) {
    throw Failure(fmt::format("the help of option '{}' is '{}', expected one line that says what it is for",
                              option.name, option.help));
  }
}

void require_choices(const OptionSpec& option) {
  std::set<std::string> seen;
  for (const std::string& choice : option.choices) {
    if (choice.empty() || !seen.insert(choice).second) {
      throw Failure(fmt::format("option '{}' has the choice '{}' {}, expected distinct words", option.name, choice,
                                choice.empty() ? "among its own" : "twice"));
    }
  }
}

/// Names, types and defaults that the host does not check when it opens a plugin.
void declared(StrategyMember& member) {
  for (const OptionSpec& option : member.strategy().options()) {
    require_help(option);
    require_choices(option);
  }
  const plugins::Plugin other = member.open_another();
  const auto is_same = [](const OptionSpec& a, const OptionSpec& b) {
    return a.name == b.name && a.type == b.type && a.default_value == b.default_value && a.minimum == b.minimum &&
           a.maximum == b.maximum && a.choices == b.choices && a.help == b.help && a.file == b.file;
  };
  if (!std::ranges::equal(member.strategy().options(), other.options(), is_same)) {
    throw Failure("a second instance declares other options than the first");
  }
}

/// The extreme values that an option allows. The strategy has to handle whatever a job file may contain.
std::vector<OptionValue> limits(const OptionSpec& option) {
  switch (option.type) {
    case OptionType::boolean: return {false, true};
    case OptionType::integer:
      return {option.minimum.value_or(std::numeric_limits<std::int64_t>::min()),
              option.maximum.value_or(std::numeric_limits<std::int64_t>::max())};
    case OptionType::number:
      return {option.minimum.value_or(std::numeric_limits<double>::lowest()),
              option.maximum.value_or(std::numeric_limits<double>::max())};
    case OptionType::text: break;
  }
  if (!option.choices.empty()) {
    std::vector<OptionValue> values(option.choices.begin(), option.choices.end());
    for (const char* contents : {"", "\n", ",;\t=0\n1,2\n", "\"\xc3\xbc\"\r\n"}) {
      if (option.file) {
        values.emplace_back(plugins::TextFile{"/folder/file", contents});
      }
    }
    return values;
  }
  return {std::string(), std::string("*"), std::string("=,:;%s/"), std::string(2000, 'y')};
}

void options_at_limits(StrategyMember& member) {
  for (const OptionSpec& option : member.strategy().options()) {
    for (const OptionValue& value : limits(option)) {
      for (const std::string& program : program_names()) {
        for (StrategyJob& job : jobs_of(program, 4)) {
          job.request.options = {{option.name, value}};
          try {
            const Answer answer = ask(member.strategy(), job.request);
            require_same(answer, ask(member.strategy(), job.request),
                         "asked twice for the same, it answers differently");
          } catch (const Failure& failure) {
            throw Failure(fmt::format("{} over 4 ranks with {} and {} = {:.60}: {}", program, job.mesh, option.name,
                                      plugins::to_string(value), failure.what()));
          }
        }
      }
    }
  }
}

}  // namespace

void add_option_cases(std::vector<StrategyCase>& cases) {
  cases.push_back({.name = "opening", .run = opens});
  cases.push_back({.name = "declared options", .run = declared});
  cases.push_back({.name = "options at their limits", .run = options_at_limits});
}

}  // namespace shardrun::conformance
