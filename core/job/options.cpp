#include "core/job/options.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/job/convert.h"
#include "core/job/section.h"

namespace shardrun::job {
namespace {

const OptionValues::Entry* find(const std::vector<OptionValues::Entry>& entries, std::string_view name) noexcept {
  const auto found =
      std::find_if(entries.begin(), entries.end(), [&](const auto& entry) { return entry.name == name; });
  return found == entries.end() ? nullptr : &*found;
}

}  // namespace

template <class T>
const T& OptionValues::get(std::string_view name) const {
  const Entry* const entry = find(entries_, name);
  if (entry == nullptr) {
    throw Error(ErrorCode::internal, fmt::format("option '{}' has no value: ask has() first, or declare it", name));
  }
  const T* const value = std::get_if<T>(&entry->value);
  if (value == nullptr) {
    throw Error(ErrorCode::internal,
                fmt::format("option '{}' is read as another type than it was declared with", name));
  }
  return *value;
}

bool OptionValues::has(std::string_view name) const noexcept { return find(entries_, name) != nullptr; }

std::int64_t OptionValues::integer(std::string_view name) const { return get<std::int64_t>(name); }

double OptionValues::real(std::string_view name) const { return get<double>(name); }

bool OptionValues::boolean(std::string_view name) const { return get<bool>(name); }

const std::string& OptionValues::text(std::string_view name) const { return get<std::string>(name); }

const std::vector<std::string>& OptionValues::list(std::string_view name) const {
  return get<std::vector<std::string>>(name);
}

std::uint64_t OptionValues::seed(std::string_view name) const { return get<std::uint64_t>(name); }

std::string to_string(const OptionValues& values) {
  std::string result;
  for (const OptionValues::Entry& entry : values.entries()) {
    const OptionSpec spec = {.name = entry.name, .type = entry.type};
    result += fmt::format("{} = {}\n", entry.name, to_text(spec, entry.value));
  }
  return result;
}

OptionValues make_options(const std::vector<OptionSpec>& specs, std::initializer_list<WrittenSetting> settings) {
  return make_options(specs, std::span<const WrittenSetting>(settings.begin(), settings.size()));
}

OptionValues make_options(const std::vector<OptionSpec>& specs, std::span<const WrittenSetting> settings) {
  RawSection section = {"options", "options", {}};
  for (const auto& [key, value] : settings) {
    section.settings.push_back({std::string(key), std::string(value), fmt::format("option {}", key)});
  }
  return read_section({.file = "options", .name = "options", .owner = "[options]", .specs = specs}, &section);
}

}  // namespace shardrun::job
