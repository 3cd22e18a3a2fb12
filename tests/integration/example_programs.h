#pragma once

#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/checkpoint/safetensors.h"
#include "tests/integration/program.h"
#include "tests/support/catch.h"

// examples/programs, run as a user runs them.

namespace shardrun::test {

using States = std::map<std::string, std::vector<float>>;

inline States read_states(const std::filesystem::path& path) {
  const checkpoint::SafetensorsFile file(path);
  States states;
  for (const auto& tensor : file.tensors()) {
    std::vector<float>& values = states[tensor.info.name];
    values.resize(tensor.bytes.size() / sizeof(float));
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  }
  return states;
}

/// `shardrun COMMAND JOB` with threads and plugins set.
inline Ended run_job(const std::filesystem::path& folder, const std::string& command, const std::string& job,
                     std::vector<std::string> settings = {}) {
  settings.emplace_back("plugins.path=" SHARDRUN_EXAMPLE_PROGRAMS);
  settings.emplace_back("job.threads=1");
  std::vector<std::string> words = {command, job};
  words.emplace_back(command == "run" ? "--replace" : "--json");
  const Ended ended = run_program(folder, with_settings(std::move(words), settings));
  INFO(job << ": " << ended.err);
  REQUIRE(ended.code == 0);
  return ended;
}

/// The path of an example's job file.
inline std::string example(const std::string& name) { return SHARDRUN_EXAMPLE_JOBS "/programs/" + name + ".ini"; }

/// The losses of a run of a job file, in `folder`.
inline std::vector<double> losses_of(const std::filesystem::path& folder, const std::string& job,
                                     const std::vector<std::string>& settings) {
  run_job(folder, "run", job, settings);
  std::vector<double> losses;
  for (const boost::json::object& line : read_json_lines(folder / "out/metrics.jsonl")) {
    losses.push_back(line.at("loss").to_number<double>());
  }
  return losses;
}

}  // namespace shardrun::test
