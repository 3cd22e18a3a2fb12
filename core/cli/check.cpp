#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>
#include <filesystem>

#include "core/base/error.h"
#include "core/cli/options.h"
#include "core/compile/plugins.h"
#include "core/conformance/conformance.h"
#include "plugins/loader/engine.h"
#include "plugins/loader/model.h"
#include "plugins/loader/transport.h"

namespace shardrun::cli {
namespace {

constexpr const char* member_name = "check-member";

bool were_skipped(const std::vector<conformance::Finding>& findings) {
  return std::ranges::any_of(findings, &conformance::Finding::is_skipped);
}

std::string as_json(const std::filesystem::path& file, const plugins::Manifest& manifest,
                    const std::vector<conformance::Finding>& findings, std::size_t problems) {
  boost::json::array cases;
  for (const conformance::Finding& finding : findings) {
    cases.push_back({{"name", finding.name},
                     {"passed", finding.problem.empty()},
                     {"skipped", finding.is_skipped},
                     {"problem", finding.problem},
                     {"notes", boost::json::array(finding.notes.begin(), finding.notes.end())}});
  }
  const boost::json::object summary = {{"file", file.string()},
                                       {"kind", to_string(manifest.kind)},
                                       {"name", manifest.name},
                                       {"version", manifest.version},
                                       {"abi", fmt::format("{}.{}", manifest.abi_major, manifest.abi_minor)},
                                       {"passed", problems == 0 && !were_skipped(findings)},
                                       {"problems", problems},
                                       {"cases", std::move(cases)}};
  return boost::json::serialize(summary) + '\n';
}

/// Prints a finding. `printed`: the findings before it; their problems are not printed again.
void print_line(std::FILE* to, const conformance::Finding& finding, const std::vector<conformance::Finding>& printed) {
  fmt::print(to, "  {} {}\n", conformance::outcome_of(finding), finding.name);
  if (!finding.problem.empty()) {
    const auto same = std::ranges::find(printed, finding.problem, &conformance::Finding::problem);
    fmt::print(to, "         {}\n",
               same == printed.end() ? finding.problem : fmt::format("the same as '{}'", same->name));
  }
  for (const std::string& note : finding.notes) {
    fmt::print(to, "         {}\n", note);
  }
  std::fflush(to);
}

/// The transports that a transport opens, as its options name them. `settings`: options from the command line.
std::vector<std::string> opened_by(const plugins::Transport& transport, const std::vector<std::string>& settings) {
  std::vector<std::string> names;
  for (const OptionSpec& option : transport.options()) {
    if (option.names_transport) {
      std::string name = *option.default_value;
      for (const std::string& setting : settings) {
        name = setting.starts_with(option.name + "=") ? setting.substr(option.name.size() + 1) : name;
      }
      names.push_back(std::move(name));
    }
  }
  return names;
}

bool wants_own_launcher(const conformance::Finding& finding) {
  return finding.problem.find(conformance::only_own_launcher) != std::string::npos;
}

/// Refuses settings that are not options of a model or engine, and invalid values.
template <class Refuse>
void require_options(const std::vector<OptionSpec>& options, const std::vector<std::string>& settings,
                     const Refuse& refuse) {
  for (const std::string& setting : settings) {
    const std::string key = setting.substr(0, setting.find('='));
    if (key == setting) {
      refuse(setting, "expected KEY=VALUE");
    }
    try {
      if (!conformance::is_data_setting(setting)) {
        (void)read_option(options, key, setting.substr(key.size() + 1));
      }
    } catch (const Error& error) {
      refuse(setting, error.message());
    }
  }
}

/// The settings from the command line. Refuses a setting that no transport has, and invalid values. A setting that does
/// not fit the number of ranks is left to the transport.
std::vector<std::string> settings_of(const Parsed& parsed, const std::filesystem::path& file,
                                     const plugins::Manifest& manifest) {
  std::vector<std::string> settings = parsed.all("set");
  if (settings.empty()) {
    return settings;
  }
  const auto refuse = [](const std::string& setting, const std::string& why) {
    throw Error(ErrorCode::usage, fmt::format("plugins check: --set {}: {}", setting, why));
  };
  const plugins::Directories directories = compile::directories_of({file.parent_path()});
  if (manifest.kind == plugins::PluginKind::strategy) {
    refuse(settings.front(), "only a transport, a model or an engine has options here");
  }
  if (manifest.kind == plugins::PluginKind::model) {
    require_options(plugins::Model::open(directories, manifest.name).options(), settings, refuse);
    return settings;
  }
  if (manifest.kind == plugins::PluginKind::engine) {
    require_options(plugins::Engine::open(directories, manifest.name).options(), settings, refuse);
    return settings;
  }
  const plugins::Transport transport = plugins::Transport::load(directories, manifest.name);
  const std::vector<std::string> opened = opened_by(transport, settings);
  for (const std::string& name : opened) {
    (void)plugins::Transport::load(directories, name);
  }
  for (const std::string& setting : settings) {
    const std::string key = setting.substr(0, setting.find('='));
    if (key == setting) {
      refuse(setting, "expected KEY=VALUE");
    }
    const std::size_t dot = key.rfind('.');
    const std::string owner = dot == std::string::npos ? manifest.name : key.substr(0, dot);
    if (dot != std::string::npos && std::ranges::find(opened, owner) == opened.end()) {
      refuse(setting, fmt::format("transport {} opens no transport '{}'{}", manifest.name, owner,
                                  opened.empty() ? "" : fmt::format("; it opens {}", fmt::join(opened, ", "))));
    }
    try {
      const auto options =
          dot == std::string::npos ? transport.options() : plugins::Transport::load(directories, owner).options();
      const std::string name = key.substr(dot + 1);
      (void)checked_with_defaults(options, {{name, read_option(options, name, setting.substr(key.size() + 1))}});
    } catch (const Error& error) {
      refuse(setting, fmt::format("transport {}: {}", owner, error.message()));
    }
  }
  return settings;
}

int check(std::span<const std::string> words) {
  const Parsed parsed =
      parse("plugins check", words,
            {{.name = "case",
              .value = "WORD",
              .help = "run only cases with this word in their name (may be repeated)",
              .repeated = true},
             {.name = "set",
              .value = "KEY=VALUE",
              .help = "an option of the transport, model or engine; NAME.KEY=VALUE: of a transport that it opens (may "
                      "be repeated)",
              .repeated = true},
             {.name = "silence",
              .value = "SECONDS",
              .help = "a process that is silent for so long hangs (default 20 for a strategy, 90 for others)"},
             {.name = "list", .help = "print the names of the cases; run none"},
             {.name = "json", .help = "print JSON on standard output, and progress on standard error"}},
            1, 1);
  if (parsed.help_shown) {
    return 0;
  }
  const std::filesystem::path file = std::filesystem::absolute(parsed.positional[0]).lexically_normal();
  const plugins::Manifest manifest = plugins::inspect(file);  // runs no code of the plugin
  const std::vector<std::string> names = conformance::case_names(manifest.kind, parsed.all("case"));
  if (names.empty()) {
    throw Error(ErrorCode::usage,
                fmt::format("plugins check: no case for a {} has that in its name; --list prints them",
                            to_string(manifest.kind)));
  }
  const std::vector<std::string> settings = settings_of(parsed, file, manifest);
  if (parsed.has("list")) {
    for (const std::string& name : names) {
      fmt::print("{}\n", name);
    }
    return 0;
  }
  std::FILE* const screen = parsed.has("json") ? stderr : stdout;
  fmt::print(screen, "{} {} {} (ABI {}.{}) {}: {} case{}\n", to_string(manifest.kind), manifest.name, manifest.version,
             manifest.abi_major, manifest.abi_minor, file.string(), names.size(), names.size() == 1 ? "" : "s");
  std::fflush(screen);
  std::size_t problems = 0;
  std::vector<conformance::Finding> printed;
  const std::vector<conformance::Finding> findings = conformance::check_plugin(
      compile::directories_of({file.parent_path()}), manifest.kind, manifest.name,
      {.member_command = {std::filesystem::read_symlink("/proc/self/exe").string(), member_name},
       .words = parsed.all("case"),
       .settings = settings,
       .silence_s = parsed.integer("silence", 0, 1, 86'400),
       .report = [&](const conformance::Finding& finding) {
         if (wants_own_launcher(finding)) {
           return;  // findings with these problems are joined in the Error below
         }
         problems += finding.problem.empty() || finding.is_skipped ? 0 : 1;
         print_line(screen, finding, printed);
         printed.push_back(finding);
       }});
  if (std::ranges::any_of(findings, wants_own_launcher)) {
    throw Error(ErrorCode::usage,
                fmt::format("plugins check: transport {} opens only in ranks that a launcher of its own (mpirun, srun) "
                            "has started, and these cases start their processes themselves: nothing was checked; run a "
                            "job over it instead, as 'mpirun -n 2 shardrun JOB.ini --set job.transport={}', and "
                            "compare it with the same job over another transport",
                            manifest.name, manifest.name));
  }
  const bool is_skipped = were_skipped(findings);
  fmt::print(screen, "{}\n",
             is_skipped      ? "nothing was checked"
             : problems == 0 ? "all is well"
                             : fmt::format("{} problem{}", problems, problems == 1 ? "" : "s"));
  if (parsed.has("json")) {
    fmt::print("{}", as_json(file, manifest, findings, problems));
  }
  return is_skipped ? 2 : problems == 0 ? 0 : 1;
}

const RegisterCommand check_command({.name = "plugins check",
                                     .arguments = "FILE",
                                     .help = "check that a plugin does what its kind must do, in separate processes",
                                     .run = check});
const RegisterCommand member({.name = member_name,
                              .arguments = "",
                              .help = "one process of plugins check, started by it",
                              .run = conformance::run_member,
                              .hidden = true});

}  // namespace
}  // namespace shardrun::cli
