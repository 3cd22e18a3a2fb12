// Runs every case of every op on a device as the program loads it, and compares with float64: the checks of
// cuda_emulated.cpp, on a GPU. A process of its own works through the ops; after a failure of the GPU, which ends all
// work of a process, a new one continues with the next op. It is this program, started anew: tools such as
// compute-sanitizer do not see into a process that was only forked.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <boost/program_options.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <optional>
#include <ranges>
#include <sstream>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/device/library.h"
#include "tests/kernels/cuda_checks.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

using Clock = std::chrono::steady_clock;
namespace json = boost::json;

struct Options {
  std::string device;
  std::string library;  ///< the device's library; empty: where a program finds it
  std::size_t unit = 0;
  std::vector<std::string> ops;
  double seconds = 0;
  double patience = 60;
  std::int64_t largest = 0;  ///< elements of an operand; larger cases are left out; 0: none
  bool separate = false;
  std::string json;    ///< the file of the summary; empty: none
  int report_to = -1;  ///< of the process that works: the descriptor that the other reads; -1: this is the other
};

/// A process that works ends by itself when its time is over. One that has not ended so long after that is killed.
constexpr std::chrono::seconds time_to_end(10);

struct Failure {
  std::string op;
  std::string check;
  std::string found_case;
  std::string what;
};

struct OpResult {
  std::int64_t cases = 0;
  std::int64_t runs = 0;
  std::int64_t failures = 0;
  double seconds = 0;
  bool done = false;
};

struct Summary {
  std::string unit;
  std::string architecture;
  std::map<std::string, OpResult> ops;
  std::vector<Failure> failures;  ///< the first ones of each op and check
  std::string unusable;           ///< why the device cannot be used; nothing else is known then
  double seconds = 0;

  [[nodiscard]] std::int64_t sum(std::int64_t OpResult::*member) const {
    std::int64_t total = 0;
    for (const auto& [op, result] : ops) {
      total += result.*member;
    }
    return total;
  }
  [[nodiscard]] std::vector<std::string> not_run() const {
    std::vector<std::string> names;
    for (const auto& [op, result] : ops) {
      if (!result.done) {
        names.push_back(op);
      }
    }
    return names;
  }
};

// --- the process that works ------------------------------------------------------------------------------------------

/// Runs cases in memory of the device. A GPU has one way to run a kernel: it runs it twice.
class DeviceRunner final : public KernelRunner {
 public:
  DeviceRunner(const device::Device& device, bool separate) : device_(device), separate_(separate) { open(); }

  [[nodiscard]] std::size_t turns() const override { return 2; }
  [[nodiscard]] std::vector<Tensor> run(const Prepared& prepared, const Manner& manner, std::size_t) override {
    ++runs;
    Manner on_device = manner;
    on_device.room = &*room_;
    return test::run(device_, prepared, on_device);
  }
  /// Throws where the device does nothing any more.
  void open() { room_.emplace(device_, separate_); }

  std::int64_t runs = 0;

 private:
  const device::Device& device_;
  bool separate_;
  std::optional<conformance::DeviceRoom> room_;
};

/// Messages of the working process to the other: a line each, of a word and fields with tabs between them.
class Sender {
 public:
  explicit Sender(int descriptor) : descriptor_(descriptor) {}

  void send(const std::vector<std::string>& fields) const {
    std::string line;
    for (std::string field : fields) {
      std::ranges::replace_if(
          field, [](char c) { return c == '\t' || c == '\n'; }, ' ');
      line += (line.empty() ? "" : "\t") + field;
    }
    line += '\n';
    for (std::size_t at = 0; at < line.size();) {
      const ssize_t wrote = write(descriptor_, line.data() + at, line.size() - at);
      if (wrote <= 0) {
        _exit(1);  // nobody listens any more
      }
      at += static_cast<std::size_t>(wrote);
    }
  }

 private:
  int descriptor_;
};

std::vector<TypedCase> cases_to_run(const Options& options, const std::string& op) {
  std::vector<TypedCase> cases = cuda_cases(op);
  std::ranges::move(large_cuda_cases(op), std::back_inserter(cases));
  if (options.largest > 0) {
    std::erase_if(cases, [&](const TypedCase& typed) { return largest_operand(typed.test) > options.largest; });
  }
  return cases;
}

enum class Checked { whole, out_of_time, device_lost };

