#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "core/plan/plan.h"

namespace shardrun::test {

/// A plan from a mesh and the placement of logical axes on it.
[[nodiscard]] inline plan::Plan plan_of(std::vector<plan::MeshAxis> mesh, std::vector<plan::AxisPlacement> axes,
                                        std::uint64_t bucket_bytes = 0) {
  plan::Plan plan{.strategy = "by hand"};
  plan.mesh = std::move(mesh);
  plan.axes = std::move(axes);
  plan.bucket_bytes = bucket_bytes;
  return plan;
}

/// A plan that splits the batch over the mesh axis `data`.
[[nodiscard]] inline plan::Plan data_parallel(std::uint32_t ranks, std::uint64_t bucket_bytes = 0) {
  return plan_of({{"data", ranks}}, {{"batch", {"data"}}}, bucket_bytes);
}

/// A plan that splits heads, hidden columns and vocabulary over the mesh axis `model`.
[[nodiscard]] inline plan::Plan tensor_parallel(std::uint32_t ranks) {
  return plan_of({{"model", ranks}}, {{"heads", {"model"}}, {"mlp", {"model"}}, {"vocab", {"model"}}});
}

}  // namespace shardrun::test
