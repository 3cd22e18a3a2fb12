#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/graph/graph.h"
#include "core/mesh/mesh.h"
#include "core/partition/split_function.h"
#include "core/plan/plan.h"

namespace shardrun::partition {

/// Assigns layers and microbatches to the stages of a pipeline. Nothing else is split over the pipeline's mesh axis.
struct Pipeline {
  mesh::AxisId axis = {};  ///< the mesh axis of the stages, if there is a pipeline
  std::vector<plan::Chunk> chunks;
  IdVector<StageId, std::vector<plan::Action>> actions;  ///< per stage, in execution order

  [[nodiscard]] bool exists() const noexcept { return axis.exists(); }
  [[nodiscard]] std::size_t stages() const noexcept { return exists() ? actions.size() : 1; }
  [[nodiscard]] IdRange<StageId> stage_ids() const noexcept { return {StageId(0), StageId(stages())}; }
  /// The chunk that a node of this layer belongs to.
  [[nodiscard]] std::size_t chunk_of(std::int32_t layer) const noexcept;
  [[nodiscard]] StageId stage_of(std::int32_t layer) const noexcept;
};

/// The pipeline of a plan. `microbatches`: of a training step; nothing: the job does not train, so the plan's actions
/// are ignored and each stage executes one forward of each of its chunks. Throws Error{job} if actions are missing,
/// repeated or before their inputs, if a stage has no chunk, or if the plan splits anything else over the axis.
[[nodiscard]] Pipeline pipeline_of(const plan::Plan& plan, const mesh::Mesh& mesh,
                                   std::optional<std::int32_t> microbatches);

}  // namespace shardrun::partition
