#pragma once

#include <compare>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace shardrun {

enum class OptionType {
  integer,  ///< int64, written with digits only
  bytes,    ///< int64, written with digits and optionally a unit: 80G, 64GiB
  real,     ///< a finite double
  boolean,  ///< true false yes no on off 1 0
  text,
  path,            ///< one of `choices`, or a path, which the job file makes absolute
  choice,          ///< one of `choices`
  choice_or_path,  ///< one of `choices`, or the path of a text file
  text_list,       ///< elements separated by `separator`; each is one of `choices`, if there are any
  path_list,
  seed,  ///< uint64
};

/// Another program's name for a key or a value. It is not accepted, but the error about it gives the right name.
struct Alias {
  // Not explicit, so that a declaration can list names.
  Alias(const char* name, const char* note = "") : name(name), note(note) {}
  Alias(const std::string& name) : name(name) {}

  std::string name;
  std::string note;  ///< how the meanings of the two names differ
};

/// Another program's name for one of the choices.
struct ChoiceAlias {
  std::string name;
  std::string choice;
  std::string note{};  ///< how the meanings of the two names differ
};

/// Declares one setting: the values that a job file can give it, and their meaning. The fixed sections of the job file,
/// models and plugins all declare their settings in this way.
struct OptionSpec {
  std::string name;  ///< [a-z][a-z0-9_]*
  OptionType type = OptionType::integer;
  std::optional<std::string> default_value{};  ///< as written in a job file; nothing: required, unless `optional`
  std::optional<double> minimum{};             ///< for integer, bytes and real
  std::optional<double> maximum{};
  std::vector<std::string> choices{};
  std::string help{};
  bool optional = false;  ///< can be left out although it has no default; see OptionValues::has()
  bool minimum_excluded = false;
  bool maximum_excluded = false;
  bool names_transport = false;  ///< a text that names a transport, which the job then also uses
  char separator = ',';
  bool automatic = false;  ///< an integer that can be `auto`, which is 0 until the option's owner replaces it
  bool ranged = false;     ///< an integer that can be a range, LEAST..MOST
  std::vector<Alias> aliases{};
  std::vector<ChoiceAlias> choice_aliases{};
};

/// The text file that a choice_or_path names.
struct OptionFile {
  std::string path;
  std::string contents;  ///< UTF-8 without NUL; empty until it is read

  auto operator<=>(const OptionFile&) const = default;
};

/// The value of an integer option that is given as a range. Both ends are included.
struct IntegerRange {
  std::int64_t least = 0;
  std::int64_t most = 0;

  auto operator<=>(const IntegerRange&) const = default;
};

/// The alternatives are, in order: integer (also bytes), seed, real, boolean, text (also path and choice), file,
/// list, range.
using OptionValue = std::variant<std::int64_t, std::uint64_t, double, bool, std::string, OptionFile,
                                 std::vector<std::string>, IntegerRange>;

/// The values of one set of options, in the order in which they were set.
class OptionValues {
 public:
  struct Entry {
    std::string name;
    OptionValue value;

    bool operator==(const Entry&) const = default;
  };

  OptionValues() = default;
  /// REQUIRES: names do not repeat.
  OptionValues(std::initializer_list<Entry> entries) : entries_(entries) {}

  bool operator==(const OptionValues&) const = default;

  [[nodiscard]] bool has(std::string_view name) const noexcept;

  /// Each getter throws Error{internal} unless `name` was declared with this type and has a value.
  [[nodiscard]] std::int64_t integer(std::string_view name) const;
  [[nodiscard]] double real(std::string_view name) const;
  [[nodiscard]] bool boolean(std::string_view name) const;
  [[nodiscard]] const std::string& text(std::string_view name) const;  ///< also for path, choice and file (its path)
  [[nodiscard]] const std::vector<std::string>& list(std::string_view name) const;
  [[nodiscard]] std::uint64_t seed(std::string_view name) const;

  [[nodiscard]] const std::vector<Entry>& entries() const noexcept { return entries_; }

  /// Replaces the value of `name`, or adds it as the last.
  void set(std::string_view name, OptionValue value);

 private:
  template <class T>
  const T& get(std::string_view name) const;

  std::vector<Entry> entries_;
};

/// The values as lines `name = value`.
[[nodiscard]] std::string to_string(const OptionValues& values);

/// `values`, followed by the defaults of options without a value. Throws Error{job} if no spec has the name of a value
/// (the error suggests the nearest name), or if the spec does not allow the value.
[[nodiscard]] OptionValues checked_with_defaults(std::span<const OptionSpec> specs, OptionValues values);

/// The value that the option `name` would get from `text` in a job file. Does not read files. Throws Error{job}.
[[nodiscard]] OptionValue read_option(std::span<const OptionSpec> specs, std::string_view name, std::string_view text);

}  // namespace shardrun
