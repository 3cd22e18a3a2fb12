#include "plugins/loader/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/base/suggest.h"

namespace shardrun::plugins {
namespace {

bool is_of_type(const OptionSpec& spec, const OptionValue& value) {
  return std::holds_alternative<TextFile>(value) ? spec.file : value.index() == static_cast<std::size_t>(spec.type);
}

/// REQUIRES: the value is of the option's type.
bool allowed(const OptionSpec& spec, const OptionValue& value) {
  const double* number = std::get_if<double>(&value);
  if (number != nullptr && !std::isfinite(*number)) {
    return false;
  }
  if ((spec.minimum && value < *spec.minimum) || (spec.maximum && value > *spec.maximum)) {
    return false;
  }
  return std::holds_alternative<TextFile>(value) || spec.choices.empty() ||
         std::ranges::find(spec.choices, to_string(value)) != spec.choices.end();
}

/// "an integer of 0 to 3", "one of 1f1b, gpipe", …
std::string expected(const OptionSpec& spec) {
  if (!spec.choices.empty()) {
    return fmt::format("one of {}{}", fmt::join(spec.choices, ", "), spec.file ? ", or a file" : "");
  }
  std::string text = spec.type == OptionType::boolean   ? "true or false"
                     : spec.type == OptionType::integer ? "an integer"
                     : spec.type == OptionType::number  ? "a finite number"
                                                        : "a text";
  if (spec.minimum && spec.maximum) {
    text += fmt::format(" of {} to {}", to_string(*spec.minimum), to_string(*spec.maximum));
  } else if (spec.minimum) {
    text += fmt::format(" of at least {}", to_string(*spec.minimum));
  } else if (spec.maximum) {
    text += fmt::format(" of at most {}", to_string(*spec.maximum));
  }
  return text;
}

[[noreturn]] void throw_unknown(std::span<const OptionSpec> specs, const std::string& key) {
  std::vector<std::string> names;
  for (const OptionSpec& spec : specs) {
    names.push_back(spec.name);
  }
  throw Error(ErrorCode::job,
              fmt::format("there is no option '{}'{}; {}", key, did_you_mean(key, names),
                          names.empty() ? "none is taken" : fmt::format("known: {}", fmt::join(names, ", "))));
}

}  // namespace

OptionValues with_defaults(std::span<const OptionSpec> specs, OptionValues values) {
  for (const OptionSpec& spec : specs) {
    values.try_emplace(spec.name, spec.default_value);
  }
  for (const auto& [key, value] : values) {
    const auto spec = std::ranges::find(specs, key, &OptionSpec::name);
    if (spec == specs.end()) {
      throw_unknown(specs, key);
    }
    if (!is_of_type(*spec, value) || !allowed(*spec, value)) {
      throw Error(ErrorCode::job,
                  fmt::format("option '{}' is '{}', expected {}", key, to_string(value), expected(*spec)));
    }
  }
  return values;
}

OptionValue read_option(std::span<const OptionSpec> specs, std::string_view name, std::string_view text) {
  const auto spec = std::ranges::find(specs, name, &OptionSpec::name);
  if (spec == specs.end()) {
    throw_unknown(specs, std::string(name));
  }
  const auto number = [&](auto value) -> OptionValue {
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (problem != std::errc() || end != text.data() + text.size()) {
      throw Error(ErrorCode::job, fmt::format("option '{}' is '{}', expected {}", name, text, expected(*spec)));
    }
    return value;
  };
  switch (spec->type) {
    case OptionType::boolean:
      if (text != "true" && text != "false") {
        throw Error(ErrorCode::job, fmt::format("option '{}' is '{}', expected {}", name, text, expected(*spec)));
      }
      return text == "true";
    case OptionType::integer: return number(std::int64_t{});
    case OptionType::number: return number(double{});
    case OptionType::text: break;
  }
  return std::string(text);
}

std::string to_string(const OptionValue& value) {
  if (const bool* boolean = std::get_if<bool>(&value)) {
    return *boolean ? "true" : "false";
  }
  if (const std::string* text = std::get_if<std::string>(&value)) {
    return *text;
  }
  if (const TextFile* file = std::get_if<TextFile>(&value)) {
    return file->path;
  }
  const std::int64_t* integer = std::get_if<std::int64_t>(&value);
  return integer != nullptr ? fmt::format("{}", *integer) : fmt::format("{}", std::get<double>(value));
}

}  // namespace shardrun::plugins
