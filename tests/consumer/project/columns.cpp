#include <shardrun/sdk/strategy.hpp>

using namespace shardrun::sdk;

namespace {

/// Splits every tensor over the ranks by one of its dimensions: the one that the option `dim` gives, or the last.
class Columns {
 public:
  static std::vector<Option> options() {
    return {integer_option("dim", -1, -1, 15, "The dimension to split; -1 is the last.")};
  }

  void make_plan(const Job& job, const Graph& graph, PlanWriter& plan) const {
    const std::int64_t dim = job.options.integer("dim");
    plan.add_mesh_axis("model", job.ranks);
    for (const Tensor& tensor : graph.tensors) {
      const auto rank = static_cast<std::int64_t>(tensor.shape.size());
      if (dim >= rank) {
        throw InvalidJob("tensor '" + tensor.name + "' has no dimension " + std::to_string(dim) +
                         ": set a smaller dim in [strategy]");
      }
      if (rank > 0) {
        const auto split = static_cast<std::uint32_t>(dim < 0 ? rank - 1 : dim);
        plan.place_tensor(tensor.name, Role::store, {split_dim(split, {"model"})});
      }
    }
  }
};

}  // namespace

SHARDRUN_EXPORT_STRATEGY(Columns, "columns", "0.3")
