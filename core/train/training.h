#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/compile/compile.h"
#include "core/device/device.h"
#include "core/job/job.h"
#include "core/runtime/executor.h"
#include "core/train/rank_link.h"
#include "core/train/trainer.h"

namespace shardrun::train {

/// The function RankLink::agree. All ranks call it at the same point.
using Agree = std::function<std::int32_t(std::int32_t value, std::int32_t most)>;

/// The function RankLink::made_of_all.
using MadeOfAll =
    std::function<std::string(std::string_view name, const std::string& given,
                              const std::function<std::string(const std::vector<std::string>& of_ranks)>& make)>;

/// Runs the steps of a compiled training job. Results depend only on the job and the arena's state, not on time or the
/// number of threads.
class Training final : public Trainer {
 public:
  /// `job` and `compiled` outlive this object. `agree`, `made_of_all`: can be empty with one rank. REQUIRES: a dataset.
  Training(const job::Job& job, const compile::Compiled& compiled, Agree agree = {}, MadeOfAll made_of_all = {});

  void initialize() override;
  void begin_at(const checkpoint::Position& first) override;

  /// Runs one optimizer step, counted from 0. Throws Error{numerics}, which counts the step from 1 as in metrics.jsonl:
  ///  - if loss or gradients are not finite; the error names the first tensor that is not finite;
  ///  - if the loss is negative although its op is never negative.
  /// After an error about a loss that is not finite, the parameters have the values from before the step.
  [[nodiscard]] StepResult step(std::int64_t step) override;
  void replay_next() override { replays_ = true; }
  [[nodiscard]] bool is_late() const noexcept override { return late_; }
  void begin_step(std::int64_t step) override;
  [[nodiscard]] StepResult end_step(std::int64_t step) override;

  [[nodiscard]] double differentiate(std::int64_t step) override;
  /// Also runs the strategy's hook after_step if it is due, and always after the job's last step.
  [[nodiscard]] double update(std::int64_t step) override;

  [[nodiscard]] bool anywhere(bool here) const override { return varies_ ? agreed(here ? 1 : 0, 1) > 0 : here; }

  /// Ends the training: runs the hook after_step if steps were done since its last run. Returns whether it ran.
  bool finish() override;

  [[nodiscard]] std::optional<double> evaluate(
      const std::function<bool(std::int64_t batch, std::int64_t batches)>& now_at = {}) override;
  [[nodiscard]] NonFiniteEvaluation why_not_finite(std::int64_t step) override;
  [[nodiscard]] bool is_impossible(double loss) const noexcept override;
  [[nodiscard]] runtime::Executor& executor() noexcept override { return executor_; }

 private:
  /// Numbers of a step that the host reads. Two steps can be in flight, so each number has two slots (Executor::keep).
  enum class Number : std::uint8_t { loss, gradient_norm, loss_count };
  [[nodiscard]] static std::size_t slot_of(Number number, std::int64_t step) noexcept {
    return 2 * static_cast<std::size_t>(number) + static_cast<std::size_t>(step % 2);
  }
  static_assert(RankLink::first_slot == 6);
  [[nodiscard]] bool can_be_late() const;
  /// Enqueue the work of differentiate() and of update().
  void run_microbatches(std::int64_t step);
  void run_update(std::int64_t step);
  [[nodiscard]] double read_kept(std::string_view state, std::size_t slot) const;
  void check_loss(std::int64_t step, double loss);
  void check_norm(std::int64_t step, const StepResult& result);
  /// Runs the calls of one program; its call 0 is microbatch `first`. If `checked`, stores the first result that is not
  /// finite in `bad`.
  void micro(std::int64_t step, std::size_t program, std::size_t first, bool checked,
             std::optional<runtime::NonFiniteResult>& bad);
  /// Fills the inputs and `scalars_` for the calls of one program. Arguments are those of micro().
  void feed(std::int64_t step, std::size_t program, std::size_t first);
  void run_twice(std::int64_t step, std::size_t program, std::size_t first);
  /// Finds the first tensor that is not finite on any rank, and describes it and its place. Checks the parameters
  /// first; then runs the step again and checks every result.
  [[nodiscard]] std::string first_bad_tensor(std::int64_t step);
  [[nodiscard]] double read_scalar(std::string_view state) const;
  /// The loss in the states; if the model has loss counts, the sum divided by the count.
  [[nodiscard]] double read_loss() const;
  /// Runs call number `call` of the evaluation. If `checked`, stores the first result that is not finite in `bad`.
  void evaluate_call(std::size_t call, std::int64_t first, bool checked, std::optional<runtime::NonFiniteResult>& bad);
  /// Describes the first tensor of all ranks, by NonFiniteResult::order, that is not finite, with its rank and batch;
  /// "" if no rank found one. `bad`: what this rank found. `batch`: the word "microbatch" or "batch", and `first` the
  /// number of call 0. `key`: identifies this search, the same on all ranks.
  [[nodiscard]] std::string place_of_first(const std::optional<runtime::NonFiniteResult>& bad, const std::string& key,
                                           std::string_view batch, std::size_t first) const;
  [[nodiscard]] std::int32_t agreed(std::int32_t value, std::int32_t most) const {
    return agree_ ? agree_(value, most) : value;
  }
  /// The first state of this kind that is not finite in some rank's part, or null.
  [[nodiscard]] const graph::State* bad_state(graph::StateKind kind) const;

  const job::Job& job_;
  const compile::Compiled& compiled_;
  const Agree agree_;
  const MadeOfAll made_of_all_;
  runtime::Executor executor_;
  std::vector<std::size_t> micro_programs_;
  std::vector<std::size_t> evaluate_programs_;
  std::size_t update_program_;
  checkpoint::Position first_;                ///< the position at which the run begins
  const graph::Op* positive_loss_ = nullptr;  ///< the op of the losses, if it is never negative
  bool has_counts_ = false;                   ///< the loss has counts of its own
  bool varies_ = false;                       ///< some tensor varies between ranks; then loss and norm do, too
  bool late_ = false;                         ///< the same on all ranks
  std::array<device::Event, 2> marks_;        ///< mark the ends of the steps in flight
  std::optional<std::size_t> after_step_program_;
  std::optional<std::int64_t> unmet_step_;  ///< the last step, if the hook has not run since then
  bool replays_ = false;                    ///< the next microbatch is computed twice
  std::vector<device::Scalars> scalars_;    ///< per call of a program
};

}  // namespace shardrun::train
