#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/job/job.h"
#include "core/options/options.h"

namespace shardrun::job {

/// One key of a fixed section: its form, its help, and where its value goes.
struct Setting {
  OptionSpec spec;
  std::function<void(Job&, const OptionSpec&, const OptionValue&)> store;
  std::string default_note{};        ///< shown instead of a default that depends on something
  bool from_working_folder = false;  ///< a path in the file that starts in the working directory
};

/// Who declares a section's keys in addition to the schema's.
enum class SectionKind { fixed, mesh, model, strategy, engine, sharding, transport };

struct Section {
  std::string name;
  std::string help;
  std::vector<Setting> settings{};
  SectionKind kind = SectionKind::fixed;
  std::vector<std::string> tasks{};    ///< with any other [job] task the section is refused, and nothing in it required
  std::vector<OptionSpec> of_axis{};   ///< keys of sections [NAME.AXIS], each about one mesh axis
  std::vector<std::string> aliases{};  ///< what other programs call such a section
  std::vector<std::string> key_aliases{};  ///< other programs' keys for which there is no key here, but this section
  std::string key_note{};                  ///< what a key of such a section is, in the words of an error
};

/// Every section and key of the job file, in the order in which they are documented and written.
[[nodiscard]] const std::vector<Section>& schema();

/// REQUIRES: there is such a section.
[[nodiscard]] const Section& section_named(std::string_view name);

/// The section that [NAME.AXIS] belongs to: [NAME]. Null if `name` is no such name.
[[nodiscard]] const Section* section_of_axis(std::string_view name);

/// Null for a key that is not in the schema.
[[nodiscard]] const Setting* find_setting(const Section& section, std::string_view key) noexcept;

struct KeyName {
  std::string section;
  std::string key;
};

/// `smaller` is at most `larger`. REQUIRES: both have one type.
struct OrderRule {
  KeyName smaller;
  KeyName larger;
};

/// `key` has no effect if `other` has this value; without a value: if `other` is not given. `key` is still accepted
/// with the value `harmless`.
struct EffectRule {
  KeyName key;
  KeyName other;
  std::optional<std::string> value;
  std::optional<std::string> harmless = std::nullopt;
  bool of_models = false;  ///< a job with an engine may have both
};

/// At most one of `keys` is given.
struct ExclusiveRule {
  std::string section;
  std::vector<std::string> keys;
};

/// If `section` is given, at least one of `keys` is.
struct ContentRule {
  std::string section;
  std::vector<std::string> keys;
};

/// If `key` is given, at least one of `others` is.
struct NeedRule {
  KeyName key;
  std::vector<KeyName> others;
};

/// Rules about pairs and groups of keys.
struct Rules {
  std::vector<KeyName> of_models;  ///< without effect with [job] engine; a name without a key is a section
  std::vector<OrderRule> order;
  std::vector<EffectRule> effect;
  std::vector<ExclusiveRule> exclusive;
  std::vector<ContentRule> content;
  std::vector<NeedRule> need;
};

[[nodiscard]] const Rules& rules();

/// "[train] steps"
[[nodiscard]] std::string to_string(const KeyName& name);
[[nodiscard]] std::string setting_name(std::string_view section, std::string_view key);

}  // namespace shardrun::job
