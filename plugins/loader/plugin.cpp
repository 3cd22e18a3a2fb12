#include "plugins/loader/plugin.h"

#include <fmt/format.h>
#include <shardrun/plugin.h>

#include <cstdio>
#include <limits>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/files/trust.h"
#include "core/options/convert.h"
#include "plugins/loader/call.h"
#include "plugins/loader/find.h"
#include "plugins/loader/guard.h"
#include "plugins/loader/library.h"
#include "plugins/loader/structs.h"

namespace shardrun::plugins {

struct Plugin::State {
  Manifest manifest;
  std::string label;
  std::filesystem::path path;
  LogSink log;
  sr_host host{};
  sr_plugin table{};
  std::vector<OptionSpec> options;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (table.close != nullptr) {
      const CallGuard guard(label, "close");
      table.close(table.self);
    }
  }
};

namespace {

std::string text_or_empty(const char* text) { return text != nullptr ? text : ""; }

/// A text that users type, which must fit into a job file.
std::string typed_text(const char* text, std::string_view what) {
  std::string given = text_or_empty(text);
  if (const std::string shown = printable(given); shown != given) {
    throw Error(ErrorCode::plugin,
                fmt::format("{} has '{}', with control characters or bytes that are no UTF-8", what, excerpt(shown)));
  }
  return given;
}

template <class Number>
void set_bounds(OptionSpec& spec, Number minimum, Number maximum) {
  using Limits = std::numeric_limits<Number>;
  if (minimum == Number{} && maximum == Number{}) {
    return;
  }
  if (minimum > Limits::lowest()) {
    spec.minimum = static_cast<double>(minimum);
  }
  if (maximum < Limits::max()) {
    spec.maximum = static_cast<double>(maximum);
  }
}

void add_aliases(OptionSpec& spec, const sr_option& raw, std::string_view what) {
  for (const std::string& alias : words_of(typed_text(raw.aliases, what))) {
    spec.aliases.emplace_back(alias);
  }
  for (std::uint32_t i = 0; i < raw.other_name_count; ++i) {
    const auto other = read_element<sr_alias>(raw.other_names, raw.other_name_stride, i, SR_ALIAS_SIZE_1_7,
                                              fmt::format("{}, other name {}", what, i));
    const std::string name = typed_text(other.name, what);
    const std::string note = printable(excerpt(text_or_empty(other.note)));
    if (other.choice == nullptr) {
      spec.aliases.emplace_back(name).note = note;
    } else {
      spec.choice_aliases.push_back({name, typed_text(other.choice, what), note});
    }
  }
}

OptionSpec spec_of(const sr_option& raw, std::string_view what) {
  OptionSpec spec;
  spec.name = typed_text(raw.name, what);
  spec.help = printable(excerpt(text_or_empty(raw.help)));
  spec.optional = (raw.flags & SR_OPTION_OPTIONAL) != 0;
  spec.minimum_excluded = (raw.flags & SR_OPTION_MINIMUM_EXCLUDED) != 0;
  spec.maximum_excluded = (raw.flags & SR_OPTION_MAXIMUM_EXCLUDED) != 0;
  add_aliases(spec, raw, what);
  OptionValue default_value;
  switch (raw.type) {
    case SR_OPTION_BOOLEAN:
      spec.type = OptionType::boolean;
      default_value = raw.default_integer != 0;
      break;
    case SR_OPTION_INTEGER:
      spec.type = OptionType::integer;
      default_value = raw.default_integer;
      set_bounds(spec, raw.min_integer, raw.max_integer);
      break;
    case SR_OPTION_NUMBER:
      spec.type = OptionType::real;
      default_value = raw.default_number;
      set_bounds(spec, raw.min_number, raw.max_number);
      break;
    case SR_OPTION_TEXT: {
      default_value = typed_text(raw.default_text, what);
      for (std::uint32_t i = 0; raw.choices != nullptr && i < raw.choice_count; ++i) {
        spec.choices.push_back(typed_text(raw.choices[i], what));
      }
      const bool may_be_file = (raw.flags & SR_OPTION_TEXT_FILE) != 0;
      if (may_be_file && spec.choices.empty()) {
        throw Error(ErrorCode::plugin,
                    fmt::format("{} may be a file and has no choices: its default must be one", what));
      }
      spec.type = spec.choices.empty() ? OptionType::text
                  : may_be_file        ? OptionType::choice_or_path
                                       : OptionType::choice;
      spec.names_transport = (raw.flags & SR_OPTION_TRANSPORT) != 0;
      break;
    }
    default:
      throw Error(ErrorCode::plugin,
                  fmt::format("{} has the type {}, which this shardrun does not know", what, raw.type));
  }
  if (!spec.optional && (raw.flags & SR_OPTION_REQUIRED) == 0) {
    spec.default_value = to_text(spec, default_value);
  }
  return spec;
}

/// The options that an opened plugin declares, in its order. Throws Error{plugin} if one is invalid: its name cannot be
/// in a job file or occurs twice, its type is unknown, or its default is outside its own bounds.
std::vector<OptionSpec> declared_options(const sr_plugin& table, std::string_view plugin) {
  std::vector<OptionSpec> specs;
  for (std::uint32_t i = 0; i < table.option_count; ++i) {
    const std::string what = fmt::format("{}: option {}", plugin, i);
    const OptionSpec spec =
        spec_of(read_element<sr_option>(table.options, table.option_stride, i, SR_OPTION_SIZE_1_0, what), what);
    if (!is_name(spec.name)) {
      throw Error(ErrorCode::plugin, fmt::format("{} is named '{}', expected [a-z][a-z0-9_]*", what, spec.name));
    }
    for (const OptionSpec& earlier : specs) {
      if (earlier.name == spec.name) {
        throw Error(ErrorCode::plugin, fmt::format("{} is named '{}' like an earlier one", what, spec.name));
      }
    }
    specs.push_back(spec);
  }
  try {
    static_cast<void>(checked_with_defaults(specs, {}));
  } catch (const Error& error) {
    throw Error(ErrorCode::plugin, fmt::format("{} declares a default that it refuses: {}", plugin, error.message()));
  }
  return specs;
}

void log_to_stderr(LogLevel level, std::string_view plugin, std::string_view text) {
  fmt::print(stderr, "{}: {}{}\n", plugin, level == LogLevel::warning ? "warning: " : "", text);
}

/// sr_host::self points to the state, whose address does not change after the plugin is opened.
template <class State>
void take_log_line(void* self, std::uint32_t level, const char* text) noexcept {
  const State& state = *static_cast<const State*>(self);
  try {
    state.log(level == SR_LOG_INFO ? LogLevel::info : LogLevel::warning, state.manifest.name,
              printable_lines(excerpt(text != nullptr ? text : "")));
  } catch (...) {
    // A line that cannot be logged is lost. No exception may unwind the plugin, which did nothing wrong.
  }
}

sr_plugin open_table(OpenFunction open, const sr_host& host, const Manifest& manifest) {
  sr_plugin* opened = nullptr;
  const std::string what = fmt::format("{} plugin '{}'", to_string(manifest.kind), manifest.name);
  call_plugin(fmt::format("{} refused to open", what), ErrorCode::plugin,
              [&](sr_error* error) { return open(&host, error, &opened); });
  return read_struct<sr_plugin>(opened, SR_PLUGIN_SIZE_1_0, fmt::format("what {} opened", what));
}

}  // namespace

