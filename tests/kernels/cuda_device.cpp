// Runs every case of every op on a device as the program loads it, and compares with float64: the checks of
// cuda_emulated.cpp, on a GPU. A separate process works through the ops. After a failure of the GPU, which ends all
// work of a process, a new one continues with the next op. It is this program, started anew, because tools such as
// compute-sanitizer do not see into a process that was only forked.

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <boost/program_options.hpp>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "tests/kernels/cuda_device.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

namespace json = boost::json;

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

/// The parsed options; nothing if the help or the list was printed.
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
      "cases", po::value(&options.cases), "run so many cases of each op, at even distances in its list; 0: all")(
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
  const Summary summary = report(options);
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
