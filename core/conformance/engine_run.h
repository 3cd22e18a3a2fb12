#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/compile/engine.h"
#include "core/conformance/engine_member.h"
#include "core/conformance/engine_ranks.h"
#include "plugins/loader/engine.h"

namespace shardrun::conformance {

/// The element of a parameter with this index in the whole.
using ValueOf = std::function<float(const std::string& name, std::int64_t index)>;
[[nodiscard]] float usual_value(const std::string& name, std::int64_t index);

/// Floats with a margin on both sides that nobody may write.
class GuardedFloats {
 public:
  explicit GuardedFloats(std::int64_t count);
  [[nodiscard]] float* data() noexcept { return all_.data() + margin; }
  [[nodiscard]] std::int64_t size() const noexcept { return static_cast<std::int64_t>(all_.size() - 2 * margin); }
  [[nodiscard]] bool is_intact() const;

 private:
  static constexpr std::size_t margin = 64;
  std::vector<float> all_;
};

/// Whole parameters, or gradients, by name.
using WholeValues = std::map<std::string, std::vector<float>>;

/// An engine's rank at work. All ranks below `n` make one at the same point and call it alike.
class EngineRun {
 public:
  /// `place`: a name that no other run has.
  EngineRun(EngineMember& member, std::uint32_t n, const std::string& place, const ValueOf& values = usual_value);

  /// This rank's rows of the samples.
  [[nodiscard]] std::vector<float> inputs(std::int64_t rows) const;
  /// The predictions for so many samples, whole.
  [[nodiscard]] std::vector<float> predict(std::int64_t rows);
  /// Those of this rank.
  [[nodiscard]] const std::vector<float>& own_predictions() const noexcept { return predictions_; }
  /// After predict(): the gradients of a weighted sum of the predictions, whole. Throws Failure where copies differ.
  [[nodiscard]] WholeValues differentiate();
  /// That weighted sum.
  [[nodiscard]] static double weighted_sum(const std::vector<float>& predictions);

  void load(const WholeValues& tensors);
  /// The parameters as they are in memory, whole.
  [[nodiscard]] WholeValues parameters();

  [[nodiscard]] plugins::EngineInstance& instance() noexcept { return *instance_; }
  [[nodiscard]] const compile::JobEngine& job() const noexcept { return job_; }

 private:
  [[nodiscard]] WholeValues whole(std::vector<GuardedFloats>& parts);
  void require_intact() const;

  compile::JobEngine job_;
  StoreRanks ranks_;
  std::vector<GuardedFloats> parameters_;
  std::vector<GuardedFloats> gradients_;
  std::unique_ptr<plugins::EngineInstance> instance_;
  std::vector<float> predictions_;
  std::int64_t rows_ = 0;
};

}  // namespace shardrun::conformance
