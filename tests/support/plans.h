#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "core/partition/plan.h"

namespace shardrun::test {

/// A plan by hand: the mesh, where logical axes go, and where the cut points whose names end in `residual` are split
/// along seq (over none: they are not placed).
[[nodiscard]] inline partition::Plan plan_of(std::vector<plugins::MeshAxis> mesh,
                                             std::vector<plugins::AxisPlacement> axes, std::uint64_t bucket_bytes = 0) {
  partition::Plan plan{.strategy = "by hand", .draft = {}};
  plan.draft.mesh = std::move(mesh);
  plan.draft.axes = std::move(axes);
  plan.draft.bucket_bytes = bucket_bytes;
  return plan;
}

/// Rows over `data`.
[[nodiscard]] inline partition::Plan data_parallel(std::uint32_t ranks, std::uint64_t bucket_bytes = 0) {
  return plan_of({{"data", ranks}}, {{"batch", {"data"}}}, bucket_bytes);
}

/// Heads, hidden columns and vocabulary over `model`.
[[nodiscard]] inline partition::Plan tensor_parallel(std::uint32_t ranks) {
  return plan_of({{"model", ranks}}, {{"heads", {"model"}}, {"mlp", {"model"}}, {"vocab", {"model"}}});
}

}  // namespace shardrun::test
