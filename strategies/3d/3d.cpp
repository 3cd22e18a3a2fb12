#include <shardrun/sdk/strategy.hpp>

#include <algorithm>
#include <map>

using namespace shardrun::sdk;

namespace {

/// Combines data, tensor and pipeline parallelism (Narayanan et al. 2021, arXiv:2104.04473, section 3), each along its
/// own mesh axis. The plan has the three strategies' placements. `zero` splits optimizer states, gradients or
/// parameters over the data axis. Along a fourth axis, `replica`, the whole arrangement is replicated (HSDP: Zhao et
/// al. 2023, arXiv:2304.11277, section 3.2.2).
class ThreeD {
 public:
  static std::vector<Option> options() {
    std::vector<Option> options = {
        also_called(integer_option(
                        "zero", 0, 0, 3,
                        "what ranks along the data axis split: 1 the optimizer's states, 2 gradients too, 3 parameters "
                        "too"),
                    "stage zero_stage"),
        also_called(
            boolean_option("sequence", false, "split the residual stream along the sequence, over the model axis"),
            "sequence_parallel enable_sequence_parallel"),
        bucket_option()};
    for (const std::vector<Option>& more : {pipeline_options(), gather_options()}) {
      options.insert(options.end(), more.begin(), more.end());
    }
    return options;
  }

  void make_plan(const Job& job, const Graph& graph, PlanWriter& plan) const {
    const std::map<std::string, std::uint32_t> sizes = sizes_of(job);
    // The last axis varies fastest: ranks along `model` are neighbours, the stages of a pipeline are far apart.
    for (const char* axis : {"pipe", "replica", "data", "model"}) {
      plan.add_mesh_axis(axis, sizes.at(axis));
    }
    place_batch(graph, {"replica", "data"}, plan);
    const AxisRules rules = tensor_parallel_rules(graph, "model");
    if (rules.empty() && sizes.at("model") > 1) {
      throw InvalidJob(
          "[mesh] model splits the axes heads, mlp and vocab, and this model has none of them: leave it out");
    }
    place_axes(rules, plan);
    if (job.options.boolean("sequence")) {
      place_sequence(graph, "model", {"replica", "data"}, plan);
    }
    check_gather_options(job, job.options.integer("zero"));
    if (sizes.at("pipe") > 1 && !job.options.text("keep").empty()) {
      throw InvalidJob("keep would last through all microbatches that are under way: leave it out with [mesh] pipe");
    }
    place_zero(graph, rules, zero_settings(job, job.options.integer("zero"), "data"), plan);
    plan.set_bucket_bytes(bucket_bytes(job));
    check_pipeline_options(job);
    if (sizes.at("pipe") > 1 || job.options.contents("schedule")) {
      place_pipeline(job, graph, "pipe", sizes.at("pipe"), plan);
    } else if (has_mesh_axis(job, "pipe")) {
      // Any schedule is allowed, so that one job file works for meshes of all sizes.
      static_cast<void>(wanted_chunks(job, graph, 1, 1));
    } else {
      for (const auto& [option, usual] : {std::pair("schedule", "1f1b"), std::pair("layers", "")}) {
        if (job.options.text(option) != usual) {
          throw InvalidJob(
              std::string(option) + " = " + job.options.text(option) +
              " has no effect without stages, of which [mesh] pipe is the number: leave it out, or write one");
        }
      }
    }
  }

 private:
  static bool has_mesh_axis(const Job& job, const std::string& name) {
    return std::any_of(job.mesh.begin(), job.mesh.end(), [&](const MeshAxis& axis) { return axis.name == name; });
  }

  /// Sizes of the four axes; 1 for those that the job does not set. Without [mesh] all ranks are along `data`.
  static std::map<std::string, std::uint32_t> sizes_of(const Job& job) {
    std::map<std::string, std::uint32_t> sizes = {
        {"data", job.mesh.empty() ? job.ranks : 1}, {"model", 1}, {"pipe", 1}, {"replica", 1}};
    for (const MeshAxis& axis : job.mesh) {
      const auto known = sizes.find(axis.name);
      if (known == sizes.end()) {
        throw InvalidJob("its mesh axes are data, model, pipe and replica, and [mesh] has '" + axis.name + "'");
      }
      known->second = axis.size;
    }
    return sizes;
  }
};

}  // namespace

SHARDRUN_EXPORT_STRATEGY(ThreeD, "3d", "1.0", "megatron 3d_parallel three_d hybrid hybrid_parallel 4d")
