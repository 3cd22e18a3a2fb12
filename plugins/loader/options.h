#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace shardrun::plugins {

enum class OptionType { boolean, integer, number, text };

/// The alternative in use is the option's type, in the order of OptionType.
using OptionValue = std::variant<bool, std::int64_t, double, std::string>;

/// By option name.
using OptionValues = std::map<std::string, OptionValue>;

/// An option that a plugin declares. One that is named "*" stands for every key that no other names.
struct OptionSpec {
  std::string name;
  OptionType type = OptionType::text;
  OptionValue default_value;
  std::optional<OptionValue> minimum;  ///< inclusive, of the option's type; numbers only
  std::optional<OptionValue> maximum;
  std::vector<std::string> choices;  ///< of a text; empty: any text
  std::string help;                  ///< one line
};

/// The option that takes `key`: the one of that name, else "*", else null.
[[nodiscard]] const OptionSpec* find_option(std::span<const OptionSpec> specs, std::string_view key);

/// `text` as a value of the option. Throws Error{job} that names `key`, what is allowed and what was found.
[[nodiscard]] OptionValue parse_option(const OptionSpec& spec, std::string_view key, std::string_view text);

/// Every declared option with its value or default, and what "*" takes.
/// Throws Error{job} for a key that no option takes (with the nearest name) or a value that does not fit.
[[nodiscard]] OptionValues resolve_options(std::span<const OptionSpec> specs,
                                           const std::map<std::string, std::string>& given);

/// `values`, completed with the defaults of what it lacks, and checked like resolve_options does.
[[nodiscard]] OptionValues with_defaults(std::span<const OptionSpec> specs, OptionValues values);

/// The value as it would be written in a job file.
[[nodiscard]] std::string to_string(const OptionValue& value);

[[nodiscard]] std::string_view to_string(OptionType type);

}  // namespace shardrun::plugins
