#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/forecast/meetings.h"

namespace shardrun::forecast {

/// An executed instruction in a trace. Times are in seconds, by one clock for all ranks.
struct MeasuredSpan {
  std::string function;
  std::string category;
  std::string name;
  std::int64_t flops = 0;
  std::int64_t bytes = 0;
  double begin = 0;
  double end = 0;
};

/// The steps of a run's trace, by rank and number, with their instructions in order of execution.
class MeasuredSteps {
 public:
  /// `path`: the trace, or the run's output folder. Throws Error{job}, beginning with `place`, for another file.
  MeasuredSteps(const std::filesystem::path& path, std::string place);

  /// Throws Error{job} if the trace does not have the rank, or if a traced step has other instructions than `step`; the
  /// message names the first difference. If `step` has the hook after_step, traced steps without it are skipped.
  void require(const RankStep& step);

  /// The median over steps of the seconds that a rank computed and moved data. REQUIRES: the rank passed require().
  [[nodiscard]] double computing(std::int64_t rank) const;

  /// Per rank and instruction (by number in the step), the median duration over the steps that all these ranks have.
  /// For a wait: the time after every participant had started. REQUIRES: each rank passed require().
  [[nodiscard]] std::vector<std::vector<double>> medians(const std::vector<RankStep>& ranks,
                                                         mesh::AxisId pipeline_axis) const;

 private:
  using Steps = std::map<std::int64_t, std::vector<MeasuredSpan>>;

  [[noreturn]] void refuse(const std::string& why) const;
  void read(const std::filesystem::path& path);

  std::string place_;
  std::map<std::int64_t, Steps> ranks_;
};

}  // namespace shardrun::forecast
