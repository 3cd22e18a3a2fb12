#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <random>
#include <string>

namespace shardrun::bench {

/// How a job ended whose ranks were killed and started again. `problem` is empty if it ended correctly.
struct Restarted {
  int kills = 0;
  std::size_t attempts = 1;
  std::string problem;
};

/// Runs jobs that save every 3 steps and restart their ranks. Kills a random rank of each job one to three times, at
/// random times. A job ends correctly if it has the loss and the weights of the same job over the same transport
/// without a kill, and leaves no process and no temporary file.
class RestartedJobs {
 public:
  RestartedJobs(int ranks, int latest_ms) : ranks_(ranks), latest_ms_(latest_ms) {}

  [[nodiscard]] Restarted run(const std::string& transport, std::mt19937_64& random);

 private:
  struct Result {
    double loss = 0;
    std::string weights;
  };

  [[nodiscard]] const Result& expected(const std::string& transport);

  int ranks_;
  int latest_ms_;
  std::map<std::string, Result> expected_;  ///< by transport: the result without a kill
};

/// The files that a job has left in /dev/shm, or as temporary files below `folder`; "" if there are none.
[[nodiscard]] std::string left_behind(const std::filesystem::path& folder);

}  // namespace shardrun::bench
