#pragma once

/// What the SDK offers to plugins of every kind: options, log lines, and the conversion of exceptions to statuses of
/// the C interface. It is C++20 in headers alone. A plugin can also use shardrun/plugin.h without the SDK.

#include <shardrun/plugin.h>

#include <concepts>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardrun::sdk {

/// A plugin throws this if it cannot do what the job asks for. The user sees the message, which says what to change.
class InvalidJob : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  /// For models and engines. `setting` names the setting at fault, such as "model.width", or a section, such as "data".
  InvalidJob(const std::string& message, std::string setting)
      : std::runtime_error(message), setting_(std::move(setting)) {}

  [[nodiscard]] const std::string& setting() const noexcept { return setting_; }

 private:
  std::string setting_;
};

/// A host function refused its arguments. Do not catch it: the host already knows that the call failed.
class Refused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The element types that models and buffers of hooks can have.
enum class Element : std::uint32_t { f32 = SR_ELEMENT_F32, i32 = SR_ELEMENT_I32 };

/// A name that an option, or one of its choices, has in another program. Since ABI 1.7.
struct OtherName {
  std::string name;
  std::string choice = {};  ///< the choice that it stands for; empty: the option itself
  std::string note = {};    ///< how the other name's meaning differs; empty: not at all
};

/// An option that the plugin declares. The functions below make one. `help` is one line.
struct Option {
  std::uint32_t type = SR_OPTION_TEXT;
  std::string name;
  std::string help;
  std::int64_t default_integer = 0;
  std::int64_t min_integer = 0;
  std::int64_t max_integer = 0;
  double default_number = 0;
  double min_number = 0;
  double max_number = 0;
  std::string default_text = {};
  std::vector<std::string> choices = {};
  std::uint32_t flags = 0;   ///< SR_OPTION_...
  std::string aliases = {};  ///< names in other programs, separated by spaces; since ABI 1.3
  std::vector<OtherName> other_names = {};
};

[[nodiscard]] inline Option boolean_option(std::string name, bool default_value, std::string help) {
  Option option{.type = SR_OPTION_BOOLEAN, .name = std::move(name), .help = std::move(help)};
  option.default_integer = default_value ? 1 : 0;
  return option;
}

/// An integer. Bounds are inclusive.
[[nodiscard]] inline Option integer_option(std::string name, std::int64_t default_value, std::int64_t minimum,
                                           std::int64_t maximum, std::string help) {
  Option option{.type = SR_OPTION_INTEGER, .name = std::move(name), .help = std::move(help)};
  option.default_integer = default_value;
  option.min_integer = minimum;
  option.max_integer = maximum;
  return option;
}

/// A real number. Bounds are inclusive; an infinite bound is none.
[[nodiscard]] inline Option number_option(std::string name, double default_value, double minimum, double maximum,
                                          std::string help) {
  Option option{.type = SR_OPTION_NUMBER, .name = std::move(name), .help = std::move(help)};
  option.default_number = default_value;
  option.min_number = minimum;
  option.max_number = maximum;
  return option;
}

/// A text, one of the choices. Without choices: any text.
[[nodiscard]] inline Option text_option(std::string name, std::string default_value, std::vector<std::string> choices,
                                        std::string help) {
  Option option{.type = SR_OPTION_TEXT, .name = std::move(name), .help = std::move(help)};
  option.default_text = std::move(default_value);
  option.choices = std::move(choices);
  return option;
}

/// One of the choices, or the path of a text file, whose contents OptionValues::contents returns. A host of ABI 1.0
/// accepts only the choices.
[[nodiscard]] inline Option text_or_file_option(std::string name, std::string default_value,
                                                std::vector<std::string> choices, std::string help) {
  Option option = text_option(std::move(name), std::move(default_value), std::move(choices), std::move(help));
  option.flags = SR_OPTION_TEXT_FILE;
  return option;
}

/// The name of a transport that this one opens (TransportHost::open_transport), with the job's section [transport.NAME]
/// as its options. Since ABI 1.2.
[[nodiscard]] inline Option transport_option(std::string name, std::string default_value, std::string help) {
  Option option = text_option(std::move(name), std::move(default_value), {}, std::move(help));
  option.flags = SR_OPTION_TRANSPORT;
  return option;
}

/// Adds the option's names in other programs, separated by spaces. Errors about them suggest the option. Since ABI 1.3.
[[nodiscard]] inline Option also_called(Option option, std::string aliases) {
  option.aliases = std::move(aliases);
  return option;
}

/// The same, with names that need a note or stand for a choice. Since ABI 1.7.
[[nodiscard]] inline Option also_called(Option option, std::string aliases, std::vector<OtherName> other_names) {
  option.other_names = std::move(other_names);
  return also_called(std::move(option), std::move(aliases));
}

/// Removes the option's default: a job must set it. Since ABI 1.7.
[[nodiscard]] inline Option required(Option option) {
  option.flags |= SR_OPTION_REQUIRED;
  return option;
}

