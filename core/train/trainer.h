#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "core/checkpoint/resume.h"
#include "core/runtime/executor.h"

namespace shardrun::train {

struct StepResult {
  double loss = 0;
  double gradient_norm = 0;
  double learning_rate = 0;
};

/// "NaN", "infinite" or, if the value itself is finite, "not finite on another rank".
[[nodiscard]] const char* non_finite_text(double value) noexcept;

/// Why a validation loss is not finite.
struct NonFiniteEvaluation {
  std::string first;  ///< the first tensor that is not finite, with its rank; in words
  bool is_parameter = false;
};

/// Runs the steps of a training job on one rank, with a model's functions or an engine. All ranks make the same calls.
class Trainer {
 public:
  Trainer() = default;
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  virtual ~Trainer() = default;

  /// Called once, after the ranks are connected. Sets every state to its first values.
  virtual void initialize() = 0;
  /// Called after initialize(), and after a checkpoint's values were loaded, if any. The first step is the one after
  /// `first`. Engines do not need it.
  virtual void begin_at(const checkpoint::Position& /*first*/) {}
  /// Runs one optimizer step, counted from 0. Throws Error{numerics}, which counts the step from 1 as in metrics.jsonl:
  ///  - if loss or gradients are not finite;
  ///  - if the loss is negative although its op is never negative.
  [[nodiscard]] virtual StepResult step(std::int64_t step) = 0;

  /// Computes the first microbatch of the next step twice, and compares the results: see Executor::run_twice(). The
  /// step throws Error{damaged} if they differ.
  virtual void replay_next() {}

  /// Whether begin_step() and end_step() are used: end_step() then waits for a step after begin_step() has enqueued the
  /// next one. An update whose loss or gradient norm is not finite then changes nothing, and neither do later updates.
  [[nodiscard]] virtual bool is_late() const noexcept { return false; }
  /// Used instead of step(): begin_step() enqueues the work of a step, and end_step() later gets its result. At most
  /// two steps are in flight; end_step() ends the older one.
  virtual void begin_step(std::int64_t /*step*/) {}
  [[nodiscard]] virtual StepResult end_step(std::int64_t step) { return this->step(step); }

  // The two parts of a step, for a caller that checks the results itself. Each also stores what it returns in a state:
  // `loss` or `gradient_norm`.

  /// Returns the loss of the step's batch.
  [[nodiscard]] virtual double differentiate(std::int64_t step) = 0;
  /// Returns the gradient's norm.
  [[nodiscard]] virtual double update(std::int64_t step) = 0;

  /// Ends the training. Returns whether this changed a state.
  virtual bool finish() = 0;
  /// The mean loss over all windows of the validation part, also stored in the state `loss`; nothing if there are none.
  /// `now_at` is called at the start of each batch, with its number from 1 and the number of batches. If it returns
  /// false, the evaluation ends and returns nothing.
  [[nodiscard]] virtual std::optional<double> evaluate(
      const std::function<bool(std::int64_t batch, std::int64_t batches)>& now_at = {}) = 0;
  /// Finds out why evaluate() returned a number that is not finite. Called on all ranks.
  [[nodiscard]] virtual NonFiniteEvaluation why_not_finite(std::int64_t step) = 0;
  /// For engines: compares the copies of each parameter that several ranks hold, and throws Error{numerics} on all
  /// ranks if copies differ. `step`: number of steps done.
  virtual void check_copies(std::int64_t /*step*/) {}
  /// Whether `here` is true on this rank or, if tensors vary between ranks, on any. All ranks call it at
  /// the same point.
  [[nodiscard]] virtual bool anywhere(bool here) const = 0;
  /// Whether a loss is negative by more than rounding although it never should be. Then it was computed from wrong data
  /// or parameters.
  [[nodiscard]] virtual bool is_impossible(double loss) const noexcept = 0;
  [[nodiscard]] virtual runtime::Executor& executor() noexcept = 0;
};

}  // namespace shardrun::train
