#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/checkpoint/open_checkpoint.h"
#include "core/data/dataset.h"
#include "core/job/job.h"
#include "core/launch/launch.h"
#include "core/metrics/summary.h"
#include "core/run/run.h"

namespace shardrun::run {

/// The attempts of a run. An attempt is one start of all ranks. Decides, by [job] restarts, whether another attempt
/// follows, with how many ranks, and from which checkpoint.
class Attempts {
 public:
  /// `resumed`: the checkpoint from which the run continues; null: none.
  Attempts(const job::Job& job, std::shared_ptr<const checkpoint::OpenCheckpoint> resumed);

  /// The job of the current attempt, whose number of ranks may differ from the attempt before.
  [[nodiscard]] const job::Job& job() const noexcept { return job_; }
  /// The checkpoint from which the current attempt begins; null: none.
  [[nodiscard]] const checkpoint::OpenCheckpoint* resumed() const noexcept { return resumed_.get(); }
  /// Steps done before the current attempt.
  [[nodiscard]] std::int64_t first_step() const;

  /// Shows a line to the person.
  using Tell = std::function<void(std::string_view line)>;

  /// Whether another attempt follows the current one, which ended with `result`. `has_begun`: the attempt reached its
  /// steps. If an attempt ended because its checkpoint is damaged, the next one begins from the checkpoint before;
  /// finding that out means reading the checkpoint.
  [[nodiscard]] bool goes_on_after(const launch::LaunchResult& result, bool has_begun, const Tell& tell);
  /// Makes the next attempt the current one. Writes the failed attempt's summary to its folder, `record`. Returns a
  /// line for the person. REQUIRES: goes_on_after() returned true, and no rank runs. Throws Error{io}.
  [[nodiscard]] std::string begin_next(Run& run, const std::filesystem::path& record, const metrics::Summary& failed);

  /// Adds the earlier attempts to the run's summary, and why no other attempt follows. If the run was asked to stop
  /// between two attempts, its status becomes "stopped".
  void conclude(metrics::Summary& summary) const;
  /// Notes why another attempt could not be begun.
  void give_up(const std::string& why) { given_up_ = "the ranks could not be started again: " + why; }

 private:
  [[nodiscard]] bool choose_another(const launch::LaunchResult& result, bool has_begun, const Tell& tell);
  /// Whether a person has named exactly the checkpoint from which the attempt began.
  [[nodiscard]] bool is_named() const noexcept;
  [[nodiscard]] bool is_damaged(const Tell& tell) const;
  [[nodiscard]] static bool is_sound(const checkpoint::OpenCheckpoint& opened);
  void set_damaged_aside();
  void choose_next(const launch::RootCause& cause, bool has_begun);

  job::Job job_;                                             ///< the job of the current attempt
  std::shared_ptr<const checkpoint::OpenCheckpoint> first_;  ///< from which the run continues; null: none
  std::shared_ptr<const checkpoint::OpenCheckpoint> resumed_;
  job::Job next_job_;
  std::shared_ptr<const checkpoint::OpenCheckpoint> next_;
  std::vector<metrics::Attempt> failed_;
  std::vector<std::string> set_aside_;   ///< for people: checkpoints set aside because of the last failure
  std::vector<std::string> unreadable_;  ///< why newer checkpoints than the next attempt's cannot be read
  std::optional<int> blamed_;            ///< the rank that failed last; nothing if a checkpoint was the reason
  int stop_signal_ = 0;                  ///< the signal that asked to stop between two attempts
  launch::RootCause cause_;              ///< of the last failure
  std::string first_cause_;              ///< of the first failure since the last checkpoint
  std::int64_t without_progress_ = 0;    ///< failures since the last checkpoint
  std::string given_up_;                 ///< why no other attempt follows; "": nothing to say
};

/// The option of the command `rank` for the checkpoint from which the run continues.
inline constexpr const char* resume_option = "resume";

/// The option of the command `rank` for the time at which the run must end, in seconds since 1970.
inline constexpr const char* ends_by_option = "ends-by";

/// The option of the command `rank` for the launcher's standard input and output, separated by a comma.
inline constexpr const char* standard_option = "standard";

/// Runs a job of several ranks: starts a process for each, shows their progress as one, and merges their reports. A
/// rank that fails ends the job: the summary then has status "failed", the exit code and the root cause. With [job]
/// restarts, Attempts decides whether the ranks are started again instead. `dataset` is loaded, and the ranks
/// inherit it; null if the job has no data. `resumed`: the checkpoint from which the run continues; null: none. `words`
/// are appended to the command `rank JOB.ini` of each process.
[[nodiscard]] metrics::Summary run_ranks(const job::Job& job, const RunSettings& settings, const data::Dataset* dataset,
                                         std::shared_ptr<const checkpoint::OpenCheckpoint> resumed,
                                         std::vector<std::string> words = {});

}  // namespace shardrun::run
