#pragma once

#include <functional>

#include "core/metrics/record.h"
#include "core/metrics/run_folder.h"
#include "core/train/rank_link.h"

namespace shardrun::train {

/// What can be said of a rank's run before it: its parameters, and its part with what is planned.
[[nodiscard]] metrics::Summary planned_summary(const compile::Compiled& compiled);

/// What a rank's steps need of its process.
struct StepSettings {
  metrics::Display& display;
  const metrics::RunFolder& folder;  ///< [job] output, which the job names by its root
  std::function<int()> stop_signal;  ///< the signal that asked to stop, or 0; looked at between steps
  bool profile = false;
  RankLink* link = nullptr;  ///< to the other ranks; null where there is one
};

/// Does one rank's part of what [job] task says: metrics, log and results go to [job] output, which is open. Returns
/// the summary with this rank's part. A job that fails leaves its summary in `failed` and throws.
[[nodiscard]] metrics::Summary run_steps(const job::Job& job, compile::Compiled& compiled, const StepSettings& settings,
                                         metrics::Summary& failed);

}  // namespace shardrun::train
