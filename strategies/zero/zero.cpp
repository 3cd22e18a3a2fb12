#include <shardrun/sdk/strategy.hpp>

#include <string>
#include <vector>

using namespace shardrun::sdk;

namespace {

constexpr double bytes_of_mb = 1 << 20;
constexpr int stage = ZERO_STAGE;

/// Data parallelism without redundancy (Rajbhandari et al. 2019, arXiv:1910.02054, section 5). Each rank computes some
/// of each batch's samples and updates the rows of every parameter that it owns: stage 1 splits the optimizer's state
/// by owner, 2 the gradients as well, which are reduced and freed as backward makes them, 3 the parameters as well,
/// which are brought together for the layer that uses them (FSDP: Zhao et al. 2023, arXiv:2304.11277).
class Zero {
 public:
  static std::vector<Option> options() {
    std::vector<Option> options = {
        number_option("bucket_mb", 4, 0, 1 << 20,
                      "MiB of gradients, or of updated parameters, that are moved at once; 0: each tensor by itself")};
    if (stage == 3) {
      options.push_back(text_option("unit", "layer", {"layer", "tensor"},
                                      "what is brought together at once: a layer's parameters, or each by itself"));
      options.push_back(text_option("keep", "", {},
                                    "parameters (such as embedding/*, or *) that stay brought together from forward "
                                    "to backward; empty: none"));
    }
    return options;
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
    for (const Tensor& tensor : graph.tensors) {
      if (tensor.kind == SR_TENSOR_PARAMETER && !tensor.shape.empty()) {
        place(tensor, {split_dim(0, {mesh_axis})}, plan);
      }
    }
    if (stage == 3) {
      gather(job, graph, plan);
    }
  }

 private:
  static void place(const Tensor& tensor, const std::vector<Split>& rows, PlanWriter& plan) {
    plan.place_tensor(tensor.name, Role::optimizer, rows);
    if (stage >= 2) {
      plan.place_tensor(tensor.name, Role::gradient, rows);
    }
    if (stage == 3) {
      plan.place_tensor(tensor.name, Role::store, rows);
      plan.place_tensor(tensor.name, Role::use, {});
    }
  }

  static void gather(const Job& job, const Graph& graph, PlanWriter& plan) {
    const bool by_layer = job.options.text("unit") == "layer";
    const auto unit_of = [&](const Tensor& tensor) {
      return !by_layer ? tensor.name : tensor.layer < 0 ? "outside" : graph.layers[static_cast<std::size_t>(tensor.layer)].name;
    };
    for (const Tensor& tensor : graph.tensors) {
      if (tensor.kind == SR_TENSOR_PARAMETER && !tensor.shape.empty()) {
        plan.gather_at_use(tensor.name, unit_of(tensor));
      }
    }
    const std::string& keep = job.options.text("keep");
    if (!keep.empty()) {
      plan.gather_at_use(keep, keep, true);
    }
  }
};

#define ZERO_NAME_OF(stage) "zero" #stage
#define ZERO_NAME(stage) ZERO_NAME_OF(stage)

}  // namespace

SHARDRUN_EXPORT_STRATEGY(Zero, ZERO_NAME(ZERO_STAGE), "1.0")
