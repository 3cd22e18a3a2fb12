#include <fmt/format.h>

#include <filesystem>
#include <iterator>
#include <optional>
#include <vector>

#include "core/conformance/sandbox.h"
#include "core/conformance/strategy_jobs.h"
#include "core/conformance/strategy_member.h"
#include "plugins/loader/library.h"

namespace shardrun::conformance {
namespace {

/// Calls `act`, and puts the job's name before the text of its failures.
template <class Act>
auto naming(const StrategyJob& job, Act act) {
  try {
    return act();
  } catch (const Failure& failure) {
    throw Failure(fmt::format("with {}: {}", job.mesh, failure.what()));
  }
}

/// For every form of [mesh], the answer is a valid plan or a refusal with a reason. Ranks and repeated calls agree.
void plan_program(StrategyMember& member, const std::string& program, std::uint32_t ranks) {
  for (const StrategyJob& job : jobs_of(program, ranks)) {
    naming(job, [&] {
      const Answer first = ask(member.strategy(), job.request);
      require_same(first, ask(member.strategy(), job.request), "asked twice for the same, it answers differently");
      const std::string about = fmt::format("{} over {} with {}", program, ranks, job.mesh);
      member.tell(about, fmt::format("{}{}", first.is_plan ? "" : "a refusal: ", first.text));
      const std::string other = member.hear(about, 1 - member.rank());
      require_same({first.is_plan, fmt::format("{}{}", first.is_plan ? "" : "a refusal: ", first.text)},
                   {first.is_plan, other}, "another process, asked for the same, gets another answer");
    });
  }
}

/// The strategy plans at least one job: a strategy that refused everything would break no other rule.
void plan_something(StrategyMember& member) {
  std::optional<std::string> refusal;
  for (const std::string& program : program_names()) {
    for (const std::uint32_t ranks : rank_counts()) {
      for (const StrategyJob& job : jobs_of(program, ranks)) {
        const Answer answer = ask(member.strategy(), job.request);
        if (answer.is_plan) {
          return;
        }
        refusal = refusal ? refusal : answer.text;
      }
    }
  }
  throw Failure(fmt::format("it refuses every job of this suite; the first: {}", refusal.value_or("")));
}

/// The answers of an instance do not depend on other instances or on earlier requests.
void many_instances(StrategyMember& member) {
  constexpr std::size_t count = 24;
  std::vector<StrategyJob> jobs;
  for (const std::string& program : program_names()) {
    for (StrategyJob& job : jobs_of(program, 4)) {
      jobs.push_back(std::move(job));
    }
  }
  std::vector<Answer> answers;
  for (const StrategyJob& job : jobs) {
    answers.push_back(ask(member.open_another(), job.request));
  }
  std::vector<plugins::Plugin> instances;
  for (std::size_t i = 0; i < count; ++i) {
    instances.push_back(member.open_another());
  }
  for (std::size_t round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < instances.size(); ++i) {
      const std::size_t which = (i + round * 5) % jobs.size();
      require_same(answers[which], ask(instances[i], jobs[which].request),
                   fmt::format("one of {} instances answers otherwise than a fresh one", count));
    }
    // Closes every second instance, so that instances are not closed in the order of opening.
    for (std::size_t i = 0; i < instances.size(); ++i) {
      instances.erase(instances.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
}

/// The structs of a later release's host are larger, with new fields at their ends. The answers must stay the same.
void later_host(StrategyMember& member) {
  for (const std::string& program : program_names()) {
    for (const StrategyJob& job : jobs_of(program, 4)) {
      naming(job, [&] {
        require_same(ask(member.strategy(), job.request), ask(member.strategy(), job.request, HostRelease::later),
                     "a later host, whose structs and strides have grown, gets another answer");
      });
    }
  }
}

/// The reason of a refusal stays within its buffer, even if it quotes long names.
void long_names(StrategyMember& member) {
  for (const std::string& program : program_names()) {
    for (StrategyJob& job : jobs_of(program, 4)) {
      job.mesh = "names of 700 characters";
      for (sdk::MeshAxis& axis : job.request.job.mesh) {
        axis.name += std::string(700, 'x');
      }
      naming(job, [&] { return ask(member.strategy(), job.request); });
    }
  }
}

std::size_t open_descriptors() {
  std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

void instances_left(StrategyMember& member) {
  const std::vector<StrategyJob> jobs = jobs_of("gpt", 4);
  (void)ask(member.open_another(), jobs.front().request);
  const std::size_t before = open_descriptors();
  for (const StrategyJob& job : jobs) {
    (void)ask(member.open_another(), job.request);
  }
  if (const std::size_t now = open_descriptors(); now != before) {
    throw Failure(fmt::format("{} descriptors are open after instances were closed, {} before", now, before));
  }
}

/// Making an instance opens no file or socket. The library is loaded before, because loading opens files.
void pure_opening(StrategyMember& member) {
  plugins::OpenFunction open = nullptr;
  watch_calls([&] { open = plugins::load_library(member.file()); },
              [&] {
                sr_host host = {sizeof(sr_host), SR_ABI_MINOR, nullptr, [](void*, std::uint32_t, const char*) {}};
                sr_error error = {sizeof(sr_error), {}};
                sr_plugin* opened = nullptr;
                if (open(&host, &error, &opened) != SR_OK) {
                  throw Failure(fmt::format("it refused to open: {:.500}", error.text));
                }
                opened->close(opened->self);
              });
}

void pure_planning(StrategyMember& member) {
  std::optional<plugins::Plugin> strategy;
  watch_calls([&] { strategy.emplace(member.open_another()); },
              [&] {
                for (const std::string& program : program_names()) {
                  for (const StrategyJob& job : jobs_of(program, 4)) {
                    (void)ask(*strategy, job.request);
                  }
                }
              });
}

}  // namespace

void add_plan_cases(std::vector<StrategyCase>& cases) {
  for (const std::string& program : program_names()) {
    for (const std::uint32_t ranks : rank_counts()) {
      cases.push_back({.name = fmt::format("{} over {} rank{}", program, ranks, ranks == 1 ? "" : "s"),
                       .run = [program, ranks](StrategyMember& member) { plan_program(member, program, ranks); }});
    }
  }
  cases.push_back({.name = "a plan for one of these jobs", .run = plan_something});
  cases.push_back({.name = "many instances", .run = many_instances});
  cases.push_back({.name = "a host of a later release", .run = later_host});
  cases.push_back({.name = "reasons longer than their buffer", .run = long_names});
  cases.push_back({.name = "instances that leave nothing behind", .run = instances_left});
}

void add_purity_cases(std::vector<StrategyCase>& cases) {
  // These cases run in new processes, because a plugin can cache what it read earlier.
  cases.push_back({.name = "no file or socket to make an instance", .run = pure_opening, .ranks = 1});
  cases.push_back({.name = "no file or socket to make a plan", .run = pure_planning, .ranks = 1});
}

}  // namespace shardrun::conformance
