#pragma once

#include <optional>
#include <vector>

#include "core/job/job.h"
#include "core/mesh/mesh.h"

namespace shardrun::compile {

/// The link of a mesh axis.
struct AxisRate {
  double bandwidth = 0;  ///< bytes a second
  double latency = 0;    ///< seconds a message
};

/// Throws Error{job} if [cluster.AXIS] names an axis that the mesh does not have, or if [cluster] flops is given and an
/// axis has no bandwidth.
void check_cluster(const job::Job& job, const mesh::Mesh& mesh);

/// What [cluster] says about each axis. REQUIRES: check_cluster passed.
[[nodiscard]] std::vector<std::optional<AxisRate>> axis_rates(const job::Job& job, const mesh::Mesh& mesh);

}  // namespace shardrun::compile
