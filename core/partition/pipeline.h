#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/graph/graph.h"
#include "core/mesh/mesh.h"
#include "core/plan/plan.h"

namespace shardrun::partition {

/// How layers and microbatches are spread over the stages of a pipeline: a mesh axis over which nothing else is split.
struct Pipeline {
  mesh::AxisId axis = -1;  ///< −1: there is none
  std::vector<plan::Chunk> chunks;
  std::vector<std::vector<plan::Action>> actions;  ///< of each stage, in its order

  [[nodiscard]] bool exists() const noexcept { return axis >= 0; }
  [[nodiscard]] std::int32_t stages() const noexcept {
    return exists() ? static_cast<std::int32_t>(actions.size()) : 1;
  }
  /// The chunk that a node of this layer belongs to.
  [[nodiscard]] std::size_t chunk_of(std::int32_t layer) const noexcept;
  [[nodiscard]] std::int32_t stage_of(std::int32_t layer) const noexcept;
};

/// Throws Error{job} where the plan's actions leave something out, do something twice, or come before what they need;
/// it names the action.
[[nodiscard]] Pipeline pipeline_of(const plan::Plan& plan, const mesh::Mesh& mesh, std::int32_t microbatches);

}  // namespace shardrun::partition
