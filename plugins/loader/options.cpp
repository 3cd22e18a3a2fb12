#include "plugins/loader/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>

#include "core/base/error.h"
#include "core/base/suggest.h"

namespace shardrun::plugins {
namespace {

template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

std::optional<OptionValue> parse_value(OptionType type, std::string_view text) {
  switch (type) {
    case OptionType::boolean:
      if (text == "true" || text == "yes" || text == "on" || text == "1") {
        return true;
      }
      if (text == "false" || text == "no" || text == "off" || text == "0") {
        return false;
      }
      return std::nullopt;
    case OptionType::integer:
      return parse_number<std::int64_t>(text);
    case OptionType::number: {
      const std::optional<double> value = parse_number<double>(text);
      return value && std::isfinite(*value) ? std::optional<OptionValue>(*value) : std::nullopt;
    }
    case OptionType::text:
      return std::string(text);
  }
  return std::nullopt;
}

bool allowed(const OptionSpec& spec, const OptionValue& value) {
  if ((spec.minimum && value < *spec.minimum) || (spec.maximum && value > *spec.maximum)) {
    return false;
  }
  return spec.choices.empty() || std::ranges::find(spec.choices, to_string(value)) != spec.choices.end();
}

/// "an integer of 0 to 3", "one of 1f1b, gpipe", …
std::string expected(const OptionSpec& spec) {
  if (!spec.choices.empty()) {
    return fmt::format("one of {}", fmt::join(spec.choices, ", "));
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

[[noreturn]] void throw_unknown(std::span<const OptionSpec> specs, std::string_view key) {
  std::vector<std::string> names;
  for (const OptionSpec& spec : specs) {
    names.push_back(spec.name);
  }
  throw Error(ErrorCode::job,
              fmt::format("there is no option '{}'{}; {}", key, did_you_mean(key, names),
                          names.empty() ? "none is taken" : fmt::format("known: {}", fmt::join(names, ", "))));
}

}  // namespace

const OptionSpec* find_option(std::span<const OptionSpec> specs, std::string_view key) {
  const OptionSpec* any = nullptr;
  for (const OptionSpec& spec : specs) {
    if (spec.name == "*") {
      any = &spec;
    } else if (spec.name == key) {
      return &spec;
    }
  }
  return any;
}

OptionValue parse_option(const OptionSpec& spec, std::string_view key, std::string_view text) {
  std::optional<OptionValue> value = parse_value(spec.type, text);
  if (!value || !allowed(spec, *value)) {
    throw Error(ErrorCode::job, fmt::format("option '{}' is '{}', expected {}{}", key, text, expected(spec),
                                            did_you_mean(text, spec.choices)));
  }
  return *std::move(value);
}

OptionValues resolve_options(std::span<const OptionSpec> specs, const std::map<std::string, std::string>& given) {
  OptionValues values;
  for (const auto& [key, text] : given) {
    const OptionSpec* spec = find_option(specs, key);
    if (spec == nullptr) {
      throw_unknown(specs, key);
    }
    values[key] = parse_option(*spec, key, text);
  }
  return with_defaults(specs, std::move(values));
}

OptionValues with_defaults(std::span<const OptionSpec> specs, OptionValues values) {
  for (const OptionSpec& spec : specs) {
    if (spec.name != "*") {
      values.try_emplace(spec.name, spec.default_value);
    }
  }
  for (const auto& [key, value] : values) {
    const OptionSpec* spec = find_option(specs, key);
    if (spec == nullptr) {
      throw_unknown(specs, key);
    }
    if (value.index() != static_cast<std::size_t>(spec->type) || !allowed(*spec, value)) {
      throw Error(ErrorCode::job,
                  fmt::format("option '{}' is '{}', expected {}", key, to_string(value), expected(*spec)));
    }
  }
  return values;
}

std::string to_string(const OptionValue& value) {
  if (const bool* boolean = std::get_if<bool>(&value)) {
    return *boolean ? "true" : "false";
  }
  if (const std::string* text = std::get_if<std::string>(&value)) {
    return *text;
  }
  const std::int64_t* integer = std::get_if<std::int64_t>(&value);
  return integer != nullptr ? fmt::format("{}", *integer) : fmt::format("{}", std::get<double>(value));
}

std::string_view to_string(OptionType type) {
  switch (type) {
    case OptionType::boolean:
      return "boolean";
    case OptionType::integer:
      return "integer";
    case OptionType::number:
      return "number";
    case OptionType::text:
      return "text";
  }
  return "";
}

}  // namespace shardrun::plugins
