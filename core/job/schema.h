#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/job/job.h"
#include "core/options/options.h"

namespace shardrun::job {

/// One key of a fixed section: how it is written and explained, and where its value goes.
struct Setting {
  OptionSpec spec;
  std::function<void(Job&, const OptionSpec&, const OptionValue&)> store;
  std::string default_note{};        ///< what stands for the default where it depends on something
  bool from_working_folder = false;  ///< a path of the file that starts where the program runs
};

/// Who says which keys a section has, beside those of the schema.
enum class SectionKind { fixed, mesh, model, strategy, sharding, transport };

struct Section {
  std::string name;
  std::string help;
  std::vector<Setting> settings{};
  SectionKind kind = SectionKind::fixed;
  std::optional<std::string> task{};   ///< for any other [job] task the section is refused, and nothing in it required
  std::vector<OptionSpec> of_axis{};   ///< keys of sections [NAME.AXIS], each about one mesh axis
  std::vector<std::string> aliases{};  ///< what other programs call such a section
  std::vector<std::string> key_aliases{};  ///< keys of theirs for which there is no key here: the section says it
  std::string key_note{};                  ///< what a key of such a section is, in an error's words
};

/// Every section and key of the job file, in the order in which they are documented and written.
[[nodiscard]] const std::vector<Section>& schema();

/// REQUIRES: there is such a section.
[[nodiscard]] const Section& section_named(std::string_view name);

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

/// `key` does nothing while `other` has this value, or is not given where there is no value here.
struct EffectRule {
  KeyName key;
  KeyName other;
  std::optional<std::string> value;
};

/// At most one of `keys` is given.
struct ExclusiveRule {
  std::string section;
  std::vector<std::string> keys;
};

/// Where `section` is given, at least one of `keys` is.
struct ContentRule {
  std::string section;
  std::vector<std::string> keys;
};

/// Where `key` is given, at least one of `others` is.
struct NeedRule {
  KeyName key;
  std::vector<KeyName> others;
};

/// What must hold between keys.
struct Rules {
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
