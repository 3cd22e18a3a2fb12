#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/metrics/slow_ranks.h"

namespace shardrun::metrics {

/// The numbers of a run as Prometheus reads them, over all its attempts. Any thread may call the functions.
class Exposition {
 public:
  /// `version`: of the program. `output`: the path of the output folder. `last_step`: the step at which the job ends.
  Exposition(std::string_view version, std::string_view job, std::string_view output, std::string_view task,
             std::int64_t ranks, std::int64_t last_step);

  /// Takes a line of numbers of a rank: one of metrics.jsonl, or another with fields of the same kind.
  void take(int rank, std::string_view line);
  /// Takes the ranks that hold up the others now. They replace those of the last call.
  void take(const std::vector<SlowRank>& slow_ranks);
  /// Call it when the ranks are started again. `ranks`: how many they are now.
  void begin_again(std::int64_t ranks);

  /// The numbers in the text format 0.0.4.
  [[nodiscard]] std::string text() const;

  /// The media type of text().
  static constexpr const char* type = "text/plain; version=0.0.4; charset=utf-8";

 private:
  void set(std::string_view field, const std::string& labels, std::string value);

  mutable std::mutex mutex_;
  /// Values as they are written, by field and by labels, which are "" or in braces.
  std::map<std::string, std::map<std::string, std::string>, std::less<>> values_;
  std::map<std::string, std::int64_t, std::less<>> before_;  ///< counts of the attempts before the current one
};

/// The HELP and TYPE lines of a metric, which precede its samples. `name`: without the prefix "shardrun_".
[[nodiscard]] std::string metric_head(std::string_view name, std::string_view kind, std::string_view help);

/// The labels of a sample, escaped: {name="value"}.
[[nodiscard]] std::string labels_of(std::initializer_list<std::pair<std::string_view, std::string_view>> labels);

}  // namespace shardrun::metrics
