#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/compile/compile.h"
#include "core/train/rank_link.h"
#include "core/train/running_engine.h"
#include "core/train/trainer.h"

namespace shardrun::train {

/// Trains an engine: feeds it this rank's samples, computes the loss of its predictions and that loss's gradient, adds
/// up the gradients that it returns for the microbatches, and steps the optimizer on the parameters in the arena.
class EngineTraining final : public Trainer {
 public:
  /// REQUIRES: compiled.engine and compiled.dataset are set. The arguments outlive this object.
  EngineTraining(const job::Job& job, const compile::Compiled& compiled, RankLink& link);

  void initialize() override;
  [[nodiscard]] StepResult step(std::int64_t step) override;
  [[nodiscard]] double differentiate(std::int64_t step) override;
  [[nodiscard]] double update(std::int64_t step) override;
  /// Throws Error{plugin} if the engine has started messages for which it has not waited.
  bool finish() override;
  [[nodiscard]] std::optional<double> evaluate(
      const std::function<bool(std::int64_t batch, std::int64_t batches)>& now_at = {}) override;
  [[nodiscard]] NonFiniteEvaluation why_not_finite(std::int64_t step) override;
  void check_copies(std::int64_t step) override;
  [[nodiscard]] bool anywhere(bool here) const override { return here; }  // the sums are the same on all ranks
  [[nodiscard]] bool is_impossible(double loss) const noexcept override;
  [[nodiscard]] runtime::Executor& executor() noexcept override { return executor_; }

 private:
  /// Samples that follow one another: a batch or a part of one, on all ranks together.
  struct Samples {
    std::int64_t first = 0;  ///< global number of the first row's sample
    std::int64_t rows = 0;   ///< number of rows on all ranks
    bool trains = false;
  };

  /// Fills `inputs_` and `targets_` with this rank's rows. Returns their number.
  std::int64_t feed(const Samples& samples);
  /// Calls forward. Returns whether this rank has predictions.
  bool predict(std::int64_t rows);
  /// Runs `program`, which adds the predictions' loss to the state `loss`; `micro` also computes its gradient.
  void add_loss(std::size_t program, bool is_first);
  void backward(const plugins::ArrayView& gradient, bool is_first);
  void microbatch(const Samples& samples, bool is_first);
  /// Returns the loss over all ranks, and stores it in `loss`. Sums `more` over the ranks. Throws Error{plugin}.
  [[nodiscard]] double loss_of_all(std::vector<double>& more);
  [[nodiscard]] double hash_of(const plugins::EngineParameter& parameter) const;
  [[nodiscard]] double squares_of_gradients();
  [[nodiscard]] double read_scalar(std::string_view state) const;
  void write_scalar(std::string_view state, double value) const;
  [[nodiscard]] std::string first_bad_gradient() const;

  const job::Job& job_;
  const compile::Compiled& compiled_;
  const compile::JobEngine& engine_;
  RankLink& link_;
  runtime::Executor executor_;
  std::optional<RunningEngine> running_;
  std::vector<plugins::NamedArray> gradients_;  ///< views of the arena
  std::vector<std::vector<float>> latest_;      ///< gradients of a microbatch; the first one uses `gradients_`
  std::vector<float> inputs_;
  std::vector<std::byte> targets_;
  std::vector<float> predictions_;
  bool has_losses_ = false;  ///< this rank has added to the state `loss` since it was last read
};

}  // namespace shardrun::train
