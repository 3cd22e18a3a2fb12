#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "core/partition/bucket.h"
#include "core/partition/partition.h"

namespace shardrun::partition {

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
