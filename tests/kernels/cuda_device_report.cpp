#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <sstream>

#include "core/base/error.h"
#include "tests/kernels/cuda_device.h"

namespace shardrun::test {
namespace {

using Clock = std::chrono::steady_clock;

/// The working process ends by itself when its time is over. If it still runs this long after that, it is killed.
constexpr std::chrono::seconds time_to_end(10);

constexpr std::size_t kept_of_a_check = 3;

class Reporter {
 public:
  explicit Reporter(const Options& options) : options_(options), begin_(Clock::now()) {
    for (const std::string& op : options.ops) {
      summary_.ops[op];
    }
  }

  Summary run() {
    std::vector<std::string> left = options_.ops;
    while (!left.empty() && summary_.unusable.empty() && !out_of_time()) {
      run_process(left);
      // The op at which the process ended is not begun again.
      const auto is_over = [&](const std::string& op) { return summary_.ops[op].done || op == current_.op; };
      const std::size_t before = left.size();
      std::erase_if(left, is_over);
      if (left.size() == before) {
        break;  // it ended before it did anything, which is a failure of its own
      }
    }
    summary_.seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
    return summary_;
  }

 private:
  [[nodiscard]] int left_ms() const {
    if (options_.seconds <= 0) {
      return -1;
    }
    const std::chrono::duration<double, std::milli> past = Clock::now() - begin_;
    return std::max(0, static_cast<int>(1000 * options_.seconds - past.count()));
  }
  [[nodiscard]] bool out_of_time() const { return left_ms() == 0; }
  /// How long to wait for the next message; -1: forever. The process loads the device before the first check: during
  /// that, only the time of all checks counts.
  [[nodiscard]] int patience_ms() const {
    const int left = left_ms();
    const int all = left < 0 ? left : left + static_cast<int>(std::chrono::milliseconds(time_to_end).count());
    if (options_.patience <= 0 || current_.op.empty()) {
      return all;
    }
    const int one = static_cast<int>(1000 * options_.patience);
    return all < 0 ? one : std::min(all, one);
  }

  /// Replaces this process, which was forked, by the working process.
  [[noreturn]] void execute(const std::vector<std::string>& ops, int report_to) const {
    std::vector<std::string> words = {
        "kernel_checks",
        "--device=" + options_.device,
        fmt::format("--unit={}", options_.unit),
        fmt::format("--ops={}", fmt::join(ops, ",")),
        fmt::format("--largest={}", options_.largest),
        fmt::format("--cases={}", options_.cases),
        fmt::format("--seconds={}", options_.seconds > 0 ? std::max(1, left_ms()) / 1000.0 : 0.0),
        fmt::format("--report-to={}", report_to)};
    if (!options_.library.empty()) {
      words.push_back("--library=" + options_.library);
    }
    if (options_.separate) {
      words.emplace_back("--separate");
    }
    std::vector<char*> pointers;
    std::ranges::transform(words, std::back_inserter(pointers), [](std::string& word) { return word.data(); });
    pointers.push_back(nullptr);
    execv("/proc/self/exe", pointers.data());
    _exit(127);
  }

  void run_process(const std::vector<std::string>& ops) {
    std::array<int, 2> ends = {-1, -1};
    if (pipe(ends.data()) != 0) {
      throw Error(ErrorCode::io, fmt::format("no pipe can be made: {}", std::strerror(errno)));
    }
    std::fflush(nullptr);
    current_ = {};
    const pid_t process = fork();
    if (process == 0) {
      close(ends[0]);
      execute(ops, ends[1]);
    }
    close(ends[1]);
    if (process < 0) {
      close(ends[0]);
      throw Error(ErrorCode::io, fmt::format("no process can be started: {}", std::strerror(errno)));
    }
    const Heard heard = listen(ends[0]);
    close(ends[0]);
    if (heard != Heard::end) {
      kill(process, SIGKILL);
    }
    int status = 0;
    waitpid(process, &status, 0);
    if (heard == Heard::nothing) {
      fail(fmt::format("not done after {} s: the kernel or a wait does not end (--patience)", options_.patience));
    } else if (heard == Heard::end && WIFSIGNALED(status)) {
      fail(fmt::format("the process ended by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status))));
    } else if (heard == Heard::end && WEXITSTATUS(status) != 0) {
      fail(fmt::format("the process ended with exit code {}", WEXITSTATUS(status)));
    }
  }

  enum class Heard {
    end,          ///< the process has ended
    nothing,      ///< no message about the current check for too long
    out_of_time,  ///< the time of all checks is over
  };

  Heard listen(int descriptor) {
    std::string text;
    std::array<char, 4096> piece = {};
    for (;;) {
      pollfd readable = {.fd = descriptor, .events = POLLIN, .revents = 0};
      const int ready = poll(&readable, 1, patience_ms());
      if (ready == 0) {
        return out_of_time() ? Heard::out_of_time : Heard::nothing;
      }
      const ssize_t count = ready < 0 ? -1 : read(descriptor, piece.data(), piece.size());
      if (count < 0 && errno == EINTR) {
        continue;
      }
      if (count <= 0) {
        return Heard::end;
      }
      text.append(piece.data(), static_cast<std::size_t>(count));
      std::size_t begin = 0;
      for (std::size_t end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
        take(text.substr(begin, end - begin));
      }
      text.erase(0, begin);
    }
  }

  void take(const std::string& line) {
    std::vector<std::string> fields;
    std::stringstream stream(line);
    for (std::string field; std::getline(stream, field, '\t');) {
      fields.push_back(field);
    }
    fields.resize(5);
    if (fields[0] == "at") {
      current_ = {.op = fields[1], .check = fields[2], .found_case = fields[3], .what = ""};
    } else if (fields[0] == "wrong") {
      fail(fields[1]);
    } else if (fields[0] == "so far") {
      OpResult& result = summary_.ops[fields[1]];
      result.cases = std::stoll(fields[2]);
      result.runs = std::stoll(fields[3]);
      result.seconds = std::stod(fields[4]);
    } else if (fields[0] == "done") {
      summary_.ops[fields[1]].done = true;
    } else if (fields[0] == "unit") {
      summary_.unit = fields[1];
      summary_.architecture = fields[2];
    } else if (fields[0] == "unusable") {
      summary_.unusable = fields[1];
    }
  }

  void fail(const std::string& what) {
    if (current_.op.empty()) {
      summary_.unusable = what;
      return;
    }
    ++summary_.ops[current_.op].failures;
    const auto alike = [&](const Failure& each) { return each.op == current_.op && each.check == current_.check; };
    if (std::ranges::count_if(summary_.failures, alike) < static_cast<std::ptrdiff_t>(kept_of_a_check)) {
      summary_.failures.push_back(current_);
      summary_.failures.back().what = what;
      fmt::print("FAILED {}: {}: {}\n    {}\n", current_.op, current_.check, current_.found_case, what);
      std::fflush(stdout);
    }
  }

  const Options& options_;
  Clock::time_point begin_;
  Summary summary_;
  Failure current_;  ///< what the process is at
};

}  // namespace

Summary report(const Options& options) { return Reporter(options).run(); }

}  // namespace shardrun::test
