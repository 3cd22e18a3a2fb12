#include <shardrun/sdk/strategy.hpp>

using namespace shardrun::sdk;

namespace {

/// Pipeline parallelism: each rank has some of the layers, and microbatches go from rank to rank. Layers are
/// distributed so that the largest cost of a stage is as small as possible.
class PipelineParallel {
 public:
  static std::vector<Option> options() { return pipeline_options(); }

  void make_plan(const Job& job, const Graph& graph, PlanWriter& plan) const {
    const std::string mesh_axis = only_mesh_axis(job, "pipe");
    plan.add_mesh_axis(mesh_axis, job.ranks);
    if (graph.layers.empty()) {
      throw InvalidJob(
          "it splits the layers, and this model has none: choose a strategy that splits what the model has "
          "('shardrun plugins' lists them)");
    }
    place_pipeline(job, graph, mesh_axis, job.ranks, plan);
  }
};

}  // namespace

SHARDRUN_EXPORT_STRATEGY(PipelineParallel, "pp", "1.0",
                         "pipeline pipeline_parallel pipeline_model_parallel pipe gpipe 1f1b interleaved")
