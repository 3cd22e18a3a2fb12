#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "core/partition/bucket.h"
#include "core/partition/partition.h"

namespace shardrun::partition {

/// Which states of a stage are finalized together, and where states lie so that they are.
class StateLayout {
 public:
  /// REQUIRES: the arguments outlive this.
  StateLayout(const graph::Graph& graph, const Partition& partition, const StageFunctions& stage);

  /// The buckets of each function, of the same states wherever they are the same. Called once, before `place`.
  [[nodiscard]] std::vector<std::vector<Bucket>> buckets();

  /// States one after the other: parameters, then what is reduced in buckets, then the rest by category; without gaps
  /// within a bucket, and within the hook states of one. Returns where the transients may begin.
  [[nodiscard]] std::uint64_t place(std::vector<Buffer>& states) const;

 private:
  /// What states take, on the rank that has most of each and on the one that has least.
  struct StateBytes {
    std::vector<std::uint64_t> most;
    std::vector<std::uint64_t> least;
  };

  [[nodiscard]] static StateBytes state_bytes(const graph::Graph& graph, const Partition& partition);
  [[nodiscard]] graph::StateKind kind(graph::StateId state) const;
  void lay_out(Bucket bucket, std::vector<Bucket>& kept);
  void lay_out_hook_states(const Bucket& bucket);
  [[nodiscard]] std::vector<Bucket> hook_buckets() const;

  const graph::Graph& graph_;
  const Partition& partition_;
  const StageFunctions& functions_;
  const std::int32_t stage_;
  const StateBytes bytes_;
  std::set<graph::StateId> placed_;
  std::set<std::vector<graph::StateId>> laid_out_;
  std::vector<std::vector<graph::StateId>> groups_;  ///< that lie without gaps, in their order
};

}  // namespace shardrun::partition
