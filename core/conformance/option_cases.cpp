#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/options/convert.h"
#include "core/conformance/compute_cases.h"
#include "core/conformance/declared_options.h"
#include "core/conformance/strategy_jobs.h"

namespace shardrun::conformance {
namespace {

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

/// A bound of an option of integers; the end of their range if it has no bound within it.
std::int64_t integer_bound(const std::optional<double>& bound, std::int64_t end) {
  return bound && std::abs(*bound) < 0x1p63 ? static_cast<std::int64_t>(*bound) : end;
}

}  // namespace

void require_declared(const std::vector<OptionSpec>& options, const std::vector<OptionSpec>& of_another) {
  for (const OptionSpec& option : options) {
    require_help(option);
    require_choices(option);
  }
  const auto is_same = [](const OptionSpec& a, const OptionSpec& b) {
    return a.name == b.name && a.type == b.type && a.default_value == b.default_value && a.minimum == b.minimum &&
           a.maximum == b.maximum && a.choices == b.choices && a.help == b.help;
  };
  if (!std::ranges::equal(options, of_another, is_same)) {
    throw Failure("a second instance declares other options than the first");
  }
}

std::vector<OptionValue> extreme_values(const OptionSpec& option) {
  switch (option.type) {
    case OptionType::boolean: return {false, true};
    case OptionType::integer:
      return {integer_bound(option.minimum, std::numeric_limits<std::int64_t>::min()),
              integer_bound(option.maximum, std::numeric_limits<std::int64_t>::max())};
    case OptionType::real:
      return {option.minimum.value_or(std::numeric_limits<double>::lowest()),
              option.maximum.value_or(std::numeric_limits<double>::max())};
    case OptionType::text: return {std::string(), std::string("*"), std::string("=,:;%s/"), std::string(2000, 'y')};
    default: break;
  }
  std::vector<OptionValue> values(option.choices.begin(), option.choices.end());
  if (option.type == OptionType::choice_or_path) {
    for (const char* contents : {"", "\n", ",;\t=0\n1,2\n", "\"\xc3\xbc\"\r\n"}) {
      values.emplace_back(OptionFile{"/folder/file", contents});
    }
  }
  return values;
}

namespace {

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

}  // namespace

void add_option_cases(std::vector<StrategyCase>& cases) {
  cases.push_back({.name = "opening", .run = opens});
  cases.push_back({.name = "declared options", .run = declared});
  cases.push_back({.name = "options at their limits", .run = options_at_limits});
}

}  // namespace shardrun::conformance
