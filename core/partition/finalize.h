#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "core/partition/emitter.h"
#include "core/partition/hook_steps.h"
#include "core/partition/lower.h"

namespace shardrun::partition {

/// Emits the collectives that finalize a function's buckets. Each starts as soon as its bucket is complete, while the
/// rest is computed.
class Finalizer {
 public:
  /// `complete_at`: the step after which a state is written no more. REQUIRES: the arguments outlive this.
  Finalizer(const LowerSettings& settings, const mesh::Coordinates& at, Emitter& emitter,
            const std::vector<std::int32_t>& complete_at);

  /// Starts the buckets to whose states nothing is added after step s. Called with one step after the other.
  void start(std::int32_t s);

  /// Waits for all, in step `end`. Sums over several axes are finished along one axis after the other.
  void finish(std::int32_t end);

 private:
  /// A bucket on its way.
  struct UnderWay {
    const Bucket* bucket = nullptr;
    std::size_t step = 0;  ///< of its finalization
    std::vector<std::int32_t> transfers;
    std::optional<HookSteps> hook;  ///< where that step is one
  };

  void begin_step(UnderWay& bucket, std::int32_t s);
  [[nodiscard]] bool go_on(UnderWay& bucket, std::int32_t s);
  [[nodiscard]] Instruction instruction(Instruction::Kind kind, std::int32_t transfer);

  const LowerSettings& settings_;
  const mesh::Coordinates& at_;
  Emitter& emitter_;
  std::vector<std::pair<std::int32_t, std::size_t>> order_;  ///< after which step a bucket is complete; which
  std::size_t next_ = 0;                                     ///< in that order, to be started
  std::deque<UnderWay> under_way_;
};

}  // namespace shardrun::partition
