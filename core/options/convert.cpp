#include "core/options/convert.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>
#include <type_traits>

#include "core/base/error.h"
#include "core/base/suggest.h"
#include "core/base/text.h"

namespace shardrun {
namespace {

[[noreturn]] void refuse(const SettingPlace& place, std::string_view text, std::string_view why) {
  throw Error(ErrorCode::job, fmt::format("{}: {} = {}: {}", place.where, place.setting, shown(text), why));
}

constexpr std::string_view automatic = "auto";
constexpr std::string_view range_dots = "..";

std::string range(const OptionSpec& spec) {
  const auto low = [&] {
    return fmt::format("{} {}", spec.minimum_excluded ? "more than" : "at least", *spec.minimum);
  };
  const auto high = [&] {
    return fmt::format("{} {}", spec.maximum_excluded ? "less than" : "at most", *spec.maximum);
  };
  if (spec.minimum && spec.maximum) {
    return low() + " and " + high();
  }
  if (spec.minimum) {
    return low();
  }
  return spec.maximum ? high() : std::string();
}

template <class Number>
void check_range(const OptionSpec& spec, Number number, std::string_view text, const SettingPlace& place) {
  const auto value = static_cast<double>(number);
  const bool too_small = spec.minimum && (spec.minimum_excluded ? value <= *spec.minimum : value < *spec.minimum);
  const bool too_large = spec.maximum && (spec.maximum_excluded ? value >= *spec.maximum : value > *spec.maximum);
  if (too_small || too_large) {
    refuse(place, text, fmt::format("must be {}", range(spec)));
  }
}

template <class Integer>
Integer to_integer(std::string_view text, const SettingPlace& place, std::string_view other = "") {
  Integer value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = end == text.data() + text.size();
  if (error == std::errc::result_out_of_range && whole) {
    refuse(place, text,
           fmt::format("does not fit 64 bits; an integer here lies between {} and {}",
                       std::numeric_limits<Integer>::min(), std::numeric_limits<Integer>::max()));
  }
  if (error != std::errc() || !whole) {
    refuse(place, text,
           fmt::format("is not {}; write its digits alone, without unit, decimal point or exponent{}",
                       std::is_signed_v<Integer> ? "an integer" : "an integer of at least 0", other));
  }
  return value;
}

IntegerRange to_range(const OptionSpec& spec, std::string_view text, std::size_t dots, const SettingPlace& place) {
  IntegerRange range;
  for (const auto& [bound, digits] :
       {std::pair(&range.least, text.substr(0, dots)), std::pair(&range.most, text.substr(dots + range_dots.size()))}) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *bound);
    if (error != std::errc() || end != digits.data() + digits.size()) {
      refuse(place, text, "is not a range; write two integers, such as 2..8");
    }
    check_range(spec, *bound, text, place);
  }
  if (range.least > range.most) {
    refuse(place, text, "begins above its end; write the smaller number first");
  }
  return range;
}

/// Parses digits and an optional unit: K to T are powers of 1000, Ki to Ti are powers of 1024, and a B can follow. With
/// such a unit, the number can have a decimal point.
std::int64_t to_bytes(std::string_view text, const SettingPlace& place) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  std::string_view unit = trimmed(text.substr(digits));
  const bool has_b = unit.ends_with('B');
  unit.remove_suffix(has_b ? 1 : 0);
  const bool is_binary = unit.ends_with('i');
  unit.remove_suffix(is_binary ? 1 : 0);
  constexpr std::string_view prefixes = "KMGT";
  const std::size_t prefix = unit.size() == 1 ? prefixes.find(unit) : std::string_view::npos;
  const bool is_known = prefix != std::string_view::npos || (unit.empty() && !is_binary);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + digits, number);
  if (!is_known || digits == 0 || error != std::errc() || end != text.data() + digits) {
    refuse(place, text, "is no number of bytes; write one such as 80G, 64GiB or 8000000000");
  }
  if (unit.empty()) {
    return to_integer<std::int64_t>(text.substr(0, digits), place);
  }
  const double value = std::round(number * std::pow(is_binary ? 1024.0 : 1000.0, static_cast<double>(prefix + 1)));
  if (value > 9e18) {
    refuse(place, text, "is more than 9e18 bytes");
  }
  return static_cast<std::int64_t>(value);
}

