#include "core/job/hints.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "core/base/suggest.h"
#include "core/base/text.h"
#include "core/job/schema.h"

namespace shardrun::job {
namespace {

bool is_alike(std::string_view a, std::string_view b) { return folded(a) == folded(b); }

std::vector<std::string> names_of(const std::vector<OptionSpec>& specs) {
  std::vector<std::string> names;
  for (const OptionSpec& spec : specs) {
    names.push_back(spec.name);
  }
  return names;
}

struct Meaning {
  std::string name;
  std::string note;
};

/// The key of `specs` that other programs call `key`.
std::optional<Meaning> meaning_of(const std::vector<OptionSpec>& specs, std::string_view key) {
  for (const OptionSpec& spec : specs) {
    for (const Alias& alias : spec.aliases) {
      if (is_alike(alias.name, key)) {
        return Meaning{spec.name, alias.note.empty() ? "" : ": " + alias.note};
      }
    }
  }
  return std::nullopt;
}

bool has_alike(const std::vector<OptionSpec>& specs, std::string_view key) {
  return std::any_of(specs.begin(), specs.end(), [&](const OptionSpec& spec) { return is_alike(spec.name, key); });
}

/// A hint for a key that is in the wrong section, under its own name or another program's.
std::string other_home(std::string_view key, const std::vector<KnownKeys>& elsewhere) {
  std::vector<std::string> homes;
  for (const KnownKeys& other : elsewhere) {
    if (has_alike(other.specs, key)) {
      homes.push_back(fmt::format("[{}]", other.section));
    }
  }
  if (!homes.empty()) {
    return fmt::format(" ('{}' is a key of {})", shown(key), fmt::join(homes, " and of "));
  }
  for (const KnownKeys& other : elsewhere) {
    if (const std::optional<Meaning> meaning = meaning_of(other.specs, key)) {
      return fmt::format(" (it is {} here{})", setting_name(other.section, meaning->name), meaning->note);
    }
  }
  for (const Section& section : schema()) {
    if (std::any_of(section.key_aliases.begin(), section.key_aliases.end(),
                    [&](const std::string& alias) { return is_alike(alias, key); })) {
      return fmt::format(" (it is {} in [{}] here)", section.key_note, section.name);
    }
  }
  return {};
}

/// A hint for a misspelled key of another section.
std::string near_elsewhere(std::string_view key, const std::vector<KnownKeys>& elsewhere) {
  for (const KnownKeys& other : elsewhere) {
    const std::vector<std::string> names = names_of(other.specs);
    if (const std::string_view near = nearest_name(key, names); !near.empty()) {
      return fmt::format(" (did you mean {}?)", setting_name(other.section, near));
    }
  }
  return {};
}

}  // namespace

std::vector<KnownKeys> known_keys() {
  std::vector<KnownKeys> all;
  for (const Section& section : schema()) {
    std::vector<OptionSpec> specs;
    for (const Setting& setting : section.settings) {
      specs.push_back(setting.spec);
    }
    if (!specs.empty()) {
      all.push_back({section.name, std::move(specs)});
    }
  }
  return all;
}

std::string hint_for_key(std::string_view section, std::string_view key, const std::vector<OptionSpec>& specs,
                         const std::vector<KnownKeys>& elsewhere) {
  if (has_alike(specs, key)) {
    return did_you_mean(key, names_of(specs));
  }
  if (const std::optional<Meaning> meaning = meaning_of(specs, key)) {
    return fmt::format(" (it is '{}' here{})", meaning->name, meaning->note);
  }
  std::vector<KnownKeys> others = elsewhere;
  std::erase_if(others, [&](const KnownKeys& other) { return other.section == section; });
  for (const std::string& hint : {other_home(key, others), did_you_mean(key, names_of(specs))}) {
    if (!hint.empty()) {
      return hint;
    }
  }
  return near_elsewhere(key, others);
}

std::string hint_for_section(std::string_view name) {
  std::vector<std::string> names;
  for (const Section& section : schema()) {
    names.push_back(section.name);
    if (std::any_of(section.aliases.begin(), section.aliases.end(),
                    [&](const std::string& alias) { return is_alike(alias, name); })) {
      return fmt::format(" (it is [{}] here)", section.name);
    }
  }
  return did_you_mean(name, names);
}

}  // namespace shardrun::job
