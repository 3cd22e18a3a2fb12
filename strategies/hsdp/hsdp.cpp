#include <shardrun/sdk/strategy.hpp>

using namespace shardrun::sdk;

namespace {

/// Splits parameters within groups of ranks, and replicates them across the groups (HSDP: Zhao et al. 2023,
/// arXiv:2304.11277, section 3.2.2). Along mesh axis `shard` it works as zero3. Along `replica` each rank all-reduces
/// its part of the gradients once a step.
class Hsdp {
 public:
  static std::vector<Option> options() {
    std::vector<Option> options = {bucket_option()};
    const std::vector<Option> gather = gather_options();
    options.insert(options.end(), gather.begin(), gather.end());
    return options;
  }

  void make_plan(const Job& job, const Graph& graph, PlanWriter& plan) const {
    std::uint32_t replicas = 1;
    std::uint32_t shards = job.mesh.empty() ? job.ranks : 1;
    for (const MeshAxis& axis : job.mesh) {
      if (axis.name != "replica" && axis.name != "shard") {
        throw InvalidJob("its mesh axes are replica and shard, and [mesh] has '" + axis.name + "'");
      }
      (axis.name == "replica" ? replicas : shards) = axis.size;
    }
    plan.add_mesh_axis("replica", replicas);
    plan.add_mesh_axis("shard", shards);
    place_batch(graph, {"replica", "shard"}, plan);
    place_zero(graph, {}, zero_settings(job, 3, "shard"), plan);
    plan.set_bucket_bytes(bucket_bytes(job));
  }
};

}  // namespace

SHARDRUN_EXPORT_STRATEGY(Hsdp, "hsdp", "1.0", "hybrid_shard hybrid_sharded hybrid_fsdp fsdp_hsdp mics")
