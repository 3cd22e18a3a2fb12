#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/conformance/conformance.h"
#include "core/conformance/kinds.h"
#include "core/conformance/peer.h"
#include "core/files/descriptor.h"

namespace shardrun::conformance {
namespace {

/// The default of CheckOptions::silence_s. A strategy only computes. Other plugins get more time: cases of transports
/// wait for deadlines, and cases of models train many times.
std::int64_t usual_silence_s(plugins::PluginKind kind) noexcept {
  return kind == plugins::PluginKind::strategy ? 20 : 90;
}

/// A process of a check, and its reports. The destructor kills the process and waits for its end.
class RankProcess {
 public:
  /// Starts `command` with `words` appended, in which a new pipe replaces words.report. Throws Error{io}.
  RankProcess(std::vector<std::string> command, MemberWords words) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
      throw Error(ErrorCode::io, fmt::format("cannot make a pipe: {}", std::strerror(errno)));
    }
    reports_ = files::FileDescriptor(ends[0]);
    const files::FileDescriptor report(ends[1]);
    words.report = report.get();
    for (std::string& word : to_words(words)) {
      command.push_back(std::move(word));
    }
    std::vector<char*> arguments;
    for (std::string& word : command) {
      arguments.push_back(word.data());
    }
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    // A descriptor that is duplicated onto itself stays open in the child.
    for (const int kept : {words.store, words.report}) {
      posix_spawn_file_actions_adddup2(&actions, kept, kept);
    }
    // Standard output goes to standard error, because output of the plugin is not a result of the check.
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    const int problem = posix_spawn(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (problem != 0) {
      throw Error(ErrorCode::io, fmt::format("cannot start {}: {}", command[0], std::strerror(problem)));
    }
  }
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;
  ~RankProcess() {
    kill();
    if (pid_ > 0) {
      waitpid(pid_, nullptr, 0);
    }
  }

  [[nodiscard]] int reports() const noexcept { return reports_.get(); }
  [[nodiscard]] bool is_open() const noexcept { return is_open_; }
  /// One line per finished case. It states the problem, and is empty if the case passed.
  [[nodiscard]] const std::vector<std::string>& lines() const noexcept { return lines_; }
  /// Each note, with the number of cases that had finished before it.
  [[nodiscard]] const std::vector<std::pair<std::size_t, std::string>>& notes() const noexcept { return notes_; }
  /// How the process failed; nothing if it ended with success. REQUIRES: wait() was called.
  [[nodiscard]] const std::optional<std::string>& end() const noexcept { return end_; }

  void kill() const noexcept {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
    }
  }

  /// Reads what is available. Afterwards is_open() is false if nothing more can come.
  void read() {
    char buffer[4096];
    const ssize_t bytes = ::read(reports_.get(), buffer, sizeof(buffer));
    if (bytes <= 0) {
      is_open_ = bytes < 0 && errno == EINTR;
      return;
    }
    partial_.append(buffer, static_cast<std::size_t>(bytes));
    for (std::size_t end = partial_.find('\n'); end != std::string::npos; end = partial_.find('\n')) {
      if (partial_.starts_with(note_mark)) {
        notes_.emplace_back(lines_.size(), partial_.substr(1, end - 1));
      } else {
        lines_.push_back(partial_.substr(0, end));
      }
      partial_.erase(0, end + 1);
    }
  }

  /// Waits until the process has ended.
  void wait() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    if (WIFSIGNALED(status)) {
      end_ = fmt::format("was ended by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
    } else if (WEXITSTATUS(status) != 0) {
      end_ = fmt::format("exited with code {}", WEXITSTATUS(status));
    }
  }

 private:
  files::FileDescriptor reports_;
  pid_t pid_ = -1;
  std::string partial_;  ///< the beginning of a line whose end was not read yet
  std::vector<std::string> lines_;
  std::vector<std::pair<std::size_t, std::string>> notes_;
  bool is_open_ = true;
  std::optional<std::string> end_;
};

/// A set of processes that run cases which need the same number of ranks.
class World {
 public:
  World(MemberWords words, std::optional<std::uint32_t> victim, const std::vector<std::string>& member_command,
        std::int64_t silence_s)
      : cases_(words.cases.size()), victim_(victim), silence_ms_(static_cast<int>(silence_s * 1000)) {
    words.parent = getpid();
    words.store = store_.descriptor();
    for (words.rank = 0; words.rank < words.ranks; ++words.rank) {
      ranks_.emplace_back(member_command, words);
    }
  }

