#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/partition/emitter.h"
#include "core/partition/lower.h"
#include "core/partition/placements.h"

namespace shardrun::partition {

/// One region that covers all of these states. Throws Error{internal} if they are not contiguous.
[[nodiscard]] Region region_of(const std::vector<graph::StateId>& states,
                               const IdVector<graph::StateId, Buffer>& buffers);

/// Emits a hook's calls and exchanges for one bucket on one rank, one exchange at a time.
class HookSteps {
 public:
  /// `span`: the steps in which the hook's buffers live. REQUIRES: the arguments outlive this; one of the bucket's
  /// steps is the hook.
  HookSteps(const Bucket& bucket, const LowerSettings& settings, const mesh::Coordinates& at, Emitter& emitter,
            Span span);

  /// Emits the calls up to the next exchange, and the start of that exchange. Returns the exchange's transfer; none if
  /// no exchange is left.
  [[nodiscard]] TransferId go_on(StepId step);

 private:
  [[nodiscard]] Transfer transfer_of(const plan::HookStep& step) const;

  const PlacedHook& hook_;
  const std::optional<BucketHook>& of_rank_;
  Emitter& emitter_;
  Span span_;
  std::int64_t members_;
  std::uint32_t member_;
  HookSamples samples_;
  std::string name_;
  std::vector<Region> regions_;
  std::vector<graph::DType> dtypes_;   ///< element types in memory
  std::vector<graph::DType> rounded_;  ///< element types in the graph; see Transfer::rounded
  std::size_t next_ = 0;               ///< index in the steps of the hook's plan
};

}  // namespace shardrun::partition
