#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "core/partition/partition.h"
#include "core/partition/shard.h"
#include "core/plan/hook.h"

namespace shardrun::partition {

/// A strategy's hook for a bucket on one rank.
struct BucketHook {
  std::uint32_t group = 0;  ///< index in Programs::hook_groups
  plan::HookPlan plan;
};

/// States that are finalized together by the same collectives. Their buffers are contiguous.
struct Bucket {
  std::vector<graph::StateId> states;             ///< in the order of their buffers
  std::vector<Transition> steps;                  ///< those of the first state; `dim` can differ in others
  std::optional<BucketHook> hook = std::nullopt;  ///< set if a step is a hook and this rank has elements
};

/// Two tensors with equal keys can be in one group of a hook: ranks that hold the same part of one hold the same part
/// of the other. The key has the mesh axes that split the tensor, and those over which it varies.
struct GroupKey {
  std::set<mesh::AxisId> split;
  std::vector<mesh::AxisId> varying;

  bool operator==(const GroupKey&) const = default;
};

[[nodiscard]] GroupKey group_key(const mesh::Placement& placement);

/// Groups partial states into buckets, in the order in which the function makes its last contribution to them.
///  - A bucket takes states up to `bytes` together, but at least one. `state_bytes`: the bytes of each state.
///  - Metrics are placed after the last contribution to any metric: stages of a pipeline complete them at different
///    nodes, but finalize them together. Metrics with the same collectives share one bucket of any size.
/// `finalizes`: whether this rank takes part in the finalization of a state.
[[nodiscard]] std::vector<Bucket> buckets_of(const graph::Graph& graph, const SplitFunction& function,
                                             const IdVector<graph::StateId, Finalization>& finalizations,
                                             const std::function<bool(graph::StateId)>& finalizes,
                                             const IdVector<graph::StateId, std::uint64_t>& state_bytes,
                                             std::uint64_t bytes);

/// Decides which states of a stage are finalized together, and lays out the states so that each bucket is contiguous.
class StateLayout {
 public:
  /// REQUIRES: the arguments outlive this.
  StateLayout(const graph::Graph& graph, const Partition& partition, const StageFunctions& stage);

  /// The buckets of each function. Functions that finalize the same states have the same buckets. Call once, before
  /// place().
  [[nodiscard]] std::vector<std::vector<Bucket>> buckets();

  /// Places the states: first the parameters, then the buckets, then the other states by category. Within a bucket
  /// there are no gaps, nor within its hook states. Returns the offset at which transients may begin.
  [[nodiscard]] std::uint64_t place(IdVector<graph::StateId, Buffer>& states) const;

 private:
  /// Bytes of each state on the rank with the largest part and on the rank with the smallest.
  struct StateBytes {
    IdVector<graph::StateId, std::uint64_t> most;
    IdVector<graph::StateId, std::uint64_t> least;
  };

  [[nodiscard]] static StateBytes state_bytes(const graph::Graph& graph, const Partition& partition);
  [[nodiscard]] graph::StateKind kind(graph::StateId state) const;
  void lay_out(Bucket bucket, std::vector<Bucket>& kept);
  void lay_out_hook_states(const Bucket& bucket);
  [[nodiscard]] std::vector<Bucket> hook_buckets() const;

  const graph::Graph& graph_;
  const Partition& partition_;
  const StageFunctions& functions_;
  const StageId stage_;
  const StateBytes bytes_;
  std::set<graph::StateId> placed_;
  std::set<std::vector<graph::StateId>> laid_out_;
  std::vector<std::vector<graph::StateId>> groups_;  ///< states that are placed without gaps, in order
};

}  // namespace shardrun::partition