double to_real(std::string_view text, const SettingPlace& place) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = end == text.data() + text.size();
  if (error == std::errc::result_out_of_range && whole) {
    refuse(place, text, "is too large or too small for a double, which holds 1e-308 to 1e308");
  }
  if (error != std::errc() || !whole) {
    refuse(place, text, "is not a number; write one such as 0.1 or 1e-3, without unit");
  }
  if (!std::isfinite(value)) {
    refuse(place, text, "is not finite; write a number such as 0.1 or 1e-3");
  }
  return value;
}

bool to_boolean(std::string_view text, const SettingPlace& place) {
  static const std::vector<std::string> words = {"true", "yes", "on", "1", "false", "no", "off", "0"};
  const auto word = std::find(words.begin(), words.end(), text);
  if (word == words.end()) {
    refuse(
        place, text,
        fmt::format("is not a boolean{}; write true, yes, on or 1, or false, no, off or 0", did_you_mean(text, words)));
  }
  return word - words.begin() < 4;
}

bool is_choice(const OptionSpec& spec, std::string_view text) {
  return std::find(spec.choices.begin(), spec.choices.end(), text) != spec.choices.end();
}

/// The end of an error about a text that is not one of the choices: suggests the nearest choice, or the choice for
/// which the text is another program's name.
std::string hint_for_choice(const OptionSpec& spec, std::string_view text) {
  const auto alias = std::find_if(spec.choice_aliases.begin(), spec.choice_aliases.end(),
                                  [&](const ChoiceAlias& each) { return folded(each.name) == folded(text); });
  if (alias == spec.choice_aliases.end()) {
    return did_you_mean(text, spec.choices);
  }
  return fmt::format(" (it is '{}' here{})", alias->choice, alias->note.empty() ? "" : ": " + alias->note);
}

/// Whether the text is another program's name for one of the choices.
bool is_alias(const OptionSpec& spec, std::string_view text) {
  return std::ranges::any_of(spec.choice_aliases,
                             [&](const ChoiceAlias& each) { return folded(each.name) == folded(text); });
}

std::string to_choice(const OptionSpec& spec, std::string_view text, const SettingPlace& place) {
  if (!is_choice(spec, text)) {
    refuse(place, text, fmt::format("is not one of {}{}", fmt::join(spec.choices, ", "), hint_for_choice(spec, text)));
  }
  return std::string(text);
}

std::string to_path(std::string_view text, const std::filesystem::path& folder, const SettingPlace& place) {
  const std::filesystem::path path(text);
  const std::string whole = normal_path(folder.empty() || path.is_absolute() ? path : folder / path).string();
  if (invalid_utf8(whole) != std::string::npos || control_character(whole) != std::string::npos) {
    refuse(place, text,
           fmt::format("makes the path {}, which a job file cannot hold; rename what has control characters or bytes "
                       "that are not UTF-8",
                       escaped(whole)));
  }
  return whole;
}

/// Splits a list. A backslash makes the separator, or another backslash, part of an element.
std::vector<std::string> split(std::string_view text, char separator, const SettingPlace& place) {
  std::vector<std::string> elements(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size() && (text[i + 1] == separator || text[i + 1] == '\\')) {
      elements.back() += text[++i];
    } else if (text[i] == separator) {
      elements.emplace_back();
    } else {
      elements.back() += text[i];
    }
  }
  for (std::string& element : elements) {
    element = std::string(trimmed(element));
    if (element.empty()) {
      refuse(place, text, fmt::format("has an empty element; write elements with one '{}' between them", separator));
    }
  }
  return elements;
}

std::string joined(const std::vector<std::string>& elements, char separator) {
  std::string result;
  for (const std::string& element : elements) {
    if (!result.empty()) {
      result += separator;
    }
    for (const char c : element) {
      if (c == separator || c == '\\') {
        result += '\\';
      }
      result += c;
    }
  }
  return result;
}

}  // namespace

std::filesystem::path normal_path(const std::filesystem::path& path) {
  const std::filesystem::path shorter = path.lexically_normal();
  std::error_code failed;
  const bool is_same = shorter == path || std::filesystem::weakly_canonical(path, failed) ==
                                              std::filesystem::weakly_canonical(shorter, failed);
  return is_same && !failed ? shorter : path;
}