/// Removes the option's default: a job may leave it out, which OptionValues::has() tells. Since ABI 1.7.
[[nodiscard]] inline Option optional(Option option) {
  option.flags |= SR_OPTION_OPTIONAL;
  return option;
}

/// Excludes the option's maximum from its values. Since ABI 1.7.
[[nodiscard]] inline Option below_maximum(Option option) {
  option.flags |= SR_OPTION_MAXIMUM_EXCLUDED;
  return option;
}

/// Calls `take` with a copy of each element of an array with a stride. Fields that its writer did not know are zero.
template <class Raw, class Take>
void for_each(const Raw* array, std::uint32_t count, std::uint32_t stride, Take take) {
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto* element = reinterpret_cast<const unsigned char*>(array) + std::size_t{stride} * i;
    std::uint32_t size = 0;
    std::memcpy(&size, element, sizeof(size));
    Raw copy{};
    std::memcpy(&copy, element, size < sizeof(Raw) ? size : sizeof(Raw));
    take(copy);
  }
}

namespace detail {

/// Copies a struct that the other side wrote with its own struct_size. Fields that the writer did not know are zero.
template <class Raw>
[[nodiscard]] Raw read_one(const Raw* from) {
  Raw read{};
  for_each(from, 1, 0, [&](const Raw& copy) { read = copy; });
  return read;
}

}  // namespace detail

/// Option values in their C form.
struct RawOptions {
  const sr_option_value* data = nullptr;
  std::uint32_t count = 0;
  std::uint32_t stride = 0;
};

/// The values of the declared options, from the job or by default.
class OptionValues {
 public:
  OptionValues() = default;
  OptionValues(const sr_option_value* values, std::uint32_t count, std::uint32_t stride) {
    for_each(values, count, stride, [&](const sr_option_value& value) {
      values_.push_back({value.type, value.name, value.integer, value.number, value.text != nullptr ? value.text : "",
                         value.contents != nullptr ? std::optional<std::string>(value.contents) : std::nullopt});
    });
  }

  /// Whether the option has a value. Only one that is declared optional can have none.
  [[nodiscard]] bool has(std::string_view name) const noexcept {
    for (const Value& value : values_) {
      if (value.name == name) {
        return true;
      }
    }
    return false;
  }

  // The following throw std::logic_error if no option of that name and type is declared, or if it has no value.
  [[nodiscard]] bool boolean(std::string_view name) const { return at(name, SR_OPTION_BOOLEAN).integer != 0; }
  [[nodiscard]] std::int64_t integer(std::string_view name) const { return at(name, SR_OPTION_INTEGER).integer; }
  [[nodiscard]] double number(std::string_view name) const { return at(name, SR_OPTION_NUMBER).number; }
  [[nodiscard]] std::string text(std::string_view name) const { return at(name, SR_OPTION_TEXT).text; }
  /// The contents of the file that a text_or_file_option names. Nothing if its value is a choice.
  [[nodiscard]] std::optional<std::string> contents(std::string_view name) const {
    return at(name, SR_OPTION_TEXT).contents;
  }

 private:
  struct Value {
    std::uint32_t type = 0;
    std::string name;
    std::int64_t integer = 0;
    double number = 0;
    std::string text;
    std::optional<std::string> contents;
  };

  [[nodiscard]] const Value& at(std::string_view name, std::uint32_t type) const {
    for (const Value& value : values_) {
      if (value.name == name && value.type == type) {
        return value;
      }
    }
    throw std::logic_error("the plugin asks for the option '" + std::string(name) + "', which it did not declare so");
  }

  std::vector<Value> values_;
};

/// The host. Copyable. Valid until the plugin is closed. Any thread may use it.
class Host {
 public:
  explicit Host(const sr_host* host) : host_(host) {}

  void info(const std::string& line) const { log(SR_LOG_INFO, line); }
  void warning(const std::string& line) const { log(SR_LOG_WARNING, line); }

 private:
  void log(std::uint32_t level, const std::string& line) const {
    if (SR_HAS(host_, sr_host, log) && host_->log != nullptr) {
      host_->log(host_->self, level, line.c_str());
    }
  }

  const sr_host* host_;
};

