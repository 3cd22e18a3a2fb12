#include <shardrun/sdk/strategy.hpp>

using namespace shardrun::sdk;

namespace {

/// Tensor parallelism (Shoeybi et al. 2019, arXiv:1909.08053, section 3). Every rank computes all samples, with some of
/// the attention heads, hidden columns and vocabulary. The placements of these axes split the first of two matrix
/// products by columns and the second by rows, and compute the loss over the vocabulary in parts. The host inserts the
/// reductions of the partial results. With `sequence`, the activations in between are split along the sequence
/// (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2): a reduce_scatter replaces each all_reduce, and an
/// all_gather precedes the next product.
class TensorParallel {
 public:
  static std::vector<Option> options() {
    return {also_called(boolean_option("sequence", false,
                                       "split the residual stream along the sequence: less memory, as many bytes sent"),
                        "sequence_parallel enable_sequence_parallel")};
  }

  void make_plan(const Job& job, const Graph& graph, PlanWriter& plan) const {
    const std::string mesh_axis = only_mesh_axis(job, "model");
    plan.add_mesh_axis(mesh_axis, job.ranks);
    const AxisRules rules = tensor_parallel_rules(graph, mesh_axis);
    if (rules.empty()) {
      throw InvalidJob(
          "it splits the axes heads, mlp and vocab, and this model has none of them: choose a strategy "
          "that splits what the model has ('shardrun plugins' lists them)");
    }
    place_axes(rules, plan);
    if (job.options.boolean("sequence")) {
      place_sequence(graph, mesh_axis, {}, plan);
    }
  }
};

}  // namespace

SHARDRUN_EXPORT_STRATEGY(TensorParallel, "tp", "1.0",
                         "tensor tensor_parallel tensor_model_parallel model_parallel megatron mp colwise_parallel")
