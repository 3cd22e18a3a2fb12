#include <shardrun/sdk/strategy.hpp>

#include <array>

using namespace shardrun::sdk;

namespace {

/// Tensor parallelism (Shoeybi et al. 2019, arXiv:1909.08053, section 3): every rank computes all samples with some of
/// the attention heads, some of the hidden columns of each block and some of the vocabulary. Named so, the first of two
/// matrix products is split by columns and the second by rows, and the loss over the vocabulary is computed in parts;
/// the host inserts the sums that these owe.
class TensorParallel {
 public:
  void make_plan(const Job& job, const Graph& graph, PlanWriter& plan) const {
    const std::string mesh_axis = only_mesh_axis(job, "model");
    plan.add_mesh_axis(mesh_axis, job.ranks);
    bool any = false;
    for (const char* axis : split_axes) {
      if (graph.has_axis(axis)) {
        plan.place_axis(axis, {mesh_axis});
        any = true;
      }
    }
    if (!any) {
      throw InvalidJob(
          "it splits the axes heads, mlp and vocab, and this model has none of them: choose a strategy "
          "that splits what the model has ('shardrun plugins' lists them)");
    }
  }

 private:
  static constexpr std::array<const char*, 3> split_axes = {"heads", "mlp", "vocab"};
};

}  // namespace

SHARDRUN_EXPORT_STRATEGY(TensorParallel, "tp", "1.0")
