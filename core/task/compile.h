#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "core/device/device.h"
#include "core/graph/graph.h"
#include "core/job/job.h"
#include "core/models/model.h"
#include "core/models/program.h"
#include "core/partition/partition.h"
#include "core/partition/program.h"
#include "core/plan/plan.h"
#include "core/runtime/collectives.h"
#include "core/task/dataset.h"
#include "core/task/saved_state.h"

namespace shardrun::plugins {
class Hooks;
}

namespace shardrun::task {

/// A job on its way from the file to the executor: each member is a function of those before it.
struct Compiled {
  std::shared_ptr<Dataset> dataset;  ///< null where the job names no data
  models::ModelSettings settings;
  SavedState saved_state;  ///< that [iterate] from named when the job was compiled
  graph::Graph graph;
  plan::Plan plan;
  std::shared_ptr<const plugins::Hooks> hooks;  ///< the strategy's own functions; null where the plan has no hooks
  partition::Partition partition;
  runtime::TransportSet transports;
  partition::Programs programs;  ///< of one rank
  const device::Device* device = nullptr;
  std::vector<std::int64_t> microbatch_rows;  ///< training
  std::vector<std::int64_t> evaluation_rows;
};

/// Threads of a rank: what the job says, else this machine's cores shared by the ranks, at least 1.
[[nodiscard]] int threads_of(const job::Job& job);
[[nodiscard]] int threads_of(const job::Job& job, std::int64_t ranks_here);

/// Data, model, strategy and partitioner, in this order; nothing is started. `now_at` is told what is being done.
/// `dataset`: the job's, where it is open already. Throws Error{job, data, plugin}.
[[nodiscard]] Compiled compile(const job::Job& job, std::string_view device = "cpu", std::int64_t rank = 0,
                               const std::function<void(std::string_view activity)>& now_at = {},
                               std::shared_ptr<Dataset> dataset = nullptr);

/// The graph that the job would have if nothing were computed again in backward.
[[nodiscard]] graph::Graph graph_without_remat(const job::Job& job, const Compiled& compiled);

/// Another rank's programs; on another device, with the functions of the rank's stage.
[[nodiscard]] partition::Programs programs_of_rank(const job::Job& job, const Compiled& compiled, std::int64_t rank);
[[nodiscard]] partition::Programs programs_of_rank(const job::Job& job, const Compiled& compiled, std::int64_t rank,
                                                   const device::Device& device,
                                                   const partition::StageFunctions& stage);

/// The programs, by number, that one optimizer step, or one iteration, executes; in its order. Of a strategy with a
/// hook after_step one that this follows.
[[nodiscard]] std::vector<std::size_t> programs_of_step(const Compiled& compiled, const partition::Programs& programs);

/// Floating-point operations of one optimizer step, or of one iteration.
[[nodiscard]] double flops_per_step(const Compiled& compiled);
[[nodiscard]] double flops_per_step(const graph::Graph& graph, const std::vector<std::int64_t>& microbatch_rows);

}  // namespace shardrun::task
