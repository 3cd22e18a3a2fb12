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

/// A process of a check, as a rank with an engine.
class EngineMember final : public Peer {
 public:
  /// `settings`: "key=value" for options of the engine and for sizes of data (is_data_setting()).
  EngineMember(Store& store, const plugins::Directories& directories, std::string engine, std::uint32_t rank,
               std::vector<std::string> settings);
  ~EngineMember();

  /// The engine under test. The first call opens it.
  [[nodiscard]] const plugins::Engine& engine();
  /// Opens another instance of the engine.
  [[nodiscard]] plugins::Engine open_another() const;

  /// The numbers of ranks, up to engine_members, for which the engine accepts a small job. Throws Failure if none.
  [[nodiscard]] const std::vector<std::uint32_t>& sizes();
  /// A job with `n` ranks, and the parameters of each rank. REQUIRES: `n` is in sizes().
  [[nodiscard]] compile::JobEngine job_on(std::uint32_t n);
  [[nodiscard]] plugins::EngineDeclaration declare(const plugins::Engine& engine, std::uint32_t rank, std::uint32_t n);
  /// The collectives of the ranks below `n`, as in a job, over the default transport of jobs. All these ranks must make
  /// the first call at the same point.
  [[nodiscard]] runtime::ArrayCollectives& ranks(std::uint32_t n);

 private:
  struct JobRanks;

  void find_job();

  const plugins::Directories& directories_;
  std::string name_;
  std::vector<std::string> settings_;
  std::optional<plugins::Engine> engine_;
  plugins::EngineRequest request_;  ///< the request that the engine accepted
  std::vector<std::uint32_t> sizes_;
  runtime::ArrayCollectives alone_{nullptr, 0, 1, true};
  std::map<std::uint32_t, std::unique_ptr<JobRanks>> ranks_;  ///< collectives, by the number of ranks
};

/// Returns the value of element `index` of a whole parameter.
using ValueOf = std::function<float(const std::string& name, std::int64_t index)>;
[[nodiscard]] float usual_value(const std::string& name, std::int64_t index);

/// Floats between two guards. The engine must not write to the guards.
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

/// The values of whole parameters, or of their gradients, by the parameter's name.
using WholeValues = std::map<std::string, std::vector<float>>;

/// A running engine on this rank. All ranks below `n` must create one at the same point and make the same calls.
class EngineRun {
 public:
  EngineRun(EngineMember& member, std::uint32_t n, const ValueOf& values = usual_value);

  /// The inputs of this rank's rows of a batch of `rows` samples.
  [[nodiscard]] std::vector<float> inputs(std::int64_t rows) const;
  /// Predicts `rows` samples. Returns the predictions of all ranks, joined.
  [[nodiscard]] std::vector<float> predict(std::int64_t rows);
  /// The predictions that this rank computed in the last call.
  [[nodiscard]] const std::vector<float>& own_predictions() const noexcept { return predictions_; }
  /// The whole gradients of weighted_sum() of the last predictions. REQUIRES: predict() was called. Throws Failure if
  /// copies on different ranks differ.
  [[nodiscard]] WholeValues differentiate();
  /// The sum of the predictions, each multiplied by a fixed weight.
  [[nodiscard]] static double weighted_sum(const std::vector<float>& predictions);

  void load(const WholeValues& tensors);
  /// Computes step `number`. Step 0 starts from the states of a new run.
  void step(std::int64_t number);
  /// The whole parameters, read from memory.
  [[nodiscard]] WholeValues parameters();
  /// Ends the engine. This must be the last call. Throws Error{plugin} if the engine has sent or asked for messages
  /// without waiting for them.
  void end();

  [[nodiscard]] plugins::EngineInstance& instance() noexcept { return *instance_; }
  [[nodiscard]] const compile::JobEngine& job() const noexcept { return job_; }

 private:
  /// Joins the numbers that each rank has, in the order of the ranks.
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