Checked check_op(const Options& options, const std::string& op, DeviceRunner& runner, const Sender& sender,
                 Clock::time_point limit) {
  const Clock::time_point begin = Clock::now();
  std::int64_t cases = 0;
  runner.runs = 0;
  for (const TypedCase& typed : cases_to_run(options, op)) {
    if (Clock::now() >= limit) {
      return Checked::out_of_time;
    }
    ++cases;
    const Prepared prepared = prepare_as(typed.test, typed.typing);
    for (const KernelCheck& check : cuda_checks()) {
      sender.send({"at", op, check.name, to_string(typed)});
      std::string wrong;
      bool lost = false;
      try {
        wrong = check.check(typed, prepared, runner);
      } catch (const Error& error) {
        wrong = error.message();
        try {
          runner.open();
        } catch (const Error&) {
          lost = true;
        }
      }
      if (!wrong.empty()) {
        sender.send({"wrong", wrong});
      }
      if (lost) {
        return Checked::device_lost;
      }
    }
    const std::chrono::duration<double> taken = Clock::now() - begin;
    sender.send({"so far", op, std::to_string(cases), std::to_string(runner.runs), std::to_string(taken.count())});
  }
  sender.send({"done", op});
  return Checked::whole;
}

void work(const Options& options) {
  const Sender sender(options.report_to);
  const Clock::time_point limit =
      options.seconds > 0
          ? Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.seconds))
          : Clock::time_point::max();
  std::optional<DeviceRunner> runner;
  try {
    const device::Device& device = options.library.empty() ? device::Device::find(options.device)
                                                           : device::load_device(options.device, {options.library});
    if (device.has_units()) {
      const std::vector<device::Unit> units = device.units();
      if (options.unit >= units.size()) {
        throw Error(ErrorCode::usage,
                    fmt::format("--unit {}: device {} has {} units", options.unit, device.name(), units.size()));
      }
      device.use_unit(options.unit);
      sender.send({"unit", units[options.unit].name, units[options.unit].architecture});
    }
    runner.emplace(device, options.separate);
  } catch (const Error& error) {
    sender.send({"unusable", error.message()});
    return;
  }
  for (const std::string& op : options.ops) {
    const Checked checked = check_op(options, op, *runner, sender, limit);
    if (checked == Checked::device_lost) {
      _exit(0);  // no destructor waits for a device that is gone
    }
    if (checked == Checked::out_of_time) {
      return;
    }
  }
}

