#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace shardrun::plugins {

enum class OptionType { boolean, integer, number, text };

/// The alternative in use is the option's type, in the order of OptionType.
using OptionValue = std::variant<bool, std::int64_t, double, std::string>;

/// By option name.
using OptionValues = std::map<std::string, OptionValue>;

/// An option that a plugin declares.
struct OptionSpec {
  std::string name;  ///< [a-z][a-z0-9_]*
  OptionType type = OptionType::text;
  OptionValue default_value;
  std::optional<OptionValue> minimum;  ///< inclusive, of the option's type; numbers only
  std::optional<OptionValue> maximum;
  std::vector<std::string> choices;  ///< of a text; empty: any text
  std::string help;                  ///< one line
};

/// `values`, completed with the defaults of what they lack.
/// Throws Error{job} for one that no spec declares (with the nearest name) or that is not what its spec allows.
[[nodiscard]] OptionValues with_defaults(std::span<const OptionSpec> specs, OptionValues values);

/// The value as it would be written in a job file.
[[nodiscard]] std::string to_string(const OptionValue& value);

}  // namespace shardrun::plugins
