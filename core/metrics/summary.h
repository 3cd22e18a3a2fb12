#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardrun::metrics {

/// Bytes by what they are for.
struct MemoryCategories {
  std::uint64_t parameters = 0;
  std::uint64_t gradients = 0;
  std::uint64_t optimizer = 0;
  std::uint64_t activations = 0;
  std::uint64_t communication = 0;
  std::uint64_t scratch = 0;
};

struct RankSummary {
  std::uint64_t planned_bytes = 0;
  std::uint64_t peak_bytes = 0;     ///< measured, not planned
  std::uint64_t private_bytes = 0;  ///< the process's own memory beside the arena, when the run ended
  MemoryCategories categories;
  /// Per step: mesh axis, then collective, as `plan` prints them.
  std::map<std::string, std::map<std::string, std::uint64_t>> sent_bytes;
  std::uint64_t wire_bytes = 0;  ///< that the transport really moved, over the run
};

/// Which program ran it, where and when; the process that writes the summary knows.
struct RunOrigin {
  std::string version;
  std::vector<std::string> command;  ///< a word each
  std::string host;
  std::string started;  ///< as utc_text
  std::string ended;
};

/// What a run leaves in summary.json.
struct Summary {
  std::string status;  ///< "finished", "stopped" or "failed"
  int exit_code = 0;
  std::string error;  ///< why it failed; empty if not
  std::int64_t steps = 0;
  double seconds = 0;
  std::optional<double> loss;      ///< of the last step; null where there was none
  std::optional<double> val_loss;  ///< the last that was measured
  std::int64_t parameters = 0;
  double tokens_per_s = 0;
  double step_ms_median = 0;
  std::string saved;  ///< what is in the folder as the run's result: "new", "earlier" or "none"
  std::optional<double> ending_s;  ///< of several ranks that failed: from the first sign of it to the last rank's end
  RunOrigin origin;
  std::vector<RankSummary> ranks;
};

/// JSON on several lines, two spaces an indent, keys always in one order; ends in a newline.
[[nodiscard]] std::string to_json(const Summary& summary);

/// What `to_json` wrote, but for the origin. Throws Error{internal} for anything else.
[[nodiscard]] Summary parse_summary(std::string_view json);

/// Throws Error{io}; the path then holds what it held before.
void write_summary(const std::filesystem::path& path, const Summary& summary);

}  // namespace shardrun::metrics
