#include "plugins/loader/plugin.h"

#include <fmt/format.h>
#include <shardrun/plugin.h>

#include <cstdio>
#include <utility>

#include "core/base/error.h"
#include "core/base/printable.h"
#include "core/files/trust.h"
#include "plugins/loader/call.h"
#include "plugins/loader/declared.h"
#include "plugins/loader/find.h"
#include "plugins/loader/guard.h"
#include "plugins/loader/library.h"
#include "plugins/loader/manifest.h"
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
    // A line that cannot be logged is lost. The plugin did nothing wrong, and must not be unwound.
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
