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

/// Emits the collectives that finalize a function's buckets. A bucket starts as soon as it is complete, so that its
/// collectives overlap with computing. If it is summed over stages in device memory, it starts at the end
/// (launch_order.h).
class Finalizer {
 public:
  /// `complete_at`: the step of the last write to each state. REQUIRES: the arguments outlive this.
  Finalizer(const LowerSettings& settings, const mesh::Coordinates& at, Emitter& emitter,
            const IdVector<graph::StateId, StepId>& complete_at);

  /// Starts the buckets that get their last contribution in step s. Call it with each step, in order.
  void start(StepId s);

  /// Waits for all buckets in step `end`. A bucket over several axes is reduced along one axis after the other.
  void finish(StepId end);

 private:
  /// A bucket whose finalization has started.
  struct UnderWay {
    const Bucket* bucket = nullptr;
    std::size_t step = 0;  ///< index of the finalization's current step
    std::vector<TransferId> transfers;
    std::optional<HookSteps> hook;  ///< set if the current step is a hook
  };

  void begin_step(UnderWay& bucket, StepId s);
  [[nodiscard]] bool go_on(UnderWay& bucket, StepId s);
  void round_masters(const Bucket& bucket, StepId s);
  [[nodiscard]] Instruction instruction(Instruction::Kind kind, TransferId transfer);

  const LowerSettings& settings_;
  const mesh::Coordinates& at_;
  Emitter& emitter_;
  /// Each bucket's index and the step after which it is complete, sorted.
  std::vector<std::pair<StepId, std::size_t>> order_;
  std::size_t next_ = 0;  ///< index in order_ of the next bucket to start
  std::deque<UnderWay> under_way_;
};

}  // namespace shardrun::partition
