// Runs random valid jobs. Each is compared with the same job on one rank, and with its plan.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "tests/fuzz/runs/generate.h"
#include "tests/integration/program.h"

namespace {

using namespace shardrun::test;
namespace json = boost::json;

struct Options {
  std::uint64_t seed = 1;
  std::int64_t count = 200;
  std::string keep;
  std::vector<std::string> with;
  bool as_is = false;
  bool list = false;
};

/// The outcome of one job.
struct Outcome {
  enum class Kind { sound, refused, wrong } kind = Kind::sound;
  std::string text = {};
  std::string what = {};  ///< for a wrong job: what was found, without what differs from job to job
};

Outcome wrong(std::string what, const std::string& more) {
  std::string text = what + (more.empty() ? "" : ": " + more);
  return {Outcome::Kind::wrong, std::move(text), std::move(what)};
}

/// How much numbers may differ, relatively, if sums are made in another order. Later losses depend on earlier sums.
struct Tolerances {
  double first;
  double later;
};
constexpr Tolerances float32_tolerances = {2e-5, 2e-3};
constexpr Tolerances mixed_tolerances = {2e-2, 5e-2};

bool is_close(double one, double other, double tolerance) {
  return std::abs(one - other) <= tolerance * std::max({std::abs(one), std::abs(other), 1e-3});
}

/// The first difference between the metrics.jsonl of the split job and that of one rank; empty if there is none.
std::string difference(const std::vector<json::object>& split, const std::vector<json::object>& single,
                       const Tolerances& tolerances) {
  if (split.size() != single.size()) {
    return fmt::format("{} lines, not {}", split.size(), single.size());
  }
  for (std::size_t i = 0; i < split.size(); ++i) {
    for (const char* name : {"loss", "grad_norm", "val_loss"}) {
      const json::value* const one = split[i].if_contains(name);
      const json::value* const other = single[i].if_contains(name);
      if ((one == nullptr) != (other == nullptr)) {
        return fmt::format("{} of step {} is missing", name, i + 1);
      }
      const bool is_first = i == 0 && std::string(name) != "val_loss";
      if (one != nullptr && !is_close(one->to_number<double>(), other->to_number<double>(),
                                      is_first ? tolerances.first : tolerances.later)) {
        return fmt::format("{} of step {} is {}, on one rank {}", name, i + 1, one->to_number<double>(),
                           other->to_number<double>());
      }
    }
  }
  return "";
}

/// The first difference between the summary and the plan; empty if there is none.
std::string off_plan(const json::object& summary, const json::object& plan, bool has_steps) {
  for (const json::value& alike : plan.at("ranks").as_array()) {
    for (const json::value& member : alike.at("members").as_array()) {
      const auto number = member.to_number<std::size_t>();
      const json::object& rank = summary.at("ranks").as_array().at(number).as_object();
      const json::value& peak = alike.at("bytes").at("peak");
      if (rank.at("planned_bytes") != peak || (has_steps && rank.at("peak_bytes") != peak)) {
        return fmt::format("rank {} planned {} and touched {} bytes, and plan says {}", number,
                           json::serialize(rank.at("planned_bytes")), json::serialize(rank.at("peak_bytes")),
                           json::serialize(peak));
      }
      if (has_steps && rank.at("sent_bytes") != alike.at("sent_bytes")) {
        return fmt::format("rank {} sent {}, and plan says {}", number, json::serialize(rank.at("sent_bytes")),
                           json::serialize(alike.at("sent_bytes")));
      }
    }
  }
  return "";
}

std::vector<Setting> all_settings(const RandomJob& job) {
  std::vector<Setting> all = job.what;
  all.insert(all.end(), job.how.begin(), job.how.end());
  return all;
}

std::string value_of(const std::vector<Setting>& settings, const std::string& name) {
  const auto found =
      std::find_if(settings.begin(), settings.end(), [&](const Setting& setting) { return setting.name == name; });
  return found == settings.end() ? "" : found->value;
}

/// Runs a job in a folder of its own, in which its files are left.
Outcome run(const RandomJob& job, const std::filesystem::path& folder) {
  const std::filesystem::path alone = folder / "single";
  std::filesystem::create_directories(alone);
  write_files(job, folder);
  write_files(job, alone);
  write_file(folder / "job.ini", to_ini(all_settings(job)));
  std::vector<Setting> single = job.what;
  single.push_back({"job.strategy", reference_strategy});
  write_file(alone / "job.ini", to_ini(single));

  const Ended ended = run_program(folder, {"job.ini"});
  if (ended.code == 2) {
    return {Outcome::Kind::refused, ended.err};
  }
  if (ended.code != 0) {
    return wrong(fmt::format("exit code {}", ended.code), ended.err);
  }
  if (!ended.err.empty()) {
    return wrong("it ended well and complained", ended.err);
  }
  if (const Ended reference = run_program(alone, {"job.ini"}); reference.code != 0) {
    return wrong(fmt::format("exit code {} on one rank", reference.code), reference.err);
  }
  const Ended planned = run_program(folder, {"plan", "job.ini", "--json"});
  if (planned.code != 0) {
    return wrong(fmt::format("exit code {} of plan", planned.code), planned.err);
  }
  const bool iterates = value_of(job.what, "job.task") == "iterate";
  const bool has_steps = value_of(job.what, iterates ? "iterate.steps" : "train.steps") != "0";
  if (iterates && read_file(folder / "run/state.safetensors") != read_file(alone / "run/state.safetensors")) {
    return wrong("the state has other bytes than that of one rank", "");
  }
  if (!iterates) {
    const std::string differs =
        difference(read_json_lines(folder / "run/metrics.jsonl"), read_json_lines(alone / "run/metrics.jsonl"),
                   value_of(job.what, "train.precision") == "mixed" ? mixed_tolerances : float32_tolerances);
    if (!differs.empty()) {
      return wrong("it learned something else than one rank", differs);
    }
  }
  const std::string off =
      off_plan(read_json(folder / "run/summary.json"), json::parse(planned.out).as_object(), has_steps);
  return off.empty() ? Outcome{} : wrong("it did not keep to its plan", off);
}

Outcome run(const RandomJob& job) {
  const TemporaryFolder folder;
  return run(job, folder.path());
}

/// Leaves out settings, one after the other, as long as the job still gives the same finding.
RandomJob shrunk(RandomJob job, const std::string& what) {
  for (std::vector<Setting> RandomJob::*part : {&RandomJob::how, &RandomJob::what}) {
    for (std::size_t s = (job.*part).size(); s-- > 0;) {
      if ((job.*part)[s].name == "job.output") {
        continue;  // the results are read from there
      }
      RandomJob smaller = job;
      (smaller.*part).erase((smaller.*part).begin() + static_cast<std::ptrdiff_t>(s));
      if (run(smaller).what == what) {
        job = std::move(smaller);
      }
    }
  }
  return job;
}

void tell(std::uint64_t seed, const RandomJob& job, const Outcome& outcome, const Options& options) {
  fmt::print("seed {}: {}\n--- job.ini\n{}", seed, outcome.text, to_ini(all_settings(job)));
  const RandomJob small = options.as_is ? job : shrunk(job, outcome.what);
  if (!options.as_is) {
    fmt::print("--- the least of it in which the same is found\n{}", to_ini(all_settings(small)));
  }
  if (!options.keep.empty()) {
    const std::filesystem::path folder = std::filesystem::path(options.keep) / fmt::format("seed-{}", seed);
    static_cast<void>(run(small, folder));
    fmt::print("--- run it again: cd {} && shardrun job.ini\n", folder.string());
  }
  fmt::print("--- all of it again: fuzz_runs --seed {} --count 1 --keep FOLDER\n", seed);
}

/// The job with these settings, which replace settings of the same names that say how it is split.
RandomJob with(RandomJob job, const std::vector<std::string>& settings) {
  for (const std::string& setting : settings) {
    const std::size_t equals = setting.find('=');
    if (equals == std::string::npos || setting.find('.') > equals) {
      throw boost::program_options::error(fmt::format("--with takes section.key=value, found '{}'", setting));
    }
    const std::string name = setting.substr(0, equals);
    std::erase_if(job.how, [&](const Setting& each) { return each.name == name; });
    job.how.push_back({name, setting.substr(equals + 1)});
  }
  return job;
}

int fuzz(const Options& options) {
  const std::vector<std::string> transports = installed("transport");
  std::vector<std::string> known = generated_strategies();
  std::sort(known.begin(), known.end());
  if (installed("strategy") != known) {
    fmt::print(
        "the strategies beside the program are {}, and jobs are made for {}: tell generate.cpp how to split by "
        "the others\n",
        fmt::join(installed("strategy"), ", "), fmt::join(known, ", "));
    return 1;
  }
  std::int64_t refused = 0;
  std::int64_t found = 0;
  for (std::uint64_t seed = options.seed; seed < options.seed + static_cast<std::uint64_t>(options.count); ++seed) {
    const RandomJob job = with(random_job(seed, transports), options.with);
    if (options.list) {
      fmt::print("; seed {}\n{}\n", seed, to_ini(all_settings(job)));
      continue;
    }
    const Outcome outcome = run(job);
    if (outcome.kind == Outcome::Kind::refused) {
      ++refused;
      fmt::print("seed {} is refused: {}", seed, outcome.text);
    } else if (outcome.kind == Outcome::Kind::wrong) {
      ++found;
      tell(seed, job, outcome, options);
    }
    std::fflush(stdout);
  }
  fmt::print("{} jobs from seed {} on: {} wrong, {} refused\n", options.count, options.seed, found, refused);
  const bool too_many = refused > options.count / 10 + 1;
  if (too_many) {
    fmt::print("more than a tenth is refused: the generator is to make valid jobs\n");
  }
  return found == 0 && !too_many ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  namespace po = boost::program_options;
  Options options;
  po::options_description all(
      "fuzz_runs: random valid jobs, each run as it is split, on one rank, and planned; exit code 1 unless all agree");
  all.add_options()("help", "print this")                                                                         //
      ("seed", po::value(&options.seed)->default_value(options.seed), "of the first job; the next has the next")  //
      ("count", po::value(&options.count)->default_value(options.count), "how many jobs")                         //
      ("keep", po::value(&options.keep), "folder that keeps what failed, made as small as it fails")              //
      ("with", po::value(&options.with)->composing(), "section.key=value of every split job; may be repeated")    //
      ("as-is", po::bool_switch(&options.as_is), "print what fails without making it smaller")                    //
      ("list", po::bool_switch(&options.list), "print the job files and run nothing");
  try {
    po::variables_map given;
    po::store(po::parse_command_line(argc, argv, all), given);
    po::notify(given);
    if (given.count("help") != 0) {
      std::ostringstream text;
      text << all;
      fmt::print("{}", text.str());
      return 0;
    }
    return fuzz(options);
  } catch (const po::error& error) {
    fmt::print(stderr, "fuzz_runs: {}; --help shows the options\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "fuzz_runs: {}\n", error.what());
    return 1;
  }
}
