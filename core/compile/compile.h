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

/// A job between its file and the executor. Each member depends only on earlier members.
struct Compiled {
  std::shared_ptr<data::Dataset> dataset;   ///< null if the job names no data
  std::shared_ptr<const JobEngine> engine;  ///< null for a model
  workload::Model model;
  workload::ModelSettings settings;
  std::int64_t iterated_rows = 0;                           ///< samples of data per iteration
  std::shared_ptr<const checkpoint::GivenWeights> weights;  ///< of a model that is applied to arrays; null: none given
  checkpoint::SavedState saved_state;                       ///< the state of [iterate] from, as of compiling
  /// The checkpoint from which the run continues; null: it begins at the start. Set after compiling.
  std::shared_ptr<const checkpoint::OpenCheckpoint> resumed;
  graph::Graph graph;
  plan::Plan plan;
  std::shared_ptr<const plugins::Hooks> hooks;  ///< the strategy's own functions; null if the plan has no hooks
  partition::Partition partition;
  runtime::TransportSet transports;
  partition::Programs programs;  ///< those of one rank
  const device::Device* device = nullptr;
  std::vector<std::int64_t> microbatch_rows;  ///< training
  std::vector<std::int64_t> evaluation_rows;  ///< or of each call of `forward`; for records, each number of rows that
                                              ///< may occur
};

/// Threads per rank: the job's number, otherwise this machine's cores divided by its ranks, at least 1.
[[nodiscard]] int threads_of(const job::Job& job);
[[nodiscard]] int threads_of(const job::Job& job, std::int64_t ranks_here);

/// Runs data, model, strategy and partitioner, in this order; starts nothing. For an engine, the graph contains only
/// what the host computes on this rank: the loss and the optimizer's step. `now_at` gets the current activity.
/// `dataset`: the job's, if it is already open. Throws Error{job, data, plugin}.
[[nodiscard]] Compiled compile(const job::Job& job, std::int64_t rank = 0,
                               const std::function<void(std::string_view activity)>& now_at = {},
                               std::shared_ptr<data::Dataset> dataset = nullptr);

/// Whether the job applies a model to tokens. Otherwise it applies it to numbers.
[[nodiscard]] bool is_applied_to_tokens(const job::Job& job);

/// The model with which an engine is compared, as a single device would train it on the engine's data: without a plan
/// and programs. `engine`: the compiled job. Throws Error{job} if the job names no model, or if its parameters differ
/// from the engine's.
[[nodiscard]] Compiled compile_reference(const job::Job& job, const Compiled& engine);

/// The job's graph without remat.
[[nodiscard]] graph::Graph graph_without_remat(const job::Job& job, const Compiled& compiled);

/// The graph with which the job is compared: without remat. For a model that is applied, the function of a whole batch,
/// whose output is a state.
[[nodiscard]] graph::Graph reference_graph(const job::Job& job, const Compiled& compiled);

/// Another rank's programs. The second form is for another device, with the functions of the rank's stage.
[[nodiscard]] partition::Programs programs_of_rank(const job::Job& job, const Compiled& compiled, std::int64_t rank);
[[nodiscard]] partition::Programs programs_of_rank(const job::Job& job, const Compiled& compiled, std::int64_t rank,
                                                   const device::Device& device,
                                                   const partition::StageFunctions& stage);

/// The functions of one stage. Its messages move host memory or device memory, depending on the transport along the
/// pipeline's axis.
[[nodiscard]] std::shared_ptr<const partition::StageFunctions> functions_of_stage(const Compiled& compiled,
                                                                                  partition::StageId stage);

/// The indices of the programs of one optimizer step, of one iteration, or of one batch to which a model is applied, in
/// order. If the plan has a hook after_step, they are those of a step that the hook follows.
[[nodiscard]] std::vector<std::size_t> programs_of_step(const Compiled& compiled, const partition::Programs& programs);

/// Bytes that a rank sends to another in a step. Those of collectives are counted as in a ring, by
/// partition::sent_bytes().
using Traffic = std::map<std::pair<std::int64_t, std::int64_t>, std::uint64_t>;
[[nodiscard]] Traffic traffic_of(const job::Job& job, const Compiled& compiled);
/// The sum over pairs of ranks on different machines. Each machine has ranks i · ranks_per_machine to (i + 1) ·
/// ranks_per_machine − 1. `order`: renumbers the ranks first; empty: it does not.
[[nodiscard]] std::uint64_t bytes_between_machines(const Traffic& traffic, std::int64_t ranks_per_machine,
                                                   const std::vector<std::int64_t>& order = {});
/// [mesh] order = topology: the order of the mesh's axes with which machines send each other the least; of several such
/// orders the first. If [cluster] does not say how many ranks share a machine, uses the sum over all possible numbers.
/// REQUIRES: `compiled` has no order yet.
[[nodiscard]] std::vector<std::int64_t> order_by_traffic(const job::Job& job, const Compiled& compiled);

/// What a checkpoint of the job contains.
[[nodiscard]] checkpoint::Contents contents_of(const job::Job& job, const Compiled& compiled);
/// The facts of the job that a run which continues it must share.
[[nodiscard]] checkpoint::RunIdentity identity_of(const job::Job& job, const Compiled& compiled);

/// Floating-point operations per step.
[[nodiscard]] double flops_per_step(const Compiled& compiled);
[[nodiscard]] double flops_per_step(const graph::Graph& graph, const std::vector<std::int64_t>& microbatch_rows);

}  // namespace shardrun::compile
