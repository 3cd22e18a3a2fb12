#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardrun::metrics {

/// Bytes by purpose.
struct MemoryCategories {
  std::uint64_t parameters = 0;
  std::uint64_t gradients = 0;
  std::uint64_t optimizer = 0;
  std::uint64_t activations = 0;
  std::uint64_t communication = 0;
  std::uint64_t scratch = 0;
};

struct RankSummary {
  std::string host;    ///< the name of its machine
  std::string device;  ///< "cuda:0 (NVIDIA H200, compute capability 9.0)"
  std::uint64_t planned_bytes = 0;
  std::uint64_t peak_bytes = 0;           ///< measured, not planned
  std::uint64_t snapshot_bytes = 0;       ///< of the copy of what the rank saves; 0: there is none
  std::uint64_t snapshot_peak_bytes = 0;  ///< measured
  std::uint64_t private_bytes = 0;        ///< the process's own memory outside of the arena, at the end of the run
  MemoryCategories categories;
  /// Per step: mesh axis, then collective, as `plan` prints them.
  std::map<std::string, std::map<std::string, std::uint64_t>> sent_bytes;
  std::uint64_t wire_bytes = 0;  ///< that the transports moved over the whole run
};

/// Program, place and time of a run; known to the process that writes the summary.
struct RunOrigin {
  std::string version;
  std::vector<std::string> command;  ///< a word each
  std::string host;
  std::string started;  ///< in the form of utc_text
  std::string ended;
};

/// The checkpoints of a run.
struct CheckpointSummary {
  std::int64_t saved = 0;
  std::int64_t failed = 0;      ///< that could not be written
  std::int64_t last_step = -1;  ///< of the newest one; -1: none
  std::uint64_t bytes = 0;      ///< of it
  double stall_s = 0;           ///< that steps waited for copies and writers
};

/// A start of all ranks that failed, and after which they were started again.
struct Attempt {
  std::int64_t rank = 0;  ///< that failed first
  std::string cause;
  std::int64_t first_step = 0;  ///< steps done before the attempt
  std::int64_t steps = 0;       ///< that it did
  std::int64_t ranks = 0;
  double seconds = 0;
};

/// The contents of summary.json.
struct Summary {
  std::string status;  ///< "finished", "stopped" or "failed"
  int exit_code = 0;
  std::string error;  ///< why it failed; empty if not
  std::int64_t steps = 0;
  double seconds = 0;
  std::optional<double> loss;      ///< of the last step; null if there was none
  std::optional<double> val_loss;  ///< the last one measured
  std::int64_t parameters = 0;
  std::uint64_t data_bytes = 0;  ///< memory of the tokens of texts on each host, for all its ranks
  double tokens_per_s = 0;
  std::optional<double> step_ms_median;  ///< null if no step was timed
  std::int64_t checks = 0;               ///< comparisons of replicas
  double check_s = 0;                    ///< seconds of the checks, outside of the steps
  std::int64_t first_step = 0;           ///< steps done before this run, which went on from there
  std::optional<CheckpointSummary> checkpoints;
  std::vector<Attempt> attempts;   ///< before the last one, which everything else is about
  std::string saved;               ///< what is in the folder as the run's result: "new", "earlier" or "none"
  std::optional<double> ending_s;  ///< if one of several ranks failed: from the first sign of it to the last rank's end
  std::size_t strangers = 0;       ///< connections that were not from ranks; written only if there were any
  RunOrigin origin;
  std::vector<RankSummary> ranks;
};

/// JSON on several lines, indented by two spaces, keys always in one order; ends in a newline.
[[nodiscard]] std::string to_json(const Summary& summary);

/// Reads the result of `to_json`, without the origin. Throws Error{internal} for anything else.
[[nodiscard]] Summary parse_summary(std::string_view json);

/// Throws Error{io}; the path then has its earlier content.
void write_summary(const std::filesystem::path& path, const Summary& summary);

}  // namespace shardrun::metrics
