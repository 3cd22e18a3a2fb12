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

/// "NaN", "infinite", or where the value itself is finite "not finite on another rank".
[[nodiscard]] const char* non_finite_text(double value) noexcept;

/// Why a validation loss is not finite.
struct NonFiniteEvaluation {
  std::string first;  ///< the first tensor that is not finite, with its rank; in words
  bool is_parameter = false;
};

/// Runs the steps of a training job on one rank, by a model's functions or an engine. All ranks make the same calls.
class Trainer {
 public:
  Trainer() = default;
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  virtual ~Trainer() = default;

  /// Called once, after the ranks are connected. Sets every state to its first values.
  virtual void initialize() = 0;
  /// Called after initialize(), and after the states got their values of then: the first step is the one after `first`.
  /// An engine begins at the start.
  virtual void begin_at(const checkpoint::Position& /*first*/) {}
  /// Runs one optimizer step, counted from 0. Throws Error{numerics}, with the step counted from 1 as in metrics.jsonl:
  ///  - if loss or gradients are not finite;
  ///  - if the loss is negative, but its op is never negative.
  [[nodiscard]] virtual StepResult step(std::int64_t step) = 0;

  /// The first microbatch of the next step is computed twice, and the results compared: see Executor::run_twice(). The
  /// step throws Error{damaged} if they differ.
  virtual void replay_next() {}

  /// Whether end() waits for a device while begin() has given it the work of the next step. Then an update whose loss
  /// or gradient norm is not finite changes nothing, and neither do the updates after it.
  [[nodiscard]] virtual bool is_late() const noexcept { return false; }
  /// In place of step(): gives the device the work of a step, and later gets its result. At most two steps are under
  /// way; end() is of the older.
  virtual void begin(std::int64_t /*step*/) {}
  [[nodiscard]] virtual StepResult end(std::int64_t step) { return this->step(step); }

  // The two parts of a step, for a caller that checks the results itself. Each also sets the state that it returns:
  // `loss` or `gradient_norm`.

  /// Returns the loss of the step's batch.
  [[nodiscard]] virtual double differentiate(std::int64_t step) = 0;
  /// Returns the gradient's norm.
  [[nodiscard]] virtual double update(std::int64_t step) = 0;

  /// Ends the training. Returns whether that changed a state.
  virtual bool finish() = 0;
  /// Mean loss over all windows of the validation part, also in the state `loss`; nothing if there are none. `now_at`
  /// is called at the start of each batch, with its number from 1 and the number of batches. If it returns false, the
  /// evaluation ends with nothing.
  [[nodiscard]] virtual std::optional<double> evaluate(
      const std::function<bool(std::int64_t batch, std::int64_t batches)>& now_at = {}) = 0;
  /// Called on all ranks after evaluate() returned a number that is not finite. Finds out why.
  [[nodiscard]] virtual NonFiniteEvaluation why_not_finite(std::int64_t step) = 0;
  /// Compares the states that several ranks hold. Throws Error{numerics} on all ranks. `step`: number of steps done.
  virtual void check_copies(std::int64_t /*step*/) {}
  /// Whether `here` is true on this rank or, if tensors vary between ranks, on any rank. All ranks call it at the same
  /// point.
  [[nodiscard]] virtual bool anywhere(bool here) const = 0;
  /// Whether a loss is below zero by more than rounding although it is never negative. Then it was computed from wrong
  /// data or parameters.
  [[nodiscard]] virtual bool is_impossible(double loss) const noexcept = 0;
  [[nodiscard]] virtual runtime::Executor& executor() noexcept = 0;
};

}  // namespace shardrun::train
