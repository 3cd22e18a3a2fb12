#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/partition/emitter.h"
#include "core/partition/lower.h"
#include "core/partition/placements.h"

namespace shardrun::partition {

/// All of these states as one, as they lie one after the other. Throws Error{internal} where they do not.
[[nodiscard]] Region region_of(const std::vector<graph::StateId>& states, const std::vector<Buffer>& buffers);

/// What a hook does with one bucket on one rank, emitted part by part.
class HookSteps {
 public:
  /// `span`: the steps that its buffers live in. REQUIRES: the arguments outlive this; one of the bucket's steps is
  /// the hook.
  HookSteps(const Bucket& bucket, const LowerSettings& settings, const mesh::Coordinates& at, Emitter& emitter,
            Span span);

  /// Emits calls up to and with the start of the next exchange: its transfer. −1: there is none any more.
  [[nodiscard]] std::int32_t go_on(std::int32_t step);

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
  std::vector<graph::DType> dtypes_;
  std::size_t next_ = 0;  ///< of the plan's steps
};

}  // namespace shardrun::partition
