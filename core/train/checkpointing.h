#pragma once

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/checkpoint/contents.h"
#include "core/checkpoint/rank_file.h"
#include "core/checkpoint/resume.h"
#include "core/compile/compile.h"
#include "core/device/memory.h"
#include "core/job/job.h"
#include "core/metrics/record.h"
#include "core/runtime/executor.h"
#include "core/train/steps.h"

namespace shardrun::train {

/// How long before [job] time_limit a run must end, learned from the time between earlier calls.
class LeadTime {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// Call it when the first step begins. Time before that, such as the wait for ranks that load data, is not counted.
  void begin(Time now) noexcept { last_look_ = now; }
  /// Call it for each step whose result is read only after later steps began. `seconds`: the step's duration.
  void step_took(double seconds) noexcept;
  /// Returns the seconds to reserve: for a save of `save` seconds, for the time until the next call, for
  /// `steps_to_come` steps, and with `saves_now` for the save that is being written. REQUIRES: begin() was called.
  [[nodiscard]] double look(Time now, double save, bool saves_now, int steps_to_come) noexcept;

 private:
  Time last_look_;
  double longest_away_ = 0;  ///< longest time between two calls of look()
  double longest_step_ = 0;
};

/// One rank's part in saving the checkpoints of a run. All ranks save at the same points. Each writes its own file; the
/// first rank completes the checkpoint once all have written theirs.
class Checkpointing {
 public:
  /// The arguments outlive this object. Allocates the memory for copies.
  Checkpointing(const job::Job& job, const compile::Compiled& compiled, const StepSettings& settings,
                const runtime::Executor& executor, metrics::Record& record);
  Checkpointing(const Checkpointing&) = delete;
  Checkpointing& operator=(const Checkpointing&) = delete;
  ~Checkpointing();

  /// Whether a checkpoint is due after this number of steps.
  [[nodiscard]] bool is_due(std::int64_t steps) const noexcept;
  /// Call begin_steps() when the first step begins, and step_took() for each step whose result is read late; see
  /// LeadTime.
  void begin_steps() noexcept { lead_time_.begin(Clock::now()); }
  void step_took(double seconds) noexcept { lead_time_.step_took(seconds); }
  /// Returns when a checkpoint is due by [checkpoint] minutes, and when the run must end so that it can save before
  /// [job] time_limit. The first rank decides for all; on other ranks neither is ever due. The time to reserve is
  /// learned from the time between calls and from earlier saves. `steps_to_come`: steps that the run still does after
  /// that.
  [[nodiscard]] Due due(int steps_to_come);

  /// Saves the states as they are now. Returns when the caller can change them: after copying them or, without copies
  /// or if `at_end`, once the checkpoint is complete. Waits for an earlier save first. Throws Error{unsaved} on the
  /// first rank if a save failed and [checkpoint] on_failure is stop; Error{damaged}; Error{aborted}.
  void save(const checkpoint::Position& position, bool at_end);
  /// Throws Error{unsaved} on the first rank unless the newest complete checkpoint is of this step.
  void require_whole(std::int64_t step) const;
  /// Reports the outcome of a background save that has ended, once. Throws as save() does. Called between steps.
  void look();
  /// Waits for a save in the background, and reports its outcome. Throws as save() does.
  void await_writer();

  /// The step of the newest complete checkpoint that this run has saved or begun from; -1: none.
  [[nodiscard]] std::int64_t last_whole() const noexcept { return last_whole_; }

 private:
  using Clock = Due::Clock;

  /// Seconds before [job] time_limit at which the run must end; see due().
  [[nodiscard]] double margin(Clock::time_point now, int steps_to_come);

  struct Outcome {
    std::int64_t step = 0;
    std::uint64_t bytes = 0;  ///< of all ranks' files
    double seconds = 0;
    std::string failure;  ///< "" if the checkpoint is complete
    std::string notice;   ///< why an older checkpoint could not be removed, or ""
    bool ended = false;   ///< the job ended during the save, so nothing is to be reported
  };

  /// Calls `take` with the bytes of this rank's file, one part after the other.
  using Stream = std::function<void(const std::function<void(std::span<const std::byte>)>& take)>;

  [[nodiscard]] Outcome write(const checkpoint::Position& position, std::int64_t number, const Stream& stream);
  void write_as_first(const checkpoint::Position& position, const std::string& key, const Stream& stream,
                      Outcome& outcome);
  void write_as_other(const checkpoint::Position& position, const std::string& key, const Stream& stream,
                      Outcome& outcome);
  [[nodiscard]] checkpoint::StoredFile write_own(std::int64_t step, const Stream& stream) const;
  [[nodiscard]] checkpoint::Manifest manifest_of(const checkpoint::Position& position,
                                                 std::vector<checkpoint::StoredFile> files) const;
  /// Removes older checkpoints, as [checkpoint] keep says.
  void remove_old(const std::filesystem::path& root);
  void copy();
  /// A hash of the states that copy() has copied, which shows later changes of that memory;
  /// 0 unless [job] check = states.
  [[nodiscard]] std::uint64_t hash_of_copy() const;
  /// Waits for what another rank publishes under this name. Throws Error{aborted} if this rank's run has failed.
  [[nodiscard]] std::string published(const std::string& name) const;
  void tell(const Outcome& outcome);
  /// Gives the numbers of saved and failed checkpoints to the process that serves [metrics].
  void tell_counts();
  [[nodiscard]] bool is_first() const noexcept;

  const job::Job& job_;
  const compile::Compiled& compiled_;
  const StepSettings& settings_;
  const runtime::Executor& executor_;
  metrics::Record& record_;
  const checkpoint::Contents contents_;
  const checkpoint::RankFile file_;
  checkpoint::RunIdentity run_;
  std::shared_ptr<const device::Memory> snapshot_;  ///< null: steps wait for each save
  std::int64_t saves_ = 0;                          ///< saves begun so far; part of the names in the store
  std::int64_t last_whole_ = -1;
  std::set<std::int64_t> whole_;  ///< steps of complete checkpoints that this run saved or opened; for write()
  Clock::time_point last_begin_ = Clock::now();
  LeadTime lead_time_;
  double longest_save_ = 0;
  std::thread writer_;
  std::atomic<bool> abandoned_ = false;  ///< the run has failed: the writer must end
  std::atomic<bool> written_ = false;    ///< the writer has set outcome_
  std::optional<Outcome> outcome_;
};

/// The position at which the job begins.
[[nodiscard]] checkpoint::Position first_position(const compile::Compiled& compiled);

/// The ranks share the work of checking the files of the checkpoint from which the job continues. Then each gives its
/// own states their values. If a file is damaged, throws Error{data} on all ranks, and no state has changed.
void load_resumed(const job::Job& job, const compile::Compiled& compiled, const runtime::Executor& executor,
                  RankLink& link);

}  // namespace shardrun::train
