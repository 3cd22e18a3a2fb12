#pragma once

/// Placements for strategies to combine: tensor parallelism, sequence parallelism, and ZeRO (FSDP).

#include <shardrun/sdk/strategy/glob.hpp>
#include <shardrun/sdk/strategy/plan.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace shardrun::sdk {

/// Logical axes and the mesh axes that split them, major to minor.
using AxisRules = std::map<std::string, std::vector<std::string>>;

/// The axes of the graph that tensor parallelism splits (Shoeybi et al. 2019, arXiv:1909.08053, section 3).
[[nodiscard]] inline AxisRules tensor_parallel_rules(const Graph& graph, const std::string& mesh_axis) {
  AxisRules rules;
  for (const char* axis : {"heads", "mlp", "vocab"}) {
    if (graph.has_axis(axis)) {
      rules[axis] = {mesh_axis};
    }
  }
  return rules;
}

inline void place_axes(const AxisRules& rules, PlanWriter& plan) {
  for (const auto& [axis, mesh_axes] : rules) {
    plan.place_axis(axis, mesh_axes);
  }
}

/// Splits every cut point that has the axis seq along it (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2), and
/// its batch over the mesh axes `batch`. Throws InvalidJob if no cut point has the axis seq.
inline void place_sequence(const Graph& graph, const std::string& mesh_axis, const std::vector<std::string>& batch,
                           PlanWriter& plan) {
  bool any = false;
  for (const CutPoint& point : graph.cut_points) {
    const auto has = [&](const char* axis) {
      return std::find(point.axes.begin(), point.axes.end(), axis) != point.axes.end();
    };
    if (has("seq")) {
      std::vector<Split> splits = {split_axis("seq", {mesh_axis})};
      if (has("batch") && !batch.empty()) {
        splits.push_back(split_axis("batch", batch));
      }
      plan.place_cut_point(point.name, splits);
      any = true;
    }
  }
  if (!any) {
    throw InvalidJob(
        "sequence = true splits cut points along the axis seq, and this model has no cut point with it: leave it out");
  }
}

/// How parameters are split over ranks that compute the same (Rajbhandari et al. 2019, arXiv:1910.02054, section 5).
struct ZeroSettings {
  std::int64_t stage = 0;     ///< 1: optimizer states; 2: gradients too; 3: parameters too
  std::string mesh_axis;      ///< the mesh axis that splits them
  bool unit_is_layer = true;  ///< stage 3: gathers a whole layer at a time; otherwise each tensor separately
  std::string keep;           ///< stage 3: a glob; tensors that match stay gathered from forward to backward
};

namespace detail {

/// The axis whose rule an axis follows: "heads" for "heads/3", which has one index for three indices of "heads".
[[nodiscard]] inline std::string ruling_axis(const std::string& axis) {
  const std::size_t slash = axis.rfind('/');
  const bool groups = slash != std::string::npos && slash > 0 && slash + 1 < axis.size() &&
                      axis.find_first_not_of("0123456789", slash + 1) == std::string::npos;
  return groups ? axis.substr(0, slash) : axis;
}

/// The mesh axes that split each dimension by `rules`. A mesh axis goes to the first dimension whose rule names it.
[[nodiscard]] inline std::vector<std::vector<std::string>> split_by_rules(const Tensor& tensor,
                                                                          const AxisRules& rules) {
  std::vector<std::vector<std::string>> dims(tensor.shape.size());
  std::set<std::string> used;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    const auto rule = rules.find(ruling_axis(tensor.axes[d]));
    for (std::size_t a = 0; rule != rules.end() && a < rule->second.size(); ++a) {
      if (used.insert(rule->second[a]).second) {
        dims[d].push_back(rule->second[a]);
      }
    }
  }
  return dims;
}

[[nodiscard]] inline std::vector<Split> splits_of(const std::vector<std::vector<std::string>>& dims) {
  std::vector<Split> splits;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    if (!dims[d].empty()) {
      splits.push_back(split_dim(static_cast<std::uint32_t>(d), dims[d]));
    }
  }
  return splits;
}

}  // namespace detail

