// Checks every transport in the given folders: test_conformance FOLDER… [--only TRANSPORT] [--case WORD]…
// --case: the cases alone whose name has one of the words in it.

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

int check(const plugins::Directories& directories, const std::string& only, const conformance::CaseWords& cases) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  std::size_t transports = 0;
  std::size_t findings = 0;
  std::size_t problems = 0;
  for (const std::string& name : plugins::plugin_names(directories, plugins::PluginKind::transport)) {
    if (!only.empty() && name != only) {
      continue;
    }
    ++transports;
    fmt::print("{}\n", name);
    for (const conformance::Finding& finding :
         conformance::check_transport(directories, name, {self, rank_word}, cases, print)) {
      problems += finding.problem.empty() ? 0 : 1;
      ++findings;
    }
  }
  fmt::print("{} transports, {} problems\n", transports, problems);
  return findings != 0 && problems == 0 ? 0 : 1;
}

/// Takes every "OPTION VALUE" out of the words.
std::vector<std::string> take_option(std::vector<std::string>& words, const std::string& option) {
  std::vector<std::string> values;
  for (auto found = words.begin(); words.end() - (found = std::find(words.begin(), words.end(), option)) > 1;) {
    values.push_back(found[1]);
    words.erase(found, found + 2);
  }
  return values;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (!words.empty() && words[0] == rank_word) {
      return conformance::run_rank(std::span<const std::string>(words).subspan(1));
    }
    const std::vector<std::string> only = take_option(words, "--only");
    const std::vector<std::string> cases = take_option(words, "--case");
    return check({words.begin(), words.end()}, only.empty() ? "" : only.back(), cases);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
