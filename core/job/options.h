#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace shardrun::job {

enum class OptionType {
  integer,  ///< int64, digits alone
  bytes,    ///< int64, digits with or without a unit: 80G, 64GiB
  real,     ///< a finite double
  boolean,  ///< true false yes no on off 1 0
  text,
  path,            ///< absolute once parsed
  choice,          ///< one of `choices`
  choice_or_path,  ///< of a spec alone: its values are of the type choice, or of path where they are none of `choices`
  text_list,       ///< elements between `separator`s
  path_list,
  seed,  ///< uint64
};

/// What other programs call a key or a value. It is never taken for the real one: an error names that.
struct Alias {
  // Not explicit: a declaration lists names.
  Alias(const char* name, const char* note = "") : name(name), note(note) {}
  Alias(const std::string& name) : name(name) {}

  std::string name;
  std::string note;  ///< how what they mean differs
};

/// Another program's name for one of the choices.
struct ChoiceAlias {
  std::string name;
  std::string choice;
};

/// Declares one setting: what the job file may say, and what it means. Models and strategies declare theirs,
/// and the fixed sections of the job file are declared in the same words.
struct OptionSpec {
  std::string name;  ///< [a-z][a-z0-9_]*
  OptionType type = OptionType::integer;
  std::optional<std::string> default_value{};  ///< as it would be written; absent: required, unless `optional`
  std::optional<double> minimum{};             ///< for integer, bytes and real
  std::optional<double> maximum{};
  std::vector<std::string> choices{};
  std::string help{};
  bool optional = false;  ///< may be left out though it has no default: OptionValues::has() then says no
  bool minimum_excluded = false;
  bool maximum_excluded = false;
  bool names_transport = false;  ///< a text whose value is a transport, which the job uses too
  char separator = ',';
  bool automatic = false;  ///< an integer that may be written `auto`: 0 until whoever declares it has put one there
  std::vector<Alias> aliases{};
  std::vector<ChoiceAlias> choice_aliases{};
};

/// integer (also bytes), seed, real, boolean, text (also path and choice), list.
using OptionValue = std::variant<std::int64_t, std::uint64_t, double, bool, std::string, std::vector<std::string>>;

/// The checked values of one set of options, in the order of their declaration.
class OptionValues {
 public:
  struct Entry {
    std::string name;
    OptionType type;
    OptionValue value;
  };

  [[nodiscard]] bool has(std::string_view name) const noexcept;

  /// Each REQUIRES that `name` was declared with that type and has a value; otherwise Error{internal}.
  [[nodiscard]] std::int64_t integer(std::string_view name) const;
  [[nodiscard]] double real(std::string_view name) const;
  [[nodiscard]] bool boolean(std::string_view name) const;
  [[nodiscard]] const std::string& text(std::string_view name) const;  ///< text, path and choice
  [[nodiscard]] const std::vector<std::string>& list(std::string_view name) const;
  [[nodiscard]] std::uint64_t seed(std::string_view name) const;

  [[nodiscard]] const std::vector<Entry>& entries() const noexcept { return entries_; }

  /// REQUIRES: no entry of that name yet.
  void add(Entry entry) { entries_.push_back(std::move(entry)); }

 private:
  template <class T>
  const T& get(std::string_view name) const;

  std::vector<Entry> entries_;
};

/// `name = value` lines.
[[nodiscard]] std::string to_string(const OptionValues& values);

/// A key and its value, as a job file would write it.
using WrittenSetting = std::pair<std::string_view, std::string_view>;

/// Values for `specs` without a job file: `settings` as they would be written in one, the rest by default.
/// Relative paths are left as they are. Throws Error{job} for what the job file would be refused for.
[[nodiscard]] OptionValues make_options(const std::vector<OptionSpec>& specs, std::span<const WrittenSetting> settings);
[[nodiscard]] OptionValues make_options(const std::vector<OptionSpec>& specs,
                                        std::initializer_list<WrittenSetting> settings);

}  // namespace shardrun::job
