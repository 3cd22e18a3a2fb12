#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/kernels/cuda_checks.h"

/// The program kernel_checks (cuda_device.cpp). One process works through ops (cuda_device_work.cpp) and sends messages
/// to another one, which reports (cuda_device_report.cpp).
namespace shardrun::test {

struct Options {
  std::string device;
  std::string library;  ///< the device's library; empty: the one that a program finds
  std::size_t unit = 0;
  std::vector<std::string> ops;
  double seconds = 0;
  double patience = 60;
  std::int64_t largest = 0;  ///< elements of an operand; larger cases are left out; 0: none
  std::size_t cases = 0;     ///< how many of each op, at even distances in its list; 0: all
  bool separate = false;
  std::string json;    ///< the file of the summary; empty: none
  int report_to = -1;  ///< in the working process: where it sends messages; -1: this process reports
};

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

/// The cases of an op that the options let through.
[[nodiscard]] std::vector<TypedCase> cases_to_run(const Options& options, const std::string& op);

/// The working process: runs the ops, and writes to `options.report_to` what it does and what it finds. Each message is
/// a line: a word, and fields separated by tabs.
void work(const Options& options);

/// The process that reports: has other processes run the ops, and prints failures as they are found. Throws
/// Error{io} if none can be started.
[[nodiscard]] Summary report(const Options& options);

}  // namespace shardrun::test
