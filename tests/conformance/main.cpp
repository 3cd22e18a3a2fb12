// Checks every transport in the given folders: test_conformance FOLDER… [--only NAME]

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "plugins/conformance/conformance.h"

namespace {

using namespace shardrun;

constexpr const char* rank_word = "--rank";

void print(const conformance::Finding& finding) {
  fmt::print("  {} {}\n", finding.problem.empty() ? "ok    " : "FAILED", finding.name);
  if (!finding.problem.empty()) {
    fmt::print("         {}\n", finding.problem);
  }
  std::fflush(stdout);
}

int check(const plugins::Directories& directories, const std::string& only) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  std::size_t transports = 0;
  std::size_t problems = 0;
  for (const std::string& name : plugins::plugin_names(directories, plugins::PluginKind::transport)) {
    if (!only.empty() && name != only) {
      continue;
    }
    ++transports;
    fmt::print("{}\n", name);
    for (const conformance::Finding& finding :
         conformance::check_transport(directories, name, {self, rank_word}, print)) {
      problems += finding.problem.empty() ? 0 : 1;
    }
  }
  fmt::print("{} transports, {} problems\n", transports, problems);
  return transports != 0 && problems == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (!words.empty() && words[0] == rank_word) {
      return conformance::run_rank(std::span<const std::string>(words).subspan(1));
    }
    std::string only;
    if (const auto option = std::find(words.begin(), words.end(), "--only"); words.end() - option > 1) {
      only = option[1];
      words.erase(option, option + 2);
    }
    return check({words.begin(), words.end()}, only);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