/// From ZeRO stage 1 on, places the parameters that have dimensions by the rules. In the roles that the stage splits,
/// also splits the flattened parameter over the mesh axis, into contiguous parts whose sizes differ by at most one
/// element. Throws InvalidJob if stage 3's `keep` matches no parameter.
inline void place_zero(const Graph& graph, const AxisRules& rules, const ZeroSettings& settings, PlanWriter& plan) {
  for (const Tensor& tensor : graph.tensors) {
    if (tensor.kind != SR_TENSOR_PARAMETER || tensor.shape.empty() || settings.stage == 0) {
      continue;
    }
    const std::vector<Split> used = detail::splits_of(detail::split_by_rules(tensor, rules));
    std::vector<Split> owned = used;
    owned.push_back(split_flat({settings.mesh_axis}));
    plan.place_tensor(tensor.name, Role::optimizer, owned);
    if (settings.stage >= 2) {
      plan.place_tensor(tensor.name, Role::gradient, owned);
    }
    if (settings.stage >= 3) {
      plan.place_tensor(tensor.name, Role::store, owned);
      plan.place_tensor(tensor.name, Role::use, used);
      const bool in_layer = tensor.layer >= 0 && settings.unit_is_layer;
      plan.gather_at_use(tensor.name, in_layer ? graph.layers[static_cast<std::size_t>(tensor.layer)].name
                                      : settings.unit_is_layer ? "outside"
                                                               : tensor.name);
    }
  }
  if (settings.stage >= 3 && !settings.keep.empty()) {
    const auto kept = [&](const Tensor& tensor) {
      return tensor.kind == SR_TENSOR_PARAMETER && glob_matches(settings.keep, tensor.name);
    };
    if (std::none_of(graph.tensors.begin(), graph.tensors.end(), kept)) {
      throw InvalidJob("keep = " + settings.keep +
                       " matches no parameter of the model ('shardrun show-sharding' lists them)");
    }
    plan.gather_at_use(settings.keep, settings.keep, true);
  }
}

/// Options of strategies that use these placements.
[[nodiscard]] inline Option bucket_option() {
  return also_called(
      number_option("bucket_mb", 4, 0, 1 << 20,
                    "MiB of gradients, or of updated parameters, that are moved at once; 0: each tensor by itself"),
      "bucket_cap_mb bucket_size reduce_bucket_size allreduce_bucket_size allgather_bucket_size ddp_bucket_size");
}

[[nodiscard]] inline std::uint64_t bucket_bytes(const Job& job) {
  return static_cast<std::uint64_t>(job.options.number("bucket_mb") * (1 << 20));
}

[[nodiscard]] inline std::vector<Option> gather_options() {
  return {text_option("unit", "layer", {"layer", "tensor"},
                      "where parameters are split: what is brought together at once, a layer's or each by itself"),
          text_option("keep", "", {},
                      "where parameters are split: those (such as embedding/*, or *) that stay brought together from "
                      "forward to backward; empty: none")};
}

/// Throws InvalidJob if the job sets one of gather_options() although ZeRO stage `stage` splits no parameters.
inline void check_gather_options(const Job& job, std::int64_t stage) {
  for (const Option& option : gather_options()) {
    const std::string value = job.options.text(option.name);
    if (stage < 3 && value != option.default_text) {
      throw InvalidJob(option.name + " = " + value + " has no effect with zero = " + std::to_string(stage) +
                       ": it is of parameters that are split, which they are with zero = 3; leave it out, or set that");
    }
  }
}

[[nodiscard]] inline ZeroSettings zero_settings(const Job& job, std::int64_t stage, std::string mesh_axis) {
  ZeroSettings settings{.stage = stage, .mesh_axis = std::move(mesh_axis)};
  if (stage >= 3) {
    settings.unit_is_layer = job.options.text("unit") == "layer";
    settings.keep = job.options.text("keep");
  }
  return settings;
}

/// Splits the batch over the mesh axes. Throws InvalidJob if the graph has no batch.
inline void place_batch(const Graph& graph, const std::vector<std::string>& mesh_axes, PlanWriter& plan) {
  if (!graph.has_axis("batch")) {
    throw InvalidJob(
        "it splits the batch, and this model has none: choose a strategy that splits what the model has "
        "('shardrun plugins' lists them)");
  }
  plan.place_axis("batch", mesh_axes);
}

}  // namespace shardrun::sdk
