// A strategy: it decides which rank computes which part. It reads a summary of the job and of the graph, and writes a
// plan. The host derives every collective from the plan.

#include <shardrun/sdk/strategy.hpp>

using namespace shardrun::sdk;

namespace {

/// Puts all ranks along one mesh axis, and splits one axis of the model over it.
class Mine {
 public:
  /// The options of [strategy] in the job file. The host parses, checks and documents them.
  static std::vector<Option> options() {
    return {text_option("axis", "batch", {"batch", "heads", "mlp", "vocab"}, "which axis of the model is split")};
  }

  /// Every rank calls this with the same input and must get the same plan. So it reads no clock, file or environment.
  void make_plan(const Job& job, const Graph& graph, PlanWriter& plan) const {
    const std::string axis = job.options.text("axis");
    if (!graph.has_axis(axis)) {
      // The job has to change. Say what was found and what to do: the user reads this text.
      throw InvalidJob("the model has no axis '" + axis + "' to split: set axis in [strategy] to one that it has");
    }
    // The job file's name for its mesh axis, or "ranks" without a [mesh].
    const std::string mesh_axis = only_mesh_axis(job, "ranks");
    plan.add_mesh_axis(mesh_axis, job.ranks);
    // Splits the axis wherever it occurs, in parameters and in activations. Everything else follows.
    plan.place_axis(axis, {mesh_axis});
    // Deferred sums of gradients are reduced in buckets of up to a MiB, while backward continues.
    plan.set_bucket_bytes(1 << 20);
  }
};

}  // namespace

SHARDRUN_EXPORT_STRATEGY(Mine, "mine", "1.0")
