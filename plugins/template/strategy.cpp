// A strategy: which part of the work is whose. It reads a summary of the job and of the graph and writes a plan; the
// host derives every collective from that.

#include <shardrun/sdk/strategy.hpp>

using namespace shardrun::sdk;

namespace {

/// All ranks along one mesh axis, and one axis of the model split over it.
class Mine {
 public:
  /// What [strategy] of a job file may say. The host parses, checks and documents it.
  static std::vector<Option> options() {
    return {text_option("axis", "batch", {"batch", "heads", "mlp", "vocab"}, "which axis of the model is split")};
  }

  /// Every rank calls this with the same input and must get the same plan: it reads no clock, file or environment.
  void make_plan(const Job& job, const Graph& graph, PlanWriter& plan) const {
    const std::string axis = job.options.text("axis");
    if (!graph.has_axis(axis)) {
      // The job has to change. Say what was found and what to do: the user reads it as it is.
      throw InvalidJob("the model has no axis '" + axis + "' to split: set axis in [strategy] to one that it has");
    }
    // What the job file calls its mesh axis, or "ranks" where it has no [mesh].
    const std::string mesh_axis = only_mesh_axis(job, "ranks");
    plan.add_mesh_axis(mesh_axis, job.ranks);
    // Wherever the axis occurs, in parameters as well as in what is computed, it is split so. All else follows.
    plan.place_axis(axis, {mesh_axis});
    // Gradients that are owed a sum are summed a MiB at a time, while backward goes on.
    plan.set_bucket_bytes(1 << 20);
  }
};

}  // namespace

SHARDRUN_EXPORT_STRATEGY(Mine, "mine", "1.0")
