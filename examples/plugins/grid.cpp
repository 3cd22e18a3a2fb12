#include <shardrun/sdk/strategy.hpp>

#include <string>
#include <vector>

using namespace shardrun::sdk;

namespace {

/// Data and tensor parallelism together: the first axis of [mesh] splits the batch, the second the model.
class Grid {
 public:
  static std::vector<Option> options() {
    return {boolean_option("vocab", true, "split the vocabulary as well as heads and hidden columns")};
  }

  void make_plan(const Job& job, const Graph& graph, PlanWriter& plan) const {
    if (job.mesh.size() != 2) {
      throw InvalidJob("it splits over two mesh axes, and [mesh] has " + std::to_string(job.mesh.size()) +
                       ": give two, such as data = 2 and model = 2");
    }
    for (const MeshAxis& axis : job.mesh) {
      plan.add_mesh_axis(axis.name, axis.size);
    }
    place(graph, plan, "batch", job.mesh[0].name);
    place(graph, plan, "heads", job.mesh[1].name);
    place(graph, plan, "mlp", job.mesh[1].name);
    if (job.options.boolean("vocab")) {
      place(graph, plan, "vocab", job.mesh[1].name);
    }
    plan.set_bucket_bytes(4 << 20);
  }

 private:
  /// Places the axis if the model has it. The host refuses unknown names.
  static void place(const Graph& graph, PlanWriter& plan, const std::string& axis, const std::string& mesh_axis) {
    if (graph.has_axis(axis)) {
      plan.place_axis(axis, {mesh_axis});
    }
  }
};

}  // namespace

SHARDRUN_EXPORT_STRATEGY(Grid, "grid", "1.0")
