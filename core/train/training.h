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

/// Returns the largest of all ranks' values to each rank. All ranks call it at the same point.
using Agree = std::function<std::int32_t(std::int32_t value, std::int32_t most)>;

/// See RankLink::made_of_all.
using MadeOfAll =
    std::function<std::string(std::string_view name, const std::string& given,
                              const std::function<std::string(const std::vector<std::string>& of_ranks)>& make)>;

/// Runs the steps of a compiled training job. Results depend only on the job and the arena's state, not on time or the
/// number of threads.
class Training final : public Trainer {
 public:
  /// REQUIRES: compiled.dataset is set; `job` and `compiled` outlive this. `agree`, `made_of_all`: empty with one rank.
  Training(const job::Job& job, const compile::Compiled& compiled, Agree agree = {}, MadeOfAll made_of_all = {});

  void initialize() override;
  void begin_at(const checkpoint::Position& first) override;

  /// Runs one optimizer step, counted from 0. Throws Error{numerics}, with the step counted from 1 as in metrics.jsonl:
  ///  - if loss or gradients are not finite: with the first tensor that is not finite;
  ///  - if the loss is negative, but its op is never negative.
  /// After an error about a loss that is not finite, the parameters are those before the step.
  [[nodiscard]] StepResult step(std::int64_t step) override;
  void replay_next() override { replays_ = true; }
  [[nodiscard]] bool is_late() const noexcept override { return late_; }
  void begin(std::int64_t step) override;
  [[nodiscard]] StepResult end(std::int64_t step) override;

  [[nodiscard]] double differentiate(std::int64_t step) override;
  /// Also runs the strategy's hook after_step if it is due, and always after the job's last step.
  [[nodiscard]] double update(std::int64_t step) override;

  [[nodiscard]] bool anywhere(bool here) const override { return varies_ ? agreed(here ? 1 : 0, 1) > 0 : here; }

  /// Ends the training: runs the hook after_step if steps were done since it last ran. Returns whether it ran.
  bool finish() override;

  [[nodiscard]] std::optional<double> evaluate(
      const std::function<bool(std::int64_t batch, std::int64_t batches)>& now_at = {}) override;
  [[nodiscard]] NonFiniteEvaluation why_not_finite(std::int64_t step) override;
  [[nodiscard]] bool is_impossible(double loss) const noexcept override;
  [[nodiscard]] runtime::Executor& executor() noexcept override { return executor_; }

 private:
  /// Numbers that the host reads of a step, each in a slot (Executor::keep) of its own. Two steps may be under way.
  enum class Number : std::uint8_t { loss, gradient_norm, loss_count };
  [[nodiscard]] static std::size_t slot_of(Number number, std::int64_t step) noexcept {
    return 2 * static_cast<std::size_t>(number) + static_cast<std::size_t>(step % 2);
  }
  static_assert(RankLink::first_slot == 6);
  [[nodiscard]] bool can_be_late() const;
  /// Gives the device the work of differentiate() and of update().
  void run_microbatches(std::int64_t step);
  void run_update(std::int64_t step);
  [[nodiscard]] double read_kept(std::string_view state, std::size_t slot) const;
  void check_loss(std::int64_t step, double loss);
  void check_norm(std::int64_t step, const StepResult& result);
  /// Runs the calls of one program; call 0 is microbatch `first`. If `checked`, `bad` becomes the first result that is
  /// not finite.
  void micro(std::int64_t step, std::size_t program, std::size_t first, bool checked,
             std::optional<runtime::NonFiniteResult>& bad);
  /// Fills the inputs and `scalars_` of the calls of one program; as micro().
  void feed(std::int64_t step, std::size_t program, std::size_t first);
  void run_twice(std::int64_t step, std::size_t program, std::size_t first);
  /// Finds the first tensor that is not finite, on any rank, and names it with its place. Checks the parameters first;
  /// then runs the step again and checks every result.
  [[nodiscard]] std::string first_bad_tensor(std::int64_t step);
  [[nodiscard]] double read_scalar(std::string_view state) const;
  /// The loss that the states have: a sum by its count, where the model counts.
  [[nodiscard]] double read_loss() const;
  /// The call of the evaluation with this number. If `checked`, `bad` is as of micro().
  void evaluate_call(std::size_t call, std::int64_t first, bool checked, std::optional<runtime::NonFiniteResult>& bad);
  /// Names the first tensor of all ranks, by NonFiniteResult::order, that is not finite, with its rank and batch; "" if
  /// no rank found one. `bad`: found by this rank. `batch`: "microbatch", and `first` the number of call 0. `key`: of
  /// this search, the same on all ranks.
  [[nodiscard]] std::string place_of_first(const std::optional<runtime::NonFiniteResult>& bad, const std::string& key,
                                           std::string_view batch, std::size_t first) const;
  [[nodiscard]] std::int32_t agreed(std::int32_t value, std::int32_t most) const {
    return agree_ ? agree_(value, most) : value;
  }
  /// The first state of this kind that is not finite in any rank's part, or null.
  [[nodiscard]] const graph::State* bad_state(graph::StateKind kind) const;

  const job::Job& job_;
  const compile::Compiled& compiled_;
  const Agree agree_;
  const MadeOfAll made_of_all_;
  runtime::Executor executor_;
  std::vector<std::size_t> micro_programs_;
  std::vector<std::size_t> evaluate_programs_;
  std::size_t update_program_;
  checkpoint::Position first_;                ///< where the run begins
  const graph::Op* positive_loss_ = nullptr;  ///< the op of the losses, if it is never negative
  bool has_counts_ = false;                   ///< whether the loss has counts of its own
  bool varies_ = false;                       ///< whether any tensor varies between ranks; then loss and norm do too
  bool late_ = false;                         ///< the same on all ranks
  std::array<device::Event, 2> marks_;        ///< the ends of the steps under way
  std::optional<std::size_t> after_step_program_;
  std::optional<std::int64_t> unmet_step_;  ///< the last step, if the hook has not run since
  bool replays_ = false;                    ///< the next microbatch is computed twice
  std::vector<device::Scalars> scalars_;    ///< per call of a program
};

}  // namespace shardrun::train
