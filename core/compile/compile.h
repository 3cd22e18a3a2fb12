#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "core/checkpoint/given_weights.h"
#include "core/checkpoint/open_checkpoint.h"
#include "core/checkpoint/saved_state.h"
#include "core/compile/engine.h"
#include "core/data/dataset.h"
#include "core/device/device.h"
#include "core/graph/graph.h"
#include "core/job/job.h"
#include "core/partition/partition.h"
#include "core/partition/program.h"
#include "core/plan/plan.h"
#include "core/runtime/collectives.h"
#include "core/workload/model.h"
#include "core/workload/program.h"

namespace shardrun::plugins {
class Hooks;
}

namespace shardrun::compile {

/// A job, prepared for the executor.
struct Compiled {
  std::shared_ptr<data::Dataset> dataset;   ///< null if the job names no data
  std::shared_ptr<const JobEngine> engine;  ///< null if the job names a model
  workload::Model model;
  workload::ModelSettings settings;
  std::int64_t iterated_rows = 0;  ///< samples of data that an iteration reads
  /// The weights that the job names in [model] from or [job] checkpoint; null: none.
  std::shared_ptr<const checkpoint::GivenWeights> weights;
  /// The state that [iterate] from names, as read when compiling.
  checkpoint::SavedState saved_state;
  /// The checkpoint from which the run continues; null: it begins at the first step. Set after compile().
  std::shared_ptr<const checkpoint::OpenCheckpoint> resumed;
  graph::Graph graph;
  plan::Plan plan;
  std::shared_ptr<const plugins::Hooks> hooks;  ///< the strategy's own functions; null if the plan has no hooks
  partition::Partition partition;
  runtime::TransportSet transports;
  partition::Programs programs;  ///< the programs of one rank
  const device::Device* device = nullptr;
  std::vector<std::int64_t> microbatch_rows;  ///< rows of each microbatch in training
  /// Rows of each evaluation call, or of each call of `forward` or `decode`; for records, each possible number of rows.
  std::vector<std::int64_t> evaluation_rows;
  std::int64_t slots = 0;   ///< number of prompts that are continued at once; 0: the job continues none
  std::int64_t groups = 1;  ///< number of groups of slots: stages that work at once each work at another group
};

/// The device that the job names. Throws Error{job} if the device or a unit that the job names does not exist.
[[nodiscard]] const device::Device& find_device(const job::Job& job);

/// The number of ranks that this machine has room for: one per unit that [job] device names, or that the machine has.
/// For a device without units, one per core that this process may use. Throws Error{job} if the device or a unit does
/// not exist, or units cannot be counted.
[[nodiscard]] std::int64_t ranks_of_machine(const job::Job& job);

/// Threads per rank: [job] threads, or this machine's cores divided by `ranks_here` (default: all ranks), at least 1.
[[nodiscard]] int threads_of(const job::Job& job);
[[nodiscard]] int threads_of(const job::Job& job, std::int64_t ranks_here);

/// Runs data, model, strategy and partitioner, in this order; starts no process. With an engine, the graph contains
/// only what the host computes on this rank: the loss and the optimizer's step. `now_at`: called with the current
/// activity. `dataset`: the job's data, if it is already open. Throws Error{job, data, plugin}.
[[nodiscard]] Compiled compile(const job::Job& job, std::int64_t rank = 0,
                               const std::function<void(std::string_view activity)>& now_at = {},
                               std::shared_ptr<data::Dataset> dataset = nullptr);

/// How the job continues prompts. REQUIRES: job::generates(job).
[[nodiscard]] workload::DecodingSettings decoding_settings(const job::Job& job, const Compiled& compiled);

/// Whether the job applies a model to tokens. If not, it applies a model to numbers, or none.
[[nodiscard]] bool is_applied_to_tokens(const job::Job& job);

/// The model that an engine is compared with, as a single device would train it on the engine's data; without a plan
/// and programs. `engine`: the compiled job. Throws Error{job} if the job names no model or does not train, or if the
/// parameters of model and engine differ.
[[nodiscard]] Compiled compile_reference(const job::Job& job, const Compiled& engine);

/// The job's graph without remat.
[[nodiscard]] graph::Graph graph_without_remat(const job::Job& job, const Compiled& compiled);

/// The graph that the job's results are compared with: without remat. For a model that is applied to a batch, it has a
/// function for a whole batch, which keeps its output in a state.
[[nodiscard]] graph::Graph reference_graph(const job::Job& job, const Compiled& compiled);

/// The programs of another rank. The second form is for another device, and takes the functions of the rank's stage.
[[nodiscard]] partition::Programs programs_of_rank(const job::Job& job, const Compiled& compiled, std::int64_t rank);
[[nodiscard]] partition::Programs programs_of_rank(const job::Job& job, const Compiled& compiled, std::int64_t rank,
                                                   const device::Device& device,
                                                   const partition::StageFunctions& stage);

/// The functions of one stage. The transport along the pipeline's axis decides whether messages move host memory or
/// device memory.
[[nodiscard]] std::shared_ptr<const partition::StageFunctions> functions_of_stage(const Compiled& compiled,
                                                                                  partition::StageId stage);

/// The indices of the programs that are executed in one optimizer step, one iteration, or for one batch to which a
/// model is applied, in order. If the plan has a hook after_step, the step is one after which the hook runs.
[[nodiscard]] std::vector<std::size_t> programs_of_step(const Compiled& compiled, const partition::Programs& programs);

/// The bytes sent in a step, by pair (sender, receiver), as if collectives used rings: see partition::sent_bytes().
using Traffic = std::map<std::pair<std::int64_t, std::int64_t>, std::uint64_t>;
[[nodiscard]] Traffic traffic_of(const job::Job& job, const Compiled& compiled);
/// Sums up the traffic between ranks on different machines. Machine i has the ranks from i · ranks_per_machine to (i +
/// 1) · ranks_per_machine − 1. `order`: the new number of each rank; empty: ranks keep their numbers.
[[nodiscard]] std::uint64_t bytes_between_machines(const Traffic& traffic, std::int64_t ranks_per_machine,
                                                   const std::vector<std::int64_t>& order = {});
/// Implements [mesh] order = topology: takes the first order of mesh axes with which machines send each other the
/// fewest bytes. Returns the rank at each place of the mesh; empty: ranks keep their numbers. If [cluster] does not
/// give the ranks per machine, adds the bytes for all possible numbers. REQUIRES: `compiled` has no order yet.
[[nodiscard]] std::vector<std::int64_t> order_by_traffic(const job::Job& job, const Compiled& compiled);

/// The tensors that a checkpoint of the job contains.
[[nodiscard]] checkpoint::Contents contents_of(const job::Job& job, const Compiled& compiled);
/// The settings of the job that must be equal in a run which continues it.
[[nodiscard]] checkpoint::RunIdentity identity_of(const job::Job& job, const Compiled& compiled);

/// Floating-point operations of all ranks in a step, or in a batch to which a model is applied.
[[nodiscard]] double flops_per_step(const Compiled& compiled);
[[nodiscard]] double flops_per_step(const graph::Graph& graph, const std::vector<std::int64_t>& microbatch_rows);

}  // namespace shardrun::compile
