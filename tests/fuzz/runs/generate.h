#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace shardrun::test {

/// "section.key" and its value.
struct Setting {
  std::string name;
  std::string value;
};

/// A job by its settings, in the order in which they are written.
struct RandomJob {
  std::vector<Setting> what;  ///< model, data, training: what is computed
  std::vector<Setting> how;   ///< strategy, mesh, transports: how it is split
  std::map<std::string, std::string> files;
};

/// The same job for the same seed and transports. It is valid as far as the generator knows.
[[nodiscard]] RandomJob random_job(std::uint64_t seed, const std::vector<std::string>& transports);

/// The strategies that random jobs have, and the one that they are compared with.
[[nodiscard]] const std::vector<std::string>& generated_strategies();
inline constexpr const char* reference_strategy = "single";

/// The text of a job file.
[[nodiscard]] std::string to_ini(const std::vector<Setting>& settings);

void write_files(const RandomJob& job, const std::filesystem::path& folder);

}  // namespace shardrun::test
