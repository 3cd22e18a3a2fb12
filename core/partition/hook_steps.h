#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/partition/emitter.h"
#include "core/partition/lower.h"
#include "core/partition/placements.h"

namespace shardrun::partition {

/// The hook that is given states of this kind: parameters or gradients. Null where there is none.
[[nodiscard]] const PlacedHook* hook_of(graph::StateKind kind, const Placements& placements) noexcept;

/// What the hook keeps beside a group of parameters, or of gradients: of each of its states those of the group, in its
/// order.
[[nodiscard]] std::vector<std::vector<graph::StateId>> states_beside(const std::vector<graph::StateId>& group,
                                                                     const PlacedHook& hook, const graph::Graph& graph);

/// All of these states as one, as they lie one after the other. Throws Error{internal} where they do not.
[[nodiscard]] Region region_of(const std::vector<graph::StateId>& states, const std::vector<Buffer>& buffers);

/// What a hook does with one group of states on one rank, emitted part by part.
class HookSteps {
 public:
  /// `span`: the steps that its buffers live in. REQUIRES: the arguments outlive this.
  HookSteps(const PlacedHook& hook, const std::vector<graph::StateId>& group, const LowerSettings& settings,
            const mesh::Coordinates& at, Emitter& emitter, Span span);

  /// Emits calls up to and with the start of the next exchange: its transfer. −1: there is none any more.
  [[nodiscard]] std::int32_t go_on(std::int32_t step);

 private:
  [[nodiscard]] Transfer transfer_of(const plugins::HookStep& step) const;

  const PlacedHook& hook_;
  Emitter& emitter_;
  Span span_;
  std::uint32_t member_;
  std::shared_ptr<const plugins::HookGroup> group_;  ///< null where this rank has nothing of it
  HookSamples samples_;
  plugins::HookPlan plan_;
  std::string name_;
  std::vector<Region> regions_;
  std::vector<graph::DType> dtypes_;
  std::size_t next_ = 0;  ///< of the plan's steps
};

}  // namespace shardrun::partition
