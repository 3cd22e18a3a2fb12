#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/mesh/placement.h"
#include "core/plan/plan.h"

namespace shardrun::partition {

/// When a state that is stored split is brought together for the ops that read it.
struct Gather {
  std::int32_t unit = -1;  ///< at use, with the others of this number; −1: once a call
  bool keep = false;       ///< from its first use in a call to the last
};

/// A hook of the plan over a mesh axis that has several ranks.
struct PlacedHook {
  plan::HookKind kind = plan::HookKind::sync_gradients;
  mesh::AxisId axis = -1;
  std::int64_t every = 1;
  std::vector<graph::StateId> parameters;         ///< whose gradients, or which themselves, it is given
  std::map<graph::StateId, std::size_t> numbers;  ///< of each parameter
  /// What it keeps: of each of its states, of each parameter the graph's state.
  std::vector<std::vector<graph::StateId>> states;
};

/// A plan applied to a graph: where each state is, and what is asked of other values. Mesh axes of size 1 split
/// nothing and are left out of every placement.
struct Placements {
  mesh::Mesh mesh;
  std::vector<mesh::Placement> states;   ///< between calls: the roles store, gradient and optimizer
  std::vector<mesh::Placement> uses;     ///< as the ops read a state; of most states the same
  std::vector<mesh::Placement> updates;  ///< as the update reads a state; of most states the same
  std::vector<Gather> gathers;           ///< of each state
  bool stages = false;                   ///< layers are on stages of a pipeline: backward need not follow forward
  std::map<std::string, std::vector<mesh::AxisId>> axes;  ///< of a logical axis
  std::map<std::string, mesh::Placement> cut_points;
  std::vector<PlacedHook> hooks;

  /// Null where there is none.
  [[nodiscard]] const PlacedHook* find_hook(plan::HookKind kind) const noexcept;

  /// What the axes' rules alone say of a value: a mesh axis goes to the first dimension that asks for it.
  [[nodiscard]] mesh::Placement by_axes(const graph::TensorType& type) const;
};

/// REQUIRES: the graph has the states of the plan's hooks. Throws Error{job} where a tensor varies over what splits it.
[[nodiscard]] Placements place(const graph::Graph& graph, const plan::Plan& plan);

}  // namespace shardrun::partition
