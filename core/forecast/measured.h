#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/forecast/meetings.h"

namespace shardrun::forecast {

/// An instruction as it was recorded; times are seconds of one clock for all ranks.
struct MeasuredSpan {
  std::string function;
  std::string category;
  std::string name;
  std::int64_t flops = 0;
  double begin = 0;
  double end = 0;
};

/// The steps of a run's trace by rank and number, each with its instructions in the order in which they were executed.
class MeasuredSteps {
 public:
  /// `path`: the trace, or the output folder that it lies in. Throws Error{job}, whose message begins with `place`, for
  /// what is no trace.
  MeasuredSteps(const std::filesystem::path& path, std::string place);

  /// Throws Error{job} where the trace does not have the rank, or where it executed anything else in some step than
  /// `step`; the message says where they part. Steps that the hook after_step does not follow are left out, where
  /// `step` has it.
  void require(const RankStep& step);

  /// Seconds that a rank computed and moved data in a step, the median. REQUIRES: it has passed require().
  [[nodiscard]] double computing(std::int64_t rank) const;

  /// Of each rank's instructions, by number in the step, the median over the steps that all these ranks have: what it
  /// took; of what waits for a transfer, what was left of it once everyone of them had started it.
  /// REQUIRES: each has passed require().
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
