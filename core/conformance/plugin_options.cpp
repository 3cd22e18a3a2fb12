#include "core/conformance/plugin_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "core/conformance/conformance.h"
#include "core/conformance/peer.h"
#include "core/options/convert.h"

namespace shardrun::conformance {
namespace {

/// Values for the options without a default. `number`: the value of integers, if the option allows it.
OptionValues required_options(const std::vector<OptionSpec>& specs, std::int64_t number) {
  OptionValues values;
  for (const OptionSpec& option : specs) {
    if (option.default_value || option.optional) {
      continue;
    }
    const double low = option.minimum.value_or(0);
    const double high = option.maximum.value_or(low + 1);
    switch (option.type) {
      case OptionType::integer:
        values.set(option.name,
                   static_cast<std::int64_t>(std::clamp(static_cast<double>(number), low, std::max(low, high))));
        break;
      case OptionType::real: values.set(option.name, (low + high) / 2); break;
      case OptionType::boolean: values.set(option.name, false); break;
      default: values.set(option.name, option.choices.empty() ? std::string("a") : option.choices.front());
    }
  }
  return values;
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

/// The bound of an integer option. An option without a bound gets `end`, the end of the type's range.
std::int64_t integer_bound(const std::optional<double>& bound, std::int64_t end) {
  return bound && std::abs(*bound) < 0x1p63 ? static_cast<std::int64_t>(*bound) : end;
}

}  // namespace

std::vector<OptionValues> small_options(const std::vector<OptionSpec>& specs, const OptionValues& given) {
  std::vector<OptionValues> all;
  for (const std::int64_t number : {4, 2, 8, 3, 1, 16}) {
    OptionValues values = required_options(specs, number);
    for (const OptionValues::Entry& entry : given.entries()) {
      values.set(entry.name, entry.value);
    }
    all.push_back(values);
    for (const OptionSpec& option : specs) {
      for (const std::string& choice : option.choices) {
        OptionValues chosen = values;
        if (!given.has(option.name)) {
          chosen.set(option.name, choice);
          all.push_back(std::move(chosen));
        }
      }
    }
  }
  return all;
}

OptionValues given_options(const std::vector<OptionSpec>& specs, const std::vector<std::string>& settings) {
  OptionValues values;
  for (const std::string& setting : settings) {
    const std::string key = setting.substr(0, setting.find('='));
    if (is_data_setting(setting)) {
      continue;
    }
    values.set(key, read_option(specs, key, setting.substr(key.size() + 1)));
  }
  return values;
}

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

}  // namespace shardrun::conformance
