#pragma once

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

namespace shardrun::train {

struct StepResult {
  double loss = 0;
  double gradient_norm = 0;
  double learning_rate = 0;
};

/// The largest of what all ranks give, to each of them; all call it at the same point.
using Agree = std::function<std::int32_t(std::int32_t)>;

/// As RankLink::made_of_all.
using MadeOfAll =
    std::function<std::string(std::string_view name, const std::string& given,
                              const std::function<std::string(const std::vector<std::string>& of_ranks)>& make)>;

/// Steps a compiled training job. What it computes depends on the job alone: not on time, threads or what came before
/// beside the arena's state.
class Training {
 public:
  /// REQUIRES: compiled.dataset, which with the job must outlive this. `agree`, `made_of_all`: empty where there is one
  /// rank.
  Training(const job::Job& job, const compile::Compiled& compiled, Agree agree = {}, MadeOfAll made_of_all = {});

  /// Every state's first values.
  void initialize();

  /// One optimizer step. Throws Error{numerics} with the step (counted from 1, as in metrics.jsonl) when the loss is
  /// below zero and its op cannot give that, and with the first bad tensor when loss or gradients are not finite; the
  /// parameters are then as they were before the step if the loss was bad.
  [[nodiscard]] StepResult step(std::int64_t step);

  // The two parts of a step, which checks what they return: the loss, then the gradient's norm. The strategy's hook
  // after_step belongs to the second; after the job's last step it is run in any case.
  [[nodiscard]] double differentiate(std::int64_t step);
  [[nodiscard]] double update(std::int64_t step);

  /// Whether it is so on this rank; of ranks with tensors of their own, on any. All of these call it at the same point.
  [[nodiscard]] bool anywhere(bool here) const { return varies_ ? agreed(here ? 1 : 0) > 0 : here; }

  /// Runs the hook where steps have been done since it was run last: this is the end. Whether it has run it.
  bool finish();

  /// Mean loss over all windows of the validation part; nothing where there are none. `now_at` is told which batch of
  /// how many is begun, from 1 on.
  [[nodiscard]] std::optional<double> evaluate(
      const std::function<bool(std::int64_t batch, std::int64_t batches)>& now_at = {});

  /// Whether a loss is below zero by more than rounding, and of an op whose results never are: then it was not computed
  /// from the data and the parameters that it should be.
  [[nodiscard]] bool is_impossible(double loss) const noexcept;

  [[nodiscard]] runtime::Executor& executor() noexcept { return executor_; }

 private:
  /// The calls of one program, the first of which is microbatch `first`.
  void micro(std::int64_t step, std::size_t program, std::size_t first, bool checked,
             std::optional<runtime::BadResult>& bad);
  [[nodiscard]] std::string first_bad_tensor(std::int64_t step);
  [[nodiscard]] double read_scalar(std::string_view state) const;
  /// The place of the first tensor that is not finite, of what all ranks have found; "" where none has found any.
  /// `first`: the microbatch of call 0.
  [[nodiscard]] std::string place_of_first(const std::optional<runtime::BadResult>& bad, std::int64_t step,
                                           std::size_t first) const;
  [[nodiscard]] std::int32_t agreed(std::int32_t value) const { return agree_ ? agree_(value) : value; }
  /// The first in any rank's part of which something is not finite.
  [[nodiscard]] const graph::State* bad_state(graph::StateKind kind) const;

  const job::Job& job_;
  const compile::Compiled& compiled_;
  const Agree agree_;
  const MadeOfAll made_of_all_;
  runtime::Executor executor_;
  std::vector<std::size_t> micro_programs_;
  std::vector<std::size_t> evaluate_programs_;
  std::size_t update_program_;
  const graph::Op* positive_loss_ = nullptr;  ///< the op of the losses, where it never gives less than zero
  bool varies_ = false;                       ///< tensors, so loss and norm too
  std::optional<std::size_t> after_step_program_;
  std::optional<std::int64_t> unmet_step_;  ///< the last one, where the hook has yet to follow it
  std::vector<device::Scalars> scalars_;    ///< of the calls of one program
};

/// One element of a tensor, on either device.
[[nodiscard]] double read_element(const device::TensorView& view, std::int64_t index, std::size_t f32_bytes) noexcept;

}  // namespace shardrun::train
