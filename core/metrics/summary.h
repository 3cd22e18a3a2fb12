#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/metrics/slow_ranks.h"

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

/// Bytes by mesh axis and collective, as `plan` prints them.
using SentBytes = std::map<std::string, std::map<std::string, std::uint64_t>>;

/// The calls of one of a job's programs.
struct ProgramCalls {
  std::int64_t calls = 0;
  SentBytes sent_bytes;  ///< per call
};

struct RankSummary {
  std::string host;    ///< the name of its machine
  std::string device;  ///< "cuda:0 (NVIDIA H200, compute capability 9.0)"
  std::uint64_t planned_bytes = 0;
  std::uint64_t peak_bytes = 0;           ///< measured, not planned
  std::uint64_t snapshot_bytes = 0;       ///< size of the copy of what the rank saves; 0: no copy
  std::uint64_t snapshot_peak_bytes = 0;  ///< measured
  std::uint64_t private_bytes = 0;        ///< the process's own memory outside of the arena, at the end of the run
  MemoryCategories categories;
  SentBytes sent_bytes;  ///< per step
  /// The programs that a job which continues prompts has called, by name; none for other jobs.
  std::map<std::string, ProgramCalls> programs;
  std::uint64_t wire_bytes = 0;  ///< bytes that the transports sent in the whole run
};

/// Program, place and time of a run, known to the process that writes the summary.
struct RunOrigin {
  std::string version;
  std::vector<std::string> command;  ///< one element per word
  std::string host;
  std::string started;  ///< in the form of utc_text
  std::string ended;
};

/// The checkpoints of a run.
struct CheckpointSummary {
  std::int64_t saved = 0;
  std::int64_t failed = 0;      ///< checkpoints that could not be written
  std::int64_t last_step = -1;  ///< step of the newest checkpoint; -1: none
  std::uint64_t bytes = 0;      ///< bytes of the newest checkpoint
  double stall_s = 0;           ///< seconds that steps waited for copies and writers
};

/// A failed start of all ranks, after which they were started again.
struct Attempt {
  std::int64_t rank = 0;  ///< the rank that failed first
  std::string cause;
  std::int64_t first_step = 0;  ///< steps done before the attempt
  std::int64_t steps = 0;       ///< steps that it did
  std::int64_t ranks = 0;
  double seconds = 0;
};

/// The contents of summary.json.
struct Summary {
  std::string status;  ///< "finished", "stopped" or "failed"
  int exit_code = 0;
  std::string error;  ///< why it failed; empty if it did not
  std::int64_t steps = 0;
  double seconds = 0;
  std::optional<double> loss;      ///< of the last step; nothing if there was none
  std::optional<double> val_loss;  ///< the last that this run measured
  std::int64_t parameters = 0;
  std::uint64_t data_bytes = 0;  ///< memory of the tokens of texts on each host, for all its ranks
  double tokens_per_s = 0;
  std::optional<double> step_ms_median;  ///< nothing if no step was timed
  std::int64_t checks = 0;               ///< comparisons of replicas
  double check_s = 0;                    ///< seconds of the checks, outside of the steps
  std::int64_t first_step = 0;           ///< steps done before this run, which continued from there
  std::optional<CheckpointSummary> checkpoints;
  std::vector<Attempt> attempts;     ///< the attempts before the last one; all other fields are about the last one
  std::string saved;                 ///< the run's result in the folder: "new", "earlier" or "none"
  std::optional<double> ending_s;    ///< if one of several ranks failed: seconds from that to the last rank's end
  std::size_t strangers = 0;         ///< connections that were not from ranks; written only if not 0
  std::vector<SlowRank> slow_ranks;  ///< ranks that held up the others, in the order in which they began
  RunOrigin origin;
  std::vector<RankSummary> ranks;
};

/// JSON on several lines, indented by two spaces, with keys in a fixed order; it ends in a newline.
[[nodiscard]] std::string to_json(const Summary& summary);

/// The field `slow_ranks` of a summary, on one line.
[[nodiscard]] std::string to_json(const std::vector<SlowRank>& slow_ranks);

/// Parses a rank's to_json(), without origin, attempts, `saved`, `strangers`, slow ranks. Throws Error{internal}.
[[nodiscard]] Summary parse_summary(std::string_view json);

/// The text of a field of a run's summary; "" if there is none.
[[nodiscard]] std::string text_in_summary(const std::filesystem::path& output, std::string_view field);

/// Throws Error{io}; then the path keeps its earlier content.
void write_summary(const std::filesystem::path& path, const Summary& summary);

}  // namespace shardrun::metrics
