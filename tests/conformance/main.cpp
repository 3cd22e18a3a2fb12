// Checks every plugin in the given folders:
// test_conformance FOLDER… [--only NAME] [--without NAME]… [--set KEY=VALUE]… [--case WORD]…
// --only: only this plugin. --without: all plugins except this one. --set: options of a transport. --case: only the
// cases whose names contain one of the words. `shardrun plugins check` does the same for one file.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "core/conformance/conformance.h"
#include "plugins/loader/transport.h"

namespace {

using namespace shardrun;

constexpr const char* member_word = "--member";

void print(const conformance::Finding& finding) {
  fmt::print("  {} {}\n", conformance::outcome_of(finding), finding.name);
  if (!finding.problem.empty()) {
    fmt::print("         {}\n", finding.problem);
  }
  std::fflush(stdout);
}

int check(const plugins::Directories& directories, const std::string& only, const std::vector<std::string>& without,
          const std::vector<std::string>& settings, const conformance::CaseWords& cases) {
  const conformance::CheckOptions options = {
      .member_command = {std::filesystem::read_symlink("/proc/self/exe").string(), member_word},
      .words = cases,
      .settings = settings,
      .report = print};
  std::size_t plugins = 0;
  std::size_t findings = 0;
  std::size_t problems = 0;
  for (const plugins::PluginKind kind : {plugins::PluginKind::strategy, plugins::PluginKind::transport,
                                         plugins::PluginKind::model, plugins::PluginKind::engine}) {
    for (const std::string& name : plugins::plugin_names(directories, kind)) {
      if ((!only.empty() && name != only) || std::ranges::count(without, name) != 0) {
        continue;
      }
      ++plugins;
      if (kind == plugins::PluginKind::transport &&
          plugins::Transport::load(directories, name).props().has(SR_TRANSPORT_OWN_LAUNCHER)) {
        fmt::print("transport {}: not checked here, where no launcher of its own has started us\n", name);
        continue;
      }
      fmt::print("{} {}\n", to_string(kind), name);
      for (const conformance::Finding& finding : conformance::check_plugin(directories, kind, name, options)) {
        problems += finding.problem.empty() || finding.is_skipped ? 0 : 1;
        ++findings;
      }
    }
  }
  fmt::print("{} plugins, {} problems\n", plugins, problems);
  return findings != 0 && problems == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (!words.empty() && words[0] == member_word) {
      return conformance::run_member(std::span<const std::string>(words).subspan(1));
    }
    plugins::Directories directories;
    conformance::CaseWords cases;
    std::vector<std::string> settings;
    std::string only;
    std::vector<std::string> without;
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (words[i] == "--case" && i + 1 < words.size()) {
        cases.push_back(words[++i]);
      } else if (words[i] == "--set" && i + 1 < words.size()) {
        settings.push_back(words[++i]);
      } else if (words[i] == "--only" && i + 1 < words.size()) {
        only = words[++i];
      } else if (words[i] == "--without" && i + 1 < words.size()) {
        without.push_back(words[++i]);
      } else {
        directories.emplace_back(words[i]);
      }
    }
    return check(directories, only, without, settings, cases);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