Manifest inspect(const std::filesystem::path& file) {
  const std::optional<Candidate> candidate = candidate_of(file);
  if (!candidate) {
    throw Error(ErrorCode::plugin,
                fmt::format("{} is not named like a plugin: the name is shardrun_KIND_NAME.so, KIND "
                            "is strategy, transport, model or engine, and NAME holds a-z, 0-9, _ and - alone",
                            file.string()));
  }
  files::require_trusted(file);
  return checked_manifest(read_manifest(file), *candidate);
}

Plugin::Plugin(std::shared_ptr<const State> state) : state_(std::move(state)) {}

Plugin Plugin::open(const Directories& directories, PluginKind kind, std::string_view name, LogSink log) {
  const std::filesystem::path file = find_plugin(directories, kind, name);
  return open_file({file, std::string(to_string(kind)), std::string(name)}, std::move(log));
}

Plugin Plugin::open_file(const Candidate& file, LogSink log) {
  files::require_trusted(file.path);
  const auto state = std::make_shared<State>();
  state->manifest = checked_manifest(read_manifest(file.path), file);
  state->path = file.path;
  state->log = log ? std::move(log) : log_to_stderr;
  state->host = {sizeof(sr_host), SR_ABI_MINOR, state.get(), take_log_line<State>};
  state->label = label_of(file);
  const OpenFunction open = [&] {
    const CallGuard guard(state->label, "static initialisers", call_limit());
    return load_library(file.path);
  }();
  const CallGuard guard(state->label, "open", call_limit());
  state->table = open_table(open, state->host, state->manifest);
  const std::uint32_t kind = number_of(state->manifest.kind);
  if (state->table.kind != kind || state->table.functions == nullptr || state->table.close == nullptr) {
    throw Error(ErrorCode::plugin,
                fmt::format("{} opened as kind {} {} functions and {} close; expected kind {} with both",
                            file.path.string(), state->table.kind, state->table.functions ? "with" : "without",
                            state->table.close ? "with" : "without", kind));
  }
  state->options = declared_options(state->table, file.path.string());
  return Plugin(state);
}

const Manifest& Plugin::manifest() const noexcept { return state_->manifest; }
const std::vector<OptionSpec>& Plugin::options() const noexcept { return state_->options; }
const std::filesystem::path& Plugin::path() const noexcept { return state_->path; }
const sr_plugin& Plugin::table() const noexcept { return state_->table; }

}  // namespace shardrun::plugins
