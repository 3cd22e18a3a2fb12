#pragma once

#include <optional>
#include <vector>

#include "core/job/job.h"
#include "core/mesh/mesh.h"

namespace shardrun::compile {

/// What a rank sends over a mesh axis.
struct AxisRate {
  double bandwidth = 0;  ///< bytes a second
  double latency = 0;    ///< seconds a message
};

/// Throws Error{job} where [cluster.AXIS] names an axis that the mesh does not have, or with [cluster] flops no
/// bandwidth is given for one that it has.
void check_cluster(const job::Job& job, const mesh::Mesh& mesh);

/// Of each axis what [cluster] says. REQUIRES: check_cluster has not refused it.
[[nodiscard]] std::vector<std::optional<AxisRate>> axis_rates(const job::Job& job, const mesh::Mesh& mesh);

}  // namespace shardrun::compile
