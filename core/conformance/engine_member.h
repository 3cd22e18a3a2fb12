#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/compile/engine.h"
#include "core/conformance/kinds.h"
#include "core/conformance/peer.h"
#include "core/runtime/array_collectives.h"
#include "plugins/loader/engine.h"

namespace shardrun::conformance {

/// The largest number of ranks with which an engine is checked.
constexpr std::uint32_t engine_members = 4;

/// This process as a rank with an engine.
class EngineMember final : public Peer {
 public:
  /// `settings`: "key=value" for options of the engine, and for sizes of data (is_data_setting).
  EngineMember(Store& store, const plugins::Directories& directories, std::string engine, std::uint32_t rank,
               std::vector<std::string> settings);
  ~EngineMember();

  /// The engine. The first call opens it.
  [[nodiscard]] const plugins::Engine& engine();
  /// Opens another instance.
  [[nodiscard]] plugins::Engine open_another() const;

  /// The numbers of ranks, up to engine_members, with which the engine accepts a small job. Throws Failure if there are
  /// none.
  [[nodiscard]] const std::vector<std::uint32_t>& sizes();
  /// The job with `n` ranks, and the parameters of all of them. REQUIRES: `n` is one of sizes().
  [[nodiscard]] compile::JobEngine job_on(std::uint32_t n);
  [[nodiscard]] plugins::EngineDeclaration declare(const plugins::Engine& engine, std::uint32_t rank, std::uint32_t n);
  /// The collectives of the ranks below `n`, as in a job, over the transport that jobs use by default. The first call
  /// must be made by all those ranks at the same point.
  [[nodiscard]] runtime::ArrayCollectives& ranks(std::uint32_t n);

 private:
  struct JobRanks;

  void find_job();

  const plugins::Directories& directories_;
  std::string name_;
  std::vector<std::string> settings_;
  std::optional<plugins::Engine> engine_;
  plugins::EngineRequest request_;  ///< the request that the engine accepts
  std::vector<std::uint32_t> sizes_;
  runtime::ArrayCollectives alone_{nullptr, 0, 1, true};
  std::map<std::uint32_t, std::unique_ptr<JobRanks>> ranks_;  ///< by the number of ranks
};

/// The value of the element with this index in a whole parameter.
using ValueOf = std::function<float(const std::string& name, std::int64_t index)>;
[[nodiscard]] float usual_value(const std::string& name, std::int64_t index);

/// Floats with guards on both sides, which nobody may write.
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

/// A running engine on this rank. All ranks below `n` make one at the same point and make the same calls.
class EngineRun {
 public:
  EngineRun(EngineMember& member, std::uint32_t n, const ValueOf& values = usual_value);

  /// This rank's rows of the samples.
  [[nodiscard]] std::vector<float> inputs(std::int64_t rows) const;
  /// The whole predictions for `rows` samples.
  [[nodiscard]] std::vector<float> predict(std::int64_t rows);
  /// This rank's part of the last predictions.
  [[nodiscard]] const std::vector<float>& own_predictions() const noexcept { return predictions_; }
  /// After predict(): the whole gradients of weighted_sum(predictions). Throws Failure if copies on different ranks
  /// differ.
  [[nodiscard]] WholeValues differentiate();
  /// The sum of the predictions, each times a fixed weight.
  [[nodiscard]] static double weighted_sum(const std::vector<float>& predictions);

  void load(const WholeValues& tensors);
  /// Computes the step with this number. Step 0 begins with the states of a new run.
  void step(std::int64_t number);
  /// The whole parameters, as they are in memory now.
  [[nodiscard]] WholeValues parameters();
  /// Ends the engine; the last call. Throws Error{plugin} if the engine leaves messages for which it has not waited.
  void end();

  [[nodiscard]] plugins::EngineInstance& instance() noexcept { return *instance_; }
  [[nodiscard]] const compile::JobEngine& job() const noexcept { return job_; }

 private:
  /// Joins the numbers of all ranks, in the order of the ranks.
  [[nodiscard]] std::vector<float> gathered(std::vector<float> own);
  [[nodiscard]] WholeValues whole(std::vector<GuardedFloats>& parts);
  void require_intact() const;

  compile::JobEngine job_;
  runtime::ArrayCollectives& ranks_;
  std::vector<GuardedFloats> parameters_;
  std::vector<GuardedFloats> gradients_;
  std::unique_ptr<plugins::EngineInstance> instance_;
  std::vector<float> predictions_;
  std::int64_t rows_ = 0;
};

using EngineCase = CaseOf<EngineMember, engine_members>;

}  // namespace shardrun::conformance