  /// Runs until all processes have ended. Calls `passed(i)` for each case i that passed on all ranks except the victim.
  template <class Passed>
  void run(Passed passed) {
    while (listen()) {
      while (passed_ < cases_ && went_through(passed_)) {
        passed(passed_++);
      }
    }
    for (RankProcess& rank : ranks_) {
      rank.wait();
    }
  }

  [[nodiscard]] std::size_t passed() const noexcept { return passed_; }

  /// The notes of all ranks on words.cases[index], without repetitions.
  [[nodiscard]] std::vector<std::string> notes(std::size_t index) const {
    std::vector<std::string> texts;
    for (const RankProcess& rank : ranks_) {
      for (const auto& [of, text] : rank.notes()) {
        if (of == index && std::ranges::find(texts, text) == texts.end()) {
          texts.push_back(text);
        }
      }
    }
    return texts;
  }

  /// The reason why nothing can be checked here, if all ranks report one.
  [[nodiscard]] std::optional<std::string> why_skipped() const {
    std::optional<std::string> why;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const std::string text = problem_of(i);
      const std::size_t at =
          std::min({text.find(only_host_memory), text.find(only_own_launcher), text.find(only_with_options)});
      if (at == std::string::npos) {
        return std::nullopt;
      }
      why = !why || *why == text.substr(at) ? text.substr(at) : problem();
    }
    return why;
  }

  /// The problems with the first case that did not pass on all ranks. If all cases passed, the problems with how
  /// processes ended, or an empty text if there are none.
  [[nodiscard]] std::string problem() const {
    // Each problem, with the ranks that have it.
    std::vector<std::pair<std::string, std::vector<std::size_t>>> problems;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const std::string text = problem_of(i);
      const auto known = std::ranges::find(problems, text, &std::pair<std::string, std::vector<std::size_t>>::first);
      if (known != problems.end()) {
        known->second.push_back(i);
      } else if (!text.empty()) {
        problems.push_back({text, {i}});
      }
    }
    std::vector<std::string> texts;
    for (const auto& [text, ranks] : problems) {
      texts.push_back(fmt::format("rank{} {}: {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "), text));
    }
    if (texts.empty() && passed_ < cases_) {
      return "its ranks said nothing of it";
    }
    return fmt::format("{}", fmt::join(texts, "; "));
  }

 private:
  /// The problem of rank `index` with the first case that did not pass on all ranks; empty if this rank has none.
  [[nodiscard]] std::string problem_of(std::size_t index) const {
    const RankProcess& rank = ranks_[index];
    if (rank.lines().size() > passed_) {
      return rank.lines()[passed_];
    }
    if (!rank.end() || index == victim_) {
      return "";
    }
    return hangs_ ? fmt::format("it hangs: nothing is heard of it for {} s", silence_ms_ / 1000) : *rank.end();
  }

  [[nodiscard]] bool went_through(std::size_t index) const {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const std::vector<std::string>& lines = ranks_[i].lines();
      if (i != victim_ && (lines.size() <= index || !lines[index].empty())) {
        return false;
      }
    }
    return true;
  }

  /// Reads reports. Returns false once all processes have closed their reports, or were killed because they hang.
  [[nodiscard]] bool listen() {
    std::vector<pollfd> waiting;
    std::vector<std::size_t> of;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (ranks_[i].is_open()) {
        waiting.push_back({.fd = ranks_[i].reports(), .events = POLLIN, .revents = 0});
        of.push_back(i);
      }
    }
    const int ready = waiting.empty() ? 0 : poll(waiting.data(), waiting.size(), silence_ms_);
    if (ready == 0 && !waiting.empty()) {
      hangs_ = true;
      for (const RankProcess& rank : ranks_) {
        rank.kill();
      }
    }
    for (std::size_t i = 0; i < of.size() && ready > 0; ++i) {
      RankProcess& rank = ranks_[of[i]];
      if (waiting[i].revents != 0) {
        rank.read();
        if (!rank.is_open() && rank.lines().size() < cases_ && of[i] != victim_) {
          store_.abort();  // the other ranks must not wait for a rank that has crashed
        }
      }
    }
    return ready != 0;
  }

  Store store_;
  std::deque<RankProcess> ranks_;
  std::size_t cases_;
  std::optional<std::uint32_t> victim_;
  int silence_ms_;
  std::size_t passed_ = 0;
  bool hangs_ = false;
};

