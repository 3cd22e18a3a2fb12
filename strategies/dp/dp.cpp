#include <shardrun/sdk/strategy.hpp>

using namespace shardrun::sdk;

namespace {

constexpr double bytes_of_mb = 1 << 20;

/// Data parallelism: each rank has the whole model and some of each batch's samples. What the ranks have to add up,
/// the gradients, is reduced in buckets as backward completes them (Li et al. 2020, arXiv:2006.15704, section 3.2).
class DataParallel {
 public:
  static std::vector<Option> options() {
    return {number_option("bucket_mb", 4, 0, 1 << 20,
                          "MiB of gradients that are reduced at once; 0: each tensor by itself")};
  }

  void make_plan(const Job& job, const Graph& graph, PlanWriter& plan) const {
    const std::string mesh_axis = only_mesh_axis(job, "data");
    plan.add_mesh_axis(mesh_axis, job.ranks);
    if (!graph.has_axis("batch")) {
      throw InvalidJob(
          "it splits the batch, and this model has none: choose a strategy that splits what the model has "
          "('shardrun plugins' lists them)");
    }
    plan.place_axis("batch", {mesh_axis});
    plan.set_bucket_bytes(static_cast<std::uint64_t>(job.options.number("bucket_mb") * bytes_of_mb));
  }
};

}  // namespace

SHARDRUN_EXPORT_STRATEGY(DataParallel, "dp", "1.0")
