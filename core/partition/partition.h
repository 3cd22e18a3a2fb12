#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/device/device.h"
#include "core/graph/graph.h"
#include "core/partition/pipeline.h"
#include "core/partition/placements.h"
#include "core/partition/program.h"
#include "core/partition/schedule.h"
#include "core/partition/shard.h"
#include "core/partition/stages.h"
#include "core/plan/plan.h"

namespace shardrun::partition {

/// What the ranks of one stage execute, each for its parts.
struct StageFunctions {
  std::int32_t stage = 0;
  std::vector<SplitFunction> functions;
  std::vector<std::vector<Step>> steps;  ///< of each function
};

/// A graph split by a plan: the same for all ranks.
struct Partition {
  Placements placements;
  ShardedGraph sharded;
  Pipeline pipeline;
  Stages stages;
  std::shared_ptr<const StageFunctions> whole;  ///< of all ranks, where there is no pipeline; null: there is one
  std::uint64_t bucket_bytes = 0;
  std::vector<std::int64_t> microbatch_rows;  ///< of each call of the repeated function in a step; none: not known
  std::vector<std::int64_t> evaluation_rows;  ///< of each call of an evaluation; none: not known

  /// Of the rank at these coordinates.
  [[nodiscard]] std::int32_t stage_at(const mesh::Coordinates& at) const;

  /// Whether the hook after_step follows a step, by its number from 0.
  [[nodiscard]] bool hook_follows(std::int64_t step) const noexcept;
};

/// The rows of each microbatch of a step, which a pipeline does all at once, and of each call of an evaluation; none:
/// whatever the graph has may be called. Throws Error{job} for a plan that this graph cannot be split by.
[[nodiscard]] Partition split(const graph::Graph& graph, const plan::Plan& plan,
                              const std::vector<std::int64_t>& microbatch_rows = {},
                              const std::vector<std::int64_t>& evaluation_rows = {});

/// The functions of one stage. Of a pipeline they are made anew, as they are long: whoever needs the programs of
/// several ranks of a stage keeps them meanwhile. REQUIRES: `graph` is the one that was split.
[[nodiscard]] std::shared_ptr<const StageFunctions> functions_of(const graph::Graph& graph, const Partition& partition,
                                                                 std::int32_t stage);

/// All links between stages, in one order for all ranks.
[[nodiscard]] std::vector<Link> links_of(const Partition& partition);

/// The function that the hook after_step makes up, where the plan has one: no ops, all ranks' tensors.
inline constexpr const char* after_step_function = "after_step";

/// Scratch bytes that the transport of a transfer's axis asks for.
using TransferScratch = std::function<std::uint64_t(const Transfer& transfer, std::int64_t members)>;

/// Asks the strategy what its hook needs for a group of tensors, and what it does with them.
using PlanHook = std::function<plan::HookPlan(const plan::HookGroup& group)>;

struct RankSettings {
  const device::Device& device;
  int threads = 1;
  std::int64_t rank = 0;
  TransferScratch transfer_scratch = {};  ///< empty: none
  PlanHook plan_hook = {};                ///< may be empty where the plan has no hooks
};

/// The programs of one rank: the graph's functions over its parts of the values, over one arena. A function whose
/// states are partial within a step has two: for the last call of a step, which finalizes them, and for those before
/// it.
[[nodiscard]] Programs programs_of(const graph::Graph& graph, const Partition& partition, const RankSettings& settings);

/// The same. `stage`: the functions of the rank's stage.
[[nodiscard]] Programs programs_of(const graph::Graph& graph, const Partition& partition, const StageFunctions& stage,
                                   const RankSettings& settings);

/// The whole graph on one rank.
[[nodiscard]] Programs programs_of(const graph::Graph& graph, const device::Device& device, int threads);

}  // namespace shardrun::partition
