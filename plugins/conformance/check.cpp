#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "plugins/conformance/cases.h"
#include "plugins/conformance/conformance.h"
#include "plugins/conformance/process.h"
#include "plugins/conformance/store.h"
#include "plugins/conformance/words.h"

namespace shardrun::conformance {
namespace {

/// Ranks that say nothing for so long hang.
constexpr int silence_ms = 90'000;

struct RankState {
  Process process;
  std::vector<std::string> lines = {};  ///< one a case that it went through: empty, or what went wrong
  bool is_open = true;
  std::optional<std::string> end = {};  ///< how it ended, where not well
};

/// One set of processes, for cases that share a world.
class World {
 public:
  World(RankWords words, std::optional<std::uint32_t> victim, const std::vector<std::string>& rank_command)
      : cases_(words.cases.size()), victim_(victim) {
    words.parent = getpid();
    words.store = store_.descriptor();
    for (words.rank = 0; words.rank < words.ranks; ++words.rank) {
      ranks_.push_back({Process(store_.descriptor(), [&](int report) {
        words.report = report;
        std::vector<std::string> command = rank_command;
        const std::vector<std::string> own = to_words(words);
        command.insert(command.end(), own.begin(), own.end());
        return command;
      })});
    }
  }

  /// Until all ranks have ended, in one way or another. `passed(i)` is called for each case i that all went through.
  template <class Passed>
  void run(Passed passed) {
    while (listen()) {
      while (passed_ < cases_ && went_through(passed_)) {
        passed(passed_++);
      }
    }
    for (RankState& rank : ranks_) {
      rank.end = rank.process.wait();
    }
  }

  [[nodiscard]] std::size_t passed() const noexcept { return passed_; }

  /// What the ranks have to say of the case that not all went through; of their ends where all went through all.
  [[nodiscard]] std::string problem() const {
    std::vector<std::string> problems;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const RankState& rank = ranks_[i];
      if (rank.lines.size() > passed_ && !rank.lines[passed_].empty()) {
        problems.push_back(fmt::format("rank {}: {}", i, rank.lines[passed_]));
      } else if (rank.lines.size() <= passed_ && rank.end && i != victim_) {
        problems.push_back(fmt::format("rank {} {}", i, hangs_ ? "hangs" : *rank.end));
      }
    }
    if (problems.empty() && passed_ < cases_) {
      return "its ranks said nothing of it";
    }
    return fmt::format("{}", fmt::join(problems, "; "));
  }

 private:
  [[nodiscard]] bool went_through(std::size_t index) const {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const std::vector<std::string>& lines = ranks_[i].lines;
      if (i != victim_ && (lines.size() <= index || !lines[index].empty())) {
        return false;
      }
    }
    return true;
  }

  /// False once nobody will say anything any more.
  [[nodiscard]] bool listen() {
    std::vector<pollfd> waiting;
    std::vector<std::size_t> of;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (ranks_[i].is_open) {
        waiting.push_back({.fd = ranks_[i].process.pipe(), .events = POLLIN, .revents = 0});
        of.push_back(i);
      }
    }
    const int ready = waiting.empty() ? 0 : poll(waiting.data(), waiting.size(), silence_ms);
    if (ready == 0 && !waiting.empty()) {
      hangs_ = true;
      for (RankState& rank : ranks_) {
        rank.process.kill();
      }
    }
    for (std::size_t i = 0; i < of.size() && ready > 0; ++i) {
      RankState& rank = ranks_[of[i]];
      if (waiting[i].revents != 0) {
        rank.is_open = rank.process.read_lines(rank.lines);
        if (!rank.is_open && rank.lines.size() < cases_ && of[i] != victim_) {
          store_.abort();  // it crashed; the others are not to wait for it
        }
      }
    }
    return ready != 0;
  }

  Store store_;
  std::vector<RankState> ranks_;
  std::size_t cases_;
  std::optional<std::uint32_t> victim_;
  std::size_t passed_ = 0;
  bool hangs_ = false;
};

/// Goes through cases that share a world; after one that fails, the rest gets fresh processes.
class Check {
 public:
  Check(const plugins::Directories& directories, const std::string& name, const std::vector<std::string>& rank_command,
        const std::function<void(const Finding&)>& report)
      : rank_command_(rank_command), report_(report) {
    words_.transport = name;
    words_.directories = directories;
  }

  void run(std::vector<std::size_t> indices) {
    while (!indices.empty()) {
      const Case& first = cases_[indices.front()];
      words_.ranks = first.ranks;
      words_.cases = indices;
      World world(words_, first.victim, rank_command_);
      world.run([&](std::size_t passed) { add({cases_[indices[passed]].name, ""}); });
      const std::string problem = world.problem();
      if (world.passed() == indices.size()) {
        add({fmt::format("the end of a world of {} ranks", first.ranks), problem});
        return;
      }
      add({cases_[indices[world.passed()]].name, problem});
      if (problem.find("opening the transport: ") != std::string::npos) {
        return;  // so it would be for all
      }
      indices.erase(indices.begin(), indices.begin() + static_cast<std::ptrdiff_t>(world.passed()) + 1);
    }
  }

  [[nodiscard]] const std::vector<Case>& cases() const noexcept { return cases_; }
  [[nodiscard]] std::vector<Finding> take() { return std::move(findings_); }

 private:
  void add(Finding finding) {
    if (report_) {
      report_(finding);
    }
    findings_.push_back(std::move(finding));
  }

  const std::vector<std::string>& rank_command_;
  const std::function<void(const Finding&)>& report_;
  const std::vector<Case> cases_ = all_cases();
  RankWords words_;
  std::vector<Finding> findings_;
};

bool is_asked_for(const Case& each, const CaseWords& words) {
  return words.empty() || std::any_of(words.begin(), words.end(), [&](const std::string& word) {
           return each.name.find(word) != std::string::npos;
         });
}

}  // namespace

std::vector<Finding> check_transport(const plugins::Directories& directories, const std::string& name,
                                     const std::vector<std::string>& rank_command, const CaseWords& words,
                                     const std::function<void(const Finding&)>& report) {
  Check check(directories, name, rank_command, report);
  std::vector<std::size_t> together;
  for (std::size_t i = 0; i < check.cases().size(); ++i) {
    const Case& next = check.cases()[i];
    if (!is_asked_for(next, words)) {
      continue;
    }
    const bool same_world = !together.empty() && !next.victim && !check.cases()[together.front()].victim &&
                            next.ranks == check.cases()[together.front()].ranks;
    if (!same_world) {
      check.run(std::move(together));
      together.clear();
    }
    together.push_back(i);
  }
  check.run(std::move(together));
  return check.take();
}

}  // namespace shardrun::conformance