/// Runs cases. Cases that need the same number of ranks share a set of processes. After a case that fails, the
/// remaining cases get new processes.
class Check {
 public:
  Check(MemberWords words, const CheckOptions& options)
      : options_(options), cases_(cases_of(words.kind).infos()), words_(std::move(words)) {}

  /// Returns false if the other cases need not be tried, because the plugin cannot be opened or all cases are skipped.
  bool run(std::vector<std::size_t> indices) {
    while (!indices.empty()) {
      const CaseInfo& first = cases_[indices.front()];
      words_.ranks = first.ranks;
      words_.cases = indices;
      World world(words_, first.victim, options_.member_command,
                  options_.silence_s != 0 ? options_.silence_s : usual_silence_s(words_.kind));
      world.run([&](std::size_t passed) { add({cases_[indices[passed]].name, "", world.notes(passed)}); });
      const std::string problem = world.problem();
      if (world.passed() == indices.size()) {
        if (!problem.empty()) {
          add({fmt::format("the end of a world of {} rank{}", first.ranks, first.ranks == 1 ? "" : "s"), problem});
        }
        return true;
      }
      const CaseInfo& failed = cases_[indices[world.passed()]];
      if (std::optional<std::string> why = world.why_skipped()) {
        add({.name = "all cases", .problem = *std::move(why), .is_skipped = true});
        return false;
      }
      add({failed.name, problem});
      if (failed.name == opening_case || problem.find(opening_words(words_.kind)) != std::string::npos) {
        return false;
      }
      indices.erase(indices.begin(), indices.begin() + static_cast<std::ptrdiff_t>(world.passed()) + 1);
    }
    return true;
  }

  [[nodiscard]] const std::vector<CaseInfo>& cases() const noexcept { return cases_; }
  [[nodiscard]] std::vector<Finding> take() { return std::move(findings_); }

 private:
  void add(Finding finding) {
    finding.problem = printable(finding.problem);  // problems and notes contain text of the plugin
    std::ranges::transform(finding.notes, finding.notes.begin(),
                           [](const std::string& note) { return printable(note); });
    if (options_.report) {
      options_.report(finding);
    }
    findings_.push_back(std::move(finding));
  }

  const CheckOptions& options_;
  const std::vector<CaseInfo> cases_;
  MemberWords words_;
  std::vector<Finding> findings_;
};

bool is_asked_for(const CaseInfo& each, const CaseWords& words) {
  return words.empty() || std::any_of(words.begin(), words.end(), [&](const std::string& word) {
           return each.name.find(word) != std::string::npos;
         });
}

/// Whether the same processes can run two cases.
bool share_a_world(const CaseInfo& a, const CaseInfo& b) noexcept {
  return !a.victim && !b.victim && a.ranks == b.ranks;
}

}  // namespace

std::string_view outcome_of(const Finding& finding) noexcept {
  return finding.is_skipped ? "skipped" : finding.problem.empty() ? "ok    " : "FAILED";
}

std::vector<std::string> case_names(plugins::PluginKind kind, const CaseWords& words) {
  std::vector<std::string> names;
  for (const CaseInfo& each : cases_of(kind).infos()) {
    if (is_asked_for(each, words)) {
      names.push_back(each.name);
    }
  }
  return names;
}

std::vector<Finding> check_plugin(const plugins::Directories& directories, plugins::PluginKind kind,
                                  const std::string& name, const CheckOptions& options) {
  Check check({.kind = kind, .plugin = name, .cases = {}, .settings = options.settings, .directories = directories},
              options);
  std::vector<std::size_t> together;
  for (std::size_t i = 0; i < check.cases().size(); ++i) {
    const CaseInfo& next = check.cases()[i];
    if (!is_asked_for(next, options.words)) {
      continue;
    }
    if (!together.empty() && !share_a_world(check.cases()[together.front()], next)) {
      if (!check.run(std::move(together))) {
        return check.take();
      }
      together.clear();
    }
    together.push_back(i);
  }
  check.run(std::move(together));
  return check.take();
}

}  // namespace shardrun::conformance
