#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/graph/graph.h"
#include "core/mesh/placement.h"
#include "core/plan/plan.h"

namespace shardrun::partition {

/// An Error{job} that a setting of [train] can resolve. compile::compile() adds the place of that key in the job file.
class TrainKeyError : public Error {
 public:
  TrainKeyError(std::string key, std::string message)
      : Error(ErrorCode::job, std::move(message)), key_(std::move(key)) {}

  [[nodiscard]] const std::string& key() const noexcept { return key_; }

 private:
  std::string key_;
};

/// When a split state is gathered for the ops that read it.
struct Gather {
  std::int32_t unit = -1;  ///< states of the same unit are gathered together, at use; −1: gathered once per call
  bool keep = false;       ///< whether the gathered state is kept from its first use in a call to its last
};

/// A hook of the plan, along one mesh axis, which can have a single rank.
struct PlacedHook {
  plan::HookKind kind = plan::HookKind::sync_gradients;
  mesh::AxisId axis = {};
  std::int64_t every = 1;
  /// For sync_gradients: the parameters whose gradients it processes. For after_step: the float32 states that it
  /// processes, which are the parameters or, in mixed precision, their master weights.
  std::vector<graph::StateId> parameters;
  std::map<graph::StateId, std::size_t> numbers;  ///< by parameter: its place, or that of its masters, in `parameters`
  /// The graph's hook states: a list for each state that the hook keeps, with an element for each parameter.
  std::vector<std::vector<graph::StateId>> states;
};

/// A plan applied to a graph: the placement of each state, and the placements that the plan gives to other values. Mesh
/// axes of size 1 split nothing and occur in no placement.
struct Placements {
  mesh::Mesh mesh;
  IdVector<graph::StateId, mesh::Placement> states;   ///< between calls, by the roles store, gradient and optimizer
  IdVector<graph::StateId, mesh::Placement> uses;     ///< as all other ops read the state; mostly equal to `states`
  IdVector<graph::StateId, mesh::Placement> updates;  ///< as the update reads the state; mostly equal to `states`
  IdVector<graph::StateId, Gather> gathers;
  bool whole_sums = false;  ///< no sum of rounded numbers is split: see plan::Plan
  bool stages = false;  ///< whether there is a pipeline; other actions may then run between a forward and its backward
  std::map<std::string, std::vector<mesh::AxisId>> axes;  ///< by logical axis: the mesh axes that split it
  std::map<std::string, mesh::Placement> cut_points;
  std::vector<PlacedHook> hooks;

  /// The hook of this kind; null if the plan has none.
  [[nodiscard]] const PlacedHook* find_hook(plan::HookKind kind) const noexcept;

  /// The placement of a value by the plan's rules for its logical axes alone. If dimensions compete for a mesh axis,
  /// the first gets it. An axis "heads/3" follows the rule of "heads": see graph::GroupedAxis.
  [[nodiscard]] mesh::Placement by_axes(const graph::TensorType& type) const;
};

/// Applies a plan to a graph. REQUIRES: the graph has the plan's hook states. Throws Error{job} if a tensor varies over
/// a mesh axis that splits it or has the stages, or if a hook cannot get its tensors whole and in float32.
[[nodiscard]] Placements place(const graph::Graph& graph, const plan::Plan& plan);

}  // namespace shardrun::partition
