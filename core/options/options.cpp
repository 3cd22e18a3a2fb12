#include "core/options/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/suggest.h"
#include "core/options/convert.h"

namespace shardrun {
namespace {

/// A hint for a message about an unknown name: the option that other programs call so, or the nearest name.
std::string hint_for(std::span<const OptionSpec> specs, std::string_view name, const std::vector<std::string>& names) {
  for (const OptionSpec& spec : specs) {
    for (const Alias& alias : spec.aliases) {
      if (alias.name == name) {
        return fmt::format(" (it is '{}' here{}{})", spec.name, alias.note.empty() ? "" : ": ", alias.note);
      }
    }
  }
  return did_you_mean(name, names);
}

const OptionSpec& spec_named(std::span<const OptionSpec> specs, std::string_view name) {
  const auto found = std::ranges::find(specs, name, &OptionSpec::name);
  if (found != specs.end()) {
    return *found;
  }
  std::vector<std::string> names;
  for (const OptionSpec& spec : specs) {
    names.push_back(spec.name);
  }
  throw Error(ErrorCode::job,
              fmt::format("there is no option '{}'{}; {}", name, hint_for(specs, name, names),
                          names.empty() ? "none is taken" : fmt::format("known: {}", fmt::join(names, ", "))));
}

[[noreturn]] void refuse_value(const OptionSpec& spec, std::string_view text) {
  throw Error(ErrorCode::job, fmt::format("option '{}' is '{}', expected {}", spec.name, text, accepted(spec)));
}

/// Reads a value, but refuses a file, because no file is read here.
OptionValue read(const OptionSpec& spec, std::string_view text) {
  try {
    OptionValue value = convert(spec, text, {"option", spec.name}, {});
    if (!std::holds_alternative<OptionFile>(value)) {
      return value;
    }
  } catch (const Error&) {  // the same refusal for any file
  }
  refuse_value(spec, text);
}

}  // namespace

template <class T>
const T& OptionValues::get(std::string_view name) const {
  const auto entry = std::ranges::find(entries_, name, &Entry::name);
  if (entry == entries_.end()) {
    throw Error(ErrorCode::internal, fmt::format("option '{}' has no value: ask has() first, or declare it", name));
  }
  const T* const value = std::get_if<T>(&entry->value);
  if (value == nullptr) {
    throw Error(ErrorCode::internal,
                fmt::format("option '{}' is read as another type than it was declared with", name));
  }
  return *value;
}

bool OptionValues::has(std::string_view name) const noexcept {
  return std::ranges::find(entries_, name, &Entry::name) != entries_.end();
}

void OptionValues::set(std::string_view name, OptionValue value) {
  const auto entry = std::ranges::find(entries_, name, &Entry::name);
  if (entry == entries_.end()) {
    entries_.push_back({std::string(name), std::move(value)});
  } else {
    entry->value = std::move(value);
  }
}

std::int64_t OptionValues::integer(std::string_view name) const { return get<std::int64_t>(name); }

double OptionValues::real(std::string_view name) const { return get<double>(name); }

bool OptionValues::boolean(std::string_view name) const { return get<bool>(name); }

const std::string& OptionValues::text(std::string_view name) const {
  const auto entry = std::ranges::find(entries_, name, &Entry::name);
  const auto* const file = entry == entries_.end() ? nullptr : std::get_if<OptionFile>(&entry->value);
  return file != nullptr ? file->path : get<std::string>(name);
}

const std::vector<std::string>& OptionValues::list(std::string_view name) const {
  return get<std::vector<std::string>>(name);
}

std::uint64_t OptionValues::seed(std::string_view name) const { return get<std::uint64_t>(name); }

std::string to_string(const OptionValues& values) {
  std::string result;
  for (const OptionValues::Entry& entry : values.entries()) {
    result += fmt::format("{} = {}\n", entry.name, to_text({.name = entry.name}, entry.value));
  }
  return result;
}

OptionValues checked_with_defaults(std::span<const OptionSpec> specs, OptionValues values) {
  for (const auto& [name, value] : values.entries()) {
    const OptionSpec& spec = spec_named(specs, name);
    const std::string text = to_text(spec, value);
    const bool is_file = std::holds_alternative<OptionFile>(value) && spec.type == OptionType::choice_or_path;
    if (!is_file && read(spec, text).index() != value.index()) {
      refuse_value(spec, text);
    }
  }
  for (const OptionSpec& spec : specs) {
    if (spec.default_value && !values.has(spec.name)) {
      values.set(spec.name, read(spec, *spec.default_value));
    }
  }
  return values;
}

OptionValue read_option(std::span<const OptionSpec> specs, std::string_view name, std::string_view text) {
  return read(spec_named(specs, name), text);
}

}  // namespace shardrun