namespace detail {

inline void write_error(sr_error* error, std::string_view text,
                        std::optional<std::uint32_t> awaited = std::nullopt) noexcept {
  if (error == nullptr || error->struct_size < SR_ERROR_SIZE_1_0) {
    return;
  }
  std::size_t length = text.size() < sizeof(error->text) ? text.size() : sizeof(error->text) - 1;
  while (length < text.size() && length > 0 && (static_cast<unsigned char>(text[length]) & 0xC0U) == 0x80U) {
    --length;  // do not cut within a UTF-8 character
  }
  std::memcpy(error->text, text.data(), length);
  error->text[length] = '\0';
  if (SR_HAS(error, sr_error, awaited)) {
    error->awaited = awaited ? *awaited + 1 : 0;
  }
}

/// Calls `act` and turns an exception into a status and a reason.
template <class Act>
std::int32_t guarded(sr_error* error, Act act) noexcept {
  try {
    act();
    return SR_OK;
  } catch (const InvalidJob& invalid) {
    write_error(error, invalid.what());
    if (error != nullptr && SR_HAS(error, sr_error, setting) && invalid.setting().size() < sizeof(error->setting)) {
      std::memcpy(error->setting, invalid.setting().c_str(), invalid.setting().size() + 1);
    }
    return SR_INVALID;
  } catch (const std::exception& failure) {
    write_error(error, failure.what());
  } catch (...) {
    write_error(error, "an exception of an unknown type was thrown");
  }
  return SR_INTERNAL;
}

/// Calls a function of the host that takes an sr_error* and returns a status. Throws Refused if it fails.
template <class Call>
void call_host(Call call) {
  sr_error error{};
  error.struct_size = sizeof(error);
  if (call(&error) != SR_OK) {
    throw Refused(error.text);
  }
}

/// Whether a plugin's class declares options (optional).
template <class Class>
concept DeclaresOptions = requires {
  { Class::options() } -> std::convertible_to<std::vector<Option>>;
};

/// One opened plugin: the author's object and the tables that describe it.
template <class Class>
class Instance {
 public:
  Instance(const sr_host* host, std::uint32_t kind, const void* functions) : object_(make(host)) {
    if constexpr (DeclaresOptions<Class>) {
      options_ = Class::options();
    }
    choices_.reserve(options_.size());
    other_names_.reserve(options_.size());
    for (const Option& option : options_) {
      raw_options_.push_back(raw(option));
    }
    plugin_ = {sizeof(sr_plugin),
               kind,
               this,
               functions,
               raw_options_.data(),
               static_cast<std::uint32_t>(raw_options_.size()),
               sizeof(sr_option),
               [](void* self) { delete static_cast<Instance*>(self); }};
  }
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  [[nodiscard]] sr_plugin* plugin() noexcept { return &plugin_; }
  [[nodiscard]] static Class& object(void* self) noexcept { return static_cast<Instance*>(self)->object_; }

 private:
  static Class make(const sr_host* host) {
    if constexpr (std::constructible_from<Class, Host>) {
      return Class(Host(host));
    } else {
      return Class();
    }
  }

  sr_option raw(const Option& option) {
    std::vector<const char*>& choices = choices_.emplace_back();
    for (const std::string& choice : option.choices) {
      choices.push_back(choice.c_str());
    }
    std::vector<sr_alias>& other_names = other_names_.emplace_back();
    for (const OtherName& other : option.other_names) {
      other_names.push_back({sizeof(sr_alias), 0, other.name.c_str(),
                             other.choice.empty() ? nullptr : other.choice.c_str(), other.note.c_str()});
    }
    return {sizeof(sr_option),
            option.type,
            option.name.c_str(),
            option.help.c_str(),
            option.default_integer,
            option.min_integer,
            option.max_integer,
            option.default_number,
            option.min_number,
            option.max_number,
            option.default_text.c_str(),
            choices.data(),
            static_cast<std::uint32_t>(choices.size()),
            0,
            option.flags,
            0,
            option.aliases.c_str(),
            other_names.data(),
            static_cast<std::uint32_t>(other_names.size()),
            sizeof(sr_alias)};
  }

  Class object_;
  std::vector<Option> options_;
  std::vector<std::vector<const char*>> choices_;
  std::vector<std::vector<sr_alias>> other_names_;
  std::vector<sr_option> raw_options_;
  sr_plugin plugin_{};
};

template <class Class>
std::int32_t open_instance(const sr_host* host, std::uint32_t kind, const void* functions, sr_error* error,
                           sr_plugin** plugin) noexcept {
  return guarded(error, [&] { *plugin = (new Instance<Class>(host, kind, functions))->plugin(); });
}

}  // namespace detail

}  // namespace shardrun::sdk

/// Used by the macros of the other headers. Defines a plugin's two symbols: the manifest, and the function that opens
/// the plugin. `functions`: the address of the table of functions for its kind.
#define SHARDRUN_EXPORT_PLUGIN(Class, kind, functions, plugin_name, plugin_version, aliases)                          \
  const sr_manifest shardrun_manifest_v1 = {sizeof(sr_manifest), SR_MAGIC,       SR_ABI_MAJOR, SR_ABI_MINOR, 0, kind, \
                                            plugin_name,         plugin_version, aliases};                            \
  int32_t shardrun_open_v1(const sr_host* host, sr_error* error, sr_plugin** plugin) {                                \
    return shardrun::sdk::detail::open_instance<Class>(host, kind, functions, error, plugin);                         \
  }
