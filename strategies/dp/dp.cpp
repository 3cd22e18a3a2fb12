#include <shardrun/sdk/strategy.hpp>

using namespace shardrun::sdk;

namespace {

/// Data parallelism: each rank has the whole model and a share of each batch's samples. Gradients are all-reduced in
/// buckets as backward completes them (Li et al. 2020, arXiv:2006.15704, section 3.2).
class DataParallel {
 public:
  static std::vector<Option> options() { return {bucket_option()}; }

  void make_plan(const Job& job, const Graph& graph, PlanWriter& plan) const {
    const std::string mesh_axis = only_mesh_axis(job, "data");
    plan.add_mesh_axis(mesh_axis, job.ranks);
    place_batch(graph, {mesh_axis}, plan);
    plan.set_bucket_bytes(bucket_bytes(job));
  }
};

}  // namespace

SHARDRUN_EXPORT_STRATEGY(DataParallel, "dp", "1.0",
                         "ddp data_parallel data distributed_data_parallel DistributedDataParallel no_shard replicate")
