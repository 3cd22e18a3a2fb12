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

/// The functions that one stage executes. All its ranks execute the same functions, each on its own parts.
struct StageFunctions {
  StageId stage = StageId(0);
  std::vector<SplitFunction> functions;
  std::vector<IdVector<StepId, Step>> steps;  ///< one list per function
};

/// A graph split by a plan: the same for all ranks.
struct Partition {
  Placements placements;
  ShardedGraph sharded;
  Pipeline pipeline;
  Stages stages;
  std::shared_ptr<const StageFunctions> whole;  ///< the functions of all ranks; null if there is a pipeline
  std::uint64_t bucket_bytes = 0;
  std::vector<std::int64_t> microbatch_rows;  ///< rows of each call of the repeated function in a step; empty: unknown
  std::vector<std::int64_t> evaluation_rows;  ///< rows of each call of an evaluation; empty: unknown
  /// Whether calls overlap: the plan allows it, and each stage sends only to the next one, except the last, which ends
  /// the call. As many calls as there are stages can then be under way (Programs::stages).
  bool overlaps = false;

  /// The stage of the rank at these coordinates.
  [[nodiscard]] StageId stage_at(const mesh::Coordinates& at) const;

  /// Whether the hook after_step runs after this step. `step`: counted from 0.
  [[nodiscard]] bool hook_follows(std::int64_t step) const noexcept;
};

/// Splits a graph by a plan. `microbatch_rows`: the rows of each microbatch of a step; with a pipeline, one call
/// executes all of them. `evaluation_rows`: the rows of each call of an evaluation. A function whose rows are not
/// listed can be called any number of times. Throws Error{job} if the plan cannot split this graph.
[[nodiscard]] Partition split(const graph::Graph& graph, const plan::Plan& plan,
                              const std::vector<std::int64_t>& microbatch_rows = {},
                              const std::vector<std::int64_t>& evaluation_rows = {});

/// The functions of one stage. With a pipeline each call makes them anew, and they are long: keep the result while you
/// need programs of several ranks of the stage. `memory`: device if RankSettings::is_direct() holds for the pipeline's
/// axis. REQUIRES: `graph` is the one that was split.
[[nodiscard]] std::shared_ptr<const StageFunctions> functions_of(const graph::Graph& graph, const Partition& partition,
                                                                 StageId stage,
                                                                 MessageMemory memory = MessageMemory::host);

/// All links between stages, in the same order on all ranks.
[[nodiscard]] std::vector<Link> links_of(const Partition& partition);

/// The name of the function that is made for the plan's hook after_step. It has no ops; its program calls the hook.
inline constexpr const char* after_step_function = "after_step";

/// Scratch bytes that the transport of the transfer's mesh axis needs. `members`: the number of ranks along that axis.
using TransferScratch = std::function<std::uint64_t(const Transfer& transfer, std::int64_t members)>;

/// Bytes of hashes that a member sends in addition to a transfer's data, so that receivers can check the data.
using TransferChecks =
    std::function<std::uint64_t(const Transfer& transfer, std::int64_t member, std::int64_t members)>;

/// Asks the strategy what its hook does with a group of tensors and which buffers it needs.
using PlanHook = std::function<plan::HookPlan(const plan::HookGroup& group)>;

struct RankSettings {
  const device::Device& device;
  int threads = 1;
  std::int64_t rank = 0;
  TransferScratch transfer_scratch = {};  ///< empty: no transport needs scratch
  TransferChecks transfer_checks = {};    ///< empty: transfers have no hashes
  /// Whether the transport of each mesh axis moves device memory. Empty: none does.
  IdVector<mesh::AxisId, bool> moves_device_memory = {};
  PlanHook plan_hook = {};  ///< can be empty if the plan has no hooks
  bool agreements = false;  ///< whether to make the programs of agreements.h
  bool comparisons = true;  ///< whether these include the ones that compare replicas
  bool watches = false;     ///< whether states that last between steps are watched (watch_states)

  /// Whether transfers along an axis move device memory that the host cannot address.
  [[nodiscard]] bool is_direct(mesh::AxisId axis) const {
    return !device.is_addressable() && moves_device_memory.contains(axis) && moves_device_memory[axis];
  }
};

/// The programs of one rank: the graph's functions on the rank's parts, in one arena. A function whose states are
/// partial within a step can have two programs: one for the last call of a step, which finalizes the states, and one
/// for all earlier calls.
[[nodiscard]] Programs programs_of(const graph::Graph& graph, const Partition& partition, const RankSettings& settings);

/// programs_of() for a caller that already has the functions of the rank's stage.
[[nodiscard]] Programs programs_of(const graph::Graph& graph, const Partition& partition, const StageFunctions& stage,
                                   const RankSettings& settings);

/// The programs of a graph that is not split, for a single rank.
[[nodiscard]] Programs programs_of(const graph::Graph& graph, const device::Device& device, int threads);

}  // namespace shardrun::partition
