#include <shardrun/sdk/strategy.hpp>

using namespace shardrun::sdk;

namespace {

/// Keeps everything on one rank and splits nothing. Other strategies are compared with this one.
class Single {
 public:
  void make_plan(const Job& job, const Graph& /*graph*/, PlanWriter& plan) const {
    if (job.ranks != 1) {
      throw InvalidJob("it keeps everything on one rank, but the job has " + std::to_string(job.ranks) +
                       " ranks: set ranks = 1 in [job], or choose a strategy that splits ('shardrun plugins' lists "
                       "them)");
    }
    for (const MeshAxis& axis : job.mesh) {
      if (axis.size != 1) {
        throw InvalidJob("it keeps everything on one rank, but [mesh] has " + axis.name + " = " +
                         std::to_string(axis.size) + ": set it to 1 or leave [mesh] out");
      }
      plan.add_mesh_axis(axis.name, 1);
    }
  }
};

}  // namespace

SHARDRUN_EXPORT_STRATEGY(Single, "single", "1.0", "none no off local one serial")