// --- the process that reports ----------------------------------------------------------------------------------------

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
        break;  // it ended before it did anything; that is a failure of its own
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
  /// Of one check; -1: without an end. Before the first one, the process loads the device.
  [[nodiscard]] int patience_ms() const {
    const int left = left_ms();
    const int all = left < 0 ? left : left + static_cast<int>(std::chrono::milliseconds(time_to_end).count());
    if (options_.patience <= 0 || current_.op.empty()) {
      return all;
    }
    const int one = static_cast<int>(1000 * options_.patience);
    return all < 0 ? one : std::min(all, one);
  }

  /// In place of this process, which was forked.
  [[noreturn]] void execute(const std::vector<std::string>& ops, int report_to) const {
    std::vector<std::string> words = {
        "kernel_checks",
        "--device=" + options_.device,
        fmt::format("--unit={}", options_.unit),
        fmt::format("--ops={}", fmt::join(ops, ",")),
        fmt::format("--largest={}", options_.largest),
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
    end,          ///< of the process
    nothing,      ///< of the check that it is at, for too long
    out_of_time,  ///< of all checks
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

json::object to_json(const Options& options, const Summary& summary, bool passed) {
  json::array failures;
  for (const Failure& each : summary.failures) {
    failures.push_back(
        json::object{{"op", each.op}, {"check", each.check}, {"case", each.found_case}, {"what", each.what}});
  }
  json::object ops;
  for (const auto& [op, result] : summary.ops) {
    ops[op] = json::object{{"cases", result.cases},
                           {"runs", result.runs},
                           {"failures", result.failures},
                           {"done", result.done},
                           {"seconds", result.seconds}};
  }
  return {{"passed", passed},
          {"device", options.device},
          {"unit", summary.unit},
          {"architecture", summary.architecture},
          {"unusable", summary.unusable},
          {"ops", summary.ops.size()},
          {"cases", summary.sum(&OpResult::cases)},
          {"runs", summary.sum(&OpResult::runs)},
          {"failed", summary.sum(&OpResult::failures)},
          {"failures", failures},
          {"not_run", json::value_from(summary.not_run())},
          {"seconds", summary.seconds},
          {"by_op", ops}};
}

// --- the command line ------------------------------------------------------------------------------------------------

std::vector<std::string> all_ops() {
  std::vector<std::string> names;
  for (const graph::Op* op : graph::all_ops()) {
    names.emplace_back(op->name);
  }
  return names;
}

std::vector<std::string> ops_of(const std::string& list) {
  const std::vector<std::string> known = all_ops();
  std::vector<std::string> names;
  std::stringstream stream(list);
  for (std::string name; std::getline(stream, name, ',');) {
    if (std::ranges::find(known, name) == known.end()) {
      throw Error(ErrorCode::usage, fmt::format("--ops: there is no op '{}'; --list prints all", name));
    }
    names.push_back(name);
  }
  return names.empty() ? known : names;
}

/// Nothing where the help or the list was printed.
std::optional<Options> parse(int argc, char** argv) {
  namespace po = boost::program_options;
  Options options;
  std::string ops;
  po::options_description visible("Options");
  visible.add_options()("help", "this text")("list", "print the ops with their numbers of cases, and run nothing")(
      "device", po::value(&options.device)->default_value("cuda"), "the device")(
      "library", po::value(&options.library), "its library, if not the one beside this program's plugins")(
      "unit", po::value(&options.unit)->default_value(0), "which of the device's units")(
      "ops", po::value(&ops), "only these, separated by commas")(
      "seconds", po::value(&options.seconds), "end after this time; ops that were not run are a failure")(
      "patience", po::value(&options.patience)->default_value(60),
      "seconds for one check of a case; if it takes longer, its op is given up as failed; 0: any time")(
      "largest", po::value(&options.largest), "leave out cases with an operand of more elements than this")(
      "separate", "give each buffer an allocation of its own, for compute-sanitizer")("json", po::value(&options.json),
                                                                                      "write a summary to this file");
  po::options_description all;
  all.add(visible).add_options()("report-to", po::value(&options.report_to), "the process that works");
  po::variables_map values;
  try {
    po::store(po::parse_command_line(argc, argv, all), values);
    po::notify(values);
  } catch (const po::error& error) {
    throw Error(ErrorCode::usage, error.what());
  }
  if (values.contains("help")) {
    std::cout << "Checks every kernel of a device against float64, as the program loads the device.\n" << visible;
    return std::nullopt;
  }
  options.ops = ops_of(ops);
  options.separate = values.contains("separate");
  if (values.contains("list")) {
    for (const std::string& op : options.ops) {
      fmt::print("{:<40} {:>4} cases\n", op, cases_to_run(options, op).size());
    }
    return std::nullopt;
  }
  return options;
}

int check_all(const Options& options) {
  const Summary summary = Reporter(options).run();
  const std::vector<std::string> not_run = summary.not_run();
  const bool passed = summary.unusable.empty() && summary.sum(&OpResult::failures) == 0 && not_run.empty() &&
                      summary.sum(&OpResult::runs) > 0;
  if (!options.json.empty()) {
    std::ofstream file(options.json);
    file << to_json(options, summary, passed) << "\n";
    if (!file.flush()) {
      throw Error(ErrorCode::io, fmt::format("{} cannot be written", options.json));
    }
  }
  if (!summary.unusable.empty()) {
    fmt::print(stderr, "kernel_checks: device {} cannot be used: {}\n", options.device, summary.unusable);
    return 2;
  }
  fmt::print("{}: {} of {} ops, {} cases, {} runs: {} failures\n", summary.unit.empty() ? options.device : summary.unit,
             summary.ops.size() - not_run.size(), summary.ops.size(), summary.sum(&OpResult::cases),
             summary.sum(&OpResult::runs), summary.sum(&OpResult::failures));
  if (!not_run.empty()) {
    fmt::print("not run to their end: {}\n", json::serialize(json::value_from(not_run)));
  }
  return passed ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::optional<Options> options = parse(argc, argv);
    if (options && options->report_to >= 0) {
      work(*options);
      return 0;
    }
    return options ? check_all(*options) : 0;
  } catch (const Error& error) {
    fmt::print(stderr, "kernel_checks: {}\n", error.message());
    return exit_code(error.code());
  } catch (const std::exception& error) {
    fmt::print(stderr, "kernel_checks: {}\n", error.what());
    return 1;
  }
}
