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

/// The most ranks that an engine is checked on.
constexpr std::uint32_t engine_members = 4;

/// This process as a rank with an engine.
class EngineMember final : public Peer {
 public:
  /// `settings`: "key=value" for options of the engine, and for sizes of data (is_data_setting).
  EngineMember(Store& store, const plugins::Directories& directories, std::string engine, std::uint32_t rank,
               std::vector<std::string> settings);
  ~EngineMember();

  /// The first call opens it.
  [[nodiscard]] const plugins::Engine& engine();
  /// Opens another instance.
  [[nodiscard]] plugins::Engine open_another() const;

  /// The numbers of ranks, up to engine_members, on which the engine accepts a small job. Throws Failure where there
  /// are none.
  [[nodiscard]] const std::vector<std::uint32_t>& sizes();
  /// The job on so many ranks, with the parameters of all. REQUIRES: it is one of sizes().
  [[nodiscard]] compile::JobEngine job_on(std::uint32_t n);
  [[nodiscard]] plugins::EngineDeclaration declare(const plugins::Engine& engine, std::uint32_t rank, std::uint32_t n);
  /// The collectives of the ranks below `n`, as in a job: over the transport of jobs that name none. Those ranks make
  /// the first call at the same point.
  [[nodiscard]] runtime::ArrayCollectives& ranks(std::uint32_t n);

 private:
  struct JobRanks;

  void find_job();

  const plugins::Directories& directories_;
  std::string name_;
  std::vector<std::string> settings_;
  std::optional<plugins::Engine> engine_;
  plugins::EngineRequest request_;  ///< that it accepts
  std::vector<std::uint32_t> sizes_;
  runtime::ArrayCollectives alone_{nullptr, 0, 1, true};
  std::map<std::uint32_t, std::unique_ptr<JobRanks>> ranks_;  ///< by their number
};

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
  EngineRun(EngineMember& member, std::uint32_t n, const ValueOf& values = usual_value);

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
  /// Computes the step with this number; the first, 0, begins at the states of a run's start.
  void step(std::int64_t number);
  /// The parameters as they are in memory, whole.
  [[nodiscard]] WholeValues parameters();
  /// The last call. Throws Error{plugin} if the engine leaves messages for which it has not waited.
  void end();

  [[nodiscard]] plugins::EngineInstance& instance() noexcept { return *instance_; }
  [[nodiscard]] const compile::JobEngine& job() const noexcept { return job_; }

 private:
  /// The numbers of all ranks, in their order.
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
