#include <shardrun/sdk/strategy.hpp>

using namespace shardrun::sdk;

namespace {

constexpr int stage = ZERO_STAGE;

/// Data parallelism without redundant states (ZeRO: Rajbhandari et al. 2019, arXiv:1910.02054, section 5). Each rank
/// computes a share of each batch's samples, and updates its own part of every parameter.
/// - Stage 1 splits the optimizer states.
/// - Stage 2 also splits the gradients: each is reduced and freed as backward makes it.
/// - Stage 3 also splits the parameters: they are gathered for the layer that uses them (FSDP: Zhao et al. 2023,
///   arXiv:2304.11277).
class Zero {
 public:
  static std::vector<Option> options() {
    std::vector<Option> options = {bucket_option()};
    if (stage == 3) {
      const std::vector<Option> gather = gather_options();
      options.insert(options.end(), gather.begin(), gather.end());
    }
    return options;
  }

  void make_plan(const Job& job, const Graph& graph, PlanWriter& plan) const {
    const std::string mesh_axis = only_mesh_axis(job, "data");
    plan.add_mesh_axis(mesh_axis, job.ranks);
    place_batch(graph, {mesh_axis}, plan);
    place_zero(graph, {}, zero_settings(job, stage, mesh_axis), plan);
    plan.set_bucket_bytes(bucket_bytes(job));
  }
};

#define ZERO_NAME_OF(stage) "zero" #stage
#define ZERO_NAME(stage) ZERO_NAME_OF(stage)

}  // namespace

SHARDRUN_EXPORT_STRATEGY(Zero, ZERO_NAME(ZERO_STAGE), "1.0", ZERO_ALIASES)
