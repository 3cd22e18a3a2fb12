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

/// An Error{job} that a key of [train] resolves. The partitioner does not know the key's place.
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
  std::int32_t unit = -1;  ///< gathered at use, together with the other states of this unit; −1: gathered once a call
  bool keep = false;       ///< whether it stays gathered from its first use in a call to its last
};

/// A hook of the plan over a mesh axis that has several ranks.
struct PlacedHook {
  plan::HookKind kind = plan::HookKind::sync_gradients;
  mesh::AxisId axis = {};
  std::int64_t every = 1;
  /// The parameters whose gradients it processes. For after_step: the float32 states that it processes: the parameters,
  /// or their master weights in mixed precision.
  std::vector<graph::StateId> parameters;
  std::map<graph::StateId, std::size_t> numbers;  ///< the index that belongs to each parameter in `parameters`
  /// The graph's hook states: for each state that the hook keeps, one per parameter.
  std::vector<std::vector<graph::StateId>> states;
};

/// A plan applied to a graph: the placement of each state, and the placements that the plan asks of other values. Mesh
/// axes of size 1 split nothing and occur in no placement.
struct Placements {
  mesh::Mesh mesh;
  IdVector<graph::StateId, mesh::Placement> states;   ///< between calls: the roles store, gradient and optimizer
  IdVector<graph::StateId, mesh::Placement> uses;     ///< as the ops read a state; mostly equal to `states`
  IdVector<graph::StateId, mesh::Placement> updates;  ///< as the update reads a state; mostly equal to `states`
  IdVector<graph::StateId, Gather> gathers;
  bool stages = false;  ///< whether there is a pipeline: then a backward may not directly follow its forward
  std::map<std::string, std::vector<mesh::AxisId>> axes;  ///< mesh axes of each logical axis
  std::map<std::string, mesh::Placement> cut_points;
  std::vector<PlacedHook> hooks;

  /// Null if there is none.
  [[nodiscard]] const PlacedHook* find_hook(plan::HookKind kind) const noexcept;

  /// The placement of a value by the rules of its axes alone. A mesh axis goes to the first dimension that asks for it.
  /// An axis "heads/3" follows the rule of "heads": see graph::GroupedAxis.
  [[nodiscard]] mesh::Placement by_axes(const graph::TensorType& type) const;
};

/// Applies a plan to a graph. REQUIRES: the graph has the plan's hook states. Throws Error{job} if a tensor varies over
/// a mesh axis that splits it.
[[nodiscard]] Placements place(const graph::Graph& graph, const plan::Plan& plan);

}  // namespace shardrun::partition
