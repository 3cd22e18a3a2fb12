#include "core/conformance/small_options.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "core/options/convert.h"
#include "core/conformance/conformance.h"

namespace shardrun::conformance {
namespace {

/// Values for options that have no default. `number`: of integers, where they may be that.
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

}  // namespace shardrun::conformance
