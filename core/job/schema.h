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
  std::string default_note{};        ///< shown instead of a default that depends on something else
  bool from_working_folder = false;  ///< a relative path refers to the working directory even if it is in the file
};

/// Who declares a section's keys, in addition to the schema.
enum class SectionKind { fixed, mesh, model, strategy, engine, sharding, transport };

struct Section {
  std::string name;
  std::string help;
  std::vector<Setting> settings{};
  SectionKind kind = SectionKind::fixed;
  std::vector<std::string> tasks{};        ///< with another [job] task the section is refused, and nothing in it is
                                           ///< required; empty: any task
  std::vector<OptionSpec> of_axis{};       ///< keys of sections [NAME.AXIS], each of which concerns one mesh axis
  std::vector<std::string> aliases{};      ///< names of such a section in other programs
  std::vector<std::string> key_aliases{};  ///< other programs' keys that belong to this section but have no equivalent
  std::string key_note{};                  ///< explains in an error what a key of such a section is
};

/// Every section and key of the job file, in the order in which they are documented and written.
[[nodiscard]] const std::vector<Section>& schema();

/// REQUIRES: the schema has such a section.
[[nodiscard]] const Section& section_named(std::string_view name);

/// The section [NAME] to which a section [NAME.AXIS] belongs. Null if `name` has no such form.
[[nodiscard]] const Section* section_of_axis(std::string_view name);

/// Returns null if the key is not in the schema.
[[nodiscard]] const Setting* find_setting(const Section& section, std::string_view key) noexcept;

struct KeyName {
  std::string section;
  std::string key;
};

/// `smaller` must be at most `larger`. REQUIRES: both have the same type.
struct OrderRule {
  KeyName smaller;
  KeyName larger;
};

/// `key` has no effect if `other` has this value; without a value: if `other` is not given. `key` is still accepted if
/// it has the value `harmless`.
struct EffectRule {
  KeyName key;
  KeyName other;
  std::optional<std::string> value;
  std::optional<std::string> harmless = std::nullopt;
  bool of_models = false;  ///< does not apply to a job with an engine
};

/// Keys of one section.
struct KeysOfSection {
  std::string section;
  std::vector<std::string> keys;
};

/// If `key` is given, at least one of `others` must be.
struct NeedRule {
  KeyName key;
  std::vector<KeyName> others;
};

/// Rules about pairs and groups of keys.
struct Rules {
  std::vector<KeyName> of_models;  ///< without effect with [job] engine; an entry without a key stands for a section
  std::vector<OrderRule> order;
  std::vector<EffectRule> effect;
  std::vector<KeysOfSection> exclusive;  ///< at most one of the keys can be given
  std::vector<KeysOfSection> content;    ///< if the section is given, at least one of the keys must be
  std::vector<NeedRule> need;
};

[[nodiscard]] const Rules& rules();

/// The key as messages name it: "[train] steps".
[[nodiscard]] std::string to_string(const KeyName& name);
[[nodiscard]] std::string setting_name(std::string_view section, std::string_view key);

}  // namespace shardrun::job
