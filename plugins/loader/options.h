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

/// What a text that is no choice may name.
struct TextFile {
  std::string path;
  std::string contents;  ///< UTF-8 without NUL

  auto operator<=>(const TextFile&) const = default;
};

/// The alternative in use is the option's type, in the order of OptionType; a text may be a file.
using OptionValue = std::variant<bool, std::int64_t, double, std::string, TextFile>;

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
  bool file = false;                 ///< of a text with choices: also the path of a text file
  bool transport = false;            ///< of a text: the name of a transport that this one opens
  std::vector<std::string> aliases;  ///< what other programs call it
};

/// `values`, completed with the defaults of what they lack.
/// Throws Error{job} for one that no spec declares (with the nearest name) or that is not what its spec allows.
[[nodiscard]] OptionValues with_defaults(std::span<const OptionSpec> specs, OptionValues values);

/// What `text`, as it would be written in a job file, says for the option `name`; no file is read. Throws Error{job}.
[[nodiscard]] OptionValue read_option(std::span<const OptionSpec> specs, std::string_view name, std::string_view text);

/// The value as it would be written in a job file; of a file its path.
[[nodiscard]] std::string to_string(const OptionValue& value);

}  // namespace shardrun::plugins