OptionValue convert(const OptionSpec& spec, std::string_view text, const SettingPlace& place,
                    const std::filesystem::path& folder) {
  if (text.empty() && spec.type != OptionType::text) {
    refuse(place, text, fmt::format("has no value; give {}, or leave the key out", accepted(spec)));
  }
  switch (spec.type) {
    case OptionType::integer: {
      if (spec.automatic && text == automatic) {
        return std::int64_t{0};
      }
      if (const std::size_t dots = text.find(range_dots); spec.ranged && dots != std::string_view::npos) {
        return to_range(spec, text, dots, place);
      }
      const auto value = to_integer<std::int64_t>(
          text, place,
          fmt::format("{}{}", spec.automatic ? ", or auto" : "", spec.ranged ? ", or a range such as 2..8" : ""));
      check_range(spec, value, text, place);
      return value;
    }
    case OptionType::bytes: {
      const auto value = to_bytes(text, place);
      check_range(spec, value, text, place);
      return value;
    }
    case OptionType::seed: return to_integer<std::uint64_t>(text, place);
    case OptionType::real: {
      const double value = to_real(text, place);
      check_range(spec, value, text, place);
      return value;
    }
    case OptionType::boolean: return to_boolean(text, place);
    case OptionType::text: return std::string(text);
    case OptionType::path:
      return is_choice(spec, text) || is_alias(spec, text) ? to_choice(spec, text, place)
                                                           : to_path(text, folder, place);
    case OptionType::choice: return to_choice(spec, text, place);
    case OptionType::choice_or_path:
      return is_choice(spec, text) ? OptionValue(std::string(text)) : OptionFile{to_path(text, folder, place), {}};
    case OptionType::text_list: {
      std::vector<std::string> elements = split(text, spec.separator, place);
      for (const std::string& element : elements) {
        if (!spec.choices.empty()) {
          static_cast<void>(to_choice(spec, element, place));
        }
      }
      return elements;
    }
    case OptionType::path_list: {
      std::vector<std::string> paths = split(text, spec.separator, place);
      for (std::string& path : paths) {
        path = to_path(path, folder, place);
      }
      return paths;
    }
  }
  throw Error(ErrorCode::internal, fmt::format("{} has a type that is none", place.setting));
}

std::string to_text(const OptionSpec& spec, const OptionValue& value) {
  if (spec.automatic && value == OptionValue(std::int64_t{0})) {
    return std::string(automatic);
  }
  return std::visit(
      [&](const auto& held) -> std::string {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, std::vector<std::string>>) {
          return joined(held, spec.separator);
        } else if constexpr (std::is_same_v<Held, OptionFile>) {
          return held.path;
        } else if constexpr (std::is_same_v<Held, IntegerRange>) {
          return fmt::format("{}{}{}", held.least, range_dots, held.most);
        } else {
          return fmt::format("{}", held);
        }
      },
      value);
}

std::string accepted(const OptionSpec& spec) {
  const std::string bounds = range(spec);
  const auto bounded = [&](std::string_view what) {
    return bounds.empty() ? std::string(what) : fmt::format("{}, {}", what, bounds);
  };
  switch (spec.type) {
    case OptionType::integer:
      return bounded("an integer") + (spec.ranged ? ", or a range such as 2..8" : "") +
             (spec.automatic ? fmt::format(", or {}", automatic) : std::string());
    case OptionType::bytes: return "bytes, with or without K, M, G, T, KiB, MiB, GiB or TiB";
    case OptionType::seed: return "an integer, 0 to 2^64 - 1";
    case OptionType::real: return bounded("a number");
    case OptionType::boolean: return "true or false";
    case OptionType::text: return "text";
    case OptionType::path:
      return spec.choices.empty() ? "a path" : fmt::format("one of {}, or a path", fmt::join(spec.choices, ", "));
    case OptionType::choice: return fmt::format("one of {}", fmt::join(spec.choices, ", "));
    case OptionType::choice_or_path: return fmt::format("one of {}, or a file's path", fmt::join(spec.choices, ", "));
    case OptionType::text_list:
      return spec.choices.empty()
                 ? fmt::format("a list separated by '{}'", spec.separator)
                 : fmt::format("some of {}", fmt::join(spec.choices, fmt::format("{} ", spec.separator)));
    case OptionType::path_list: return fmt::format("paths separated by '{}'", spec.separator);
  }
  return {};
}

}  // namespace shardrun
