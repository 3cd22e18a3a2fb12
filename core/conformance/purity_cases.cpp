#include <fmt/format.h>

#include "core/conformance/compute_cases.h"
#include "core/conformance/sandbox.h"
#include "core/conformance/strategy_jobs.h"
#include "plugins/loader/library.h"

namespace shardrun::conformance {
namespace {

void require_untouched(const std::string& problem) {
  if (!problem.empty()) {
    throw Failure(problem);
  }
}

/// The library is loaded beforehand, since that opens files.
void pure_opening(StrategyMember& member) {
  plugins::OpenFunction open = nullptr;
  require_untouched(
      watch_calls([&] { open = plugins::load_library(member.file()); },
                  [&] {
                    sr_host host = {sizeof(sr_host), SR_ABI_MINOR, nullptr, [](void*, std::uint32_t, const char*) {}};
                    sr_error error = {sizeof(sr_error), {}};
                    sr_plugin* opened = nullptr;
                    if (open(&host, &error, &opened) != SR_OK) {
                      throw Failure(fmt::format("it refused to open: {:.500}", error.text));
                    }
                    opened->close(opened->self);
                  }));
}

void pure_planning(StrategyMember& member) {
  std::optional<plugins::Plugin> strategy;
  require_untouched(watch_calls([&] { strategy.emplace(member.open_another()); },
                                [&] {
                                  for (const std::string& program : program_names()) {
                                    for (const StrategyJob& job : jobs_of(program, 4)) {
                                      (void)ask(*strategy, job.request);
                                    }
                                  }
                                }));
}

}  // namespace

void add_purity_cases(std::vector<StrategyCase>& cases) {
  // In new processes, where nothing was opened or asked before: a plugin may keep what it read once.
  cases.push_back({.name = "no file or socket to make an instance", .run = pure_opening, .ranks = 1});
  cases.push_back({.name = "no file or socket to make a plan", .run = pure_planning, .ranks = 1});
}

}  // namespace shardrun::conformance
