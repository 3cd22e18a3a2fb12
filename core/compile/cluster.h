#pragma once

#include <optional>
#include <string>

#include "core/job/job.h"
#include "core/mesh/mesh.h"

namespace shardrun::compile {

/// The speed of the network link along a mesh axis.
struct AxisRate {
  double bandwidth = 0;  ///< bytes per second
  double latency = 0;    ///< seconds per message
};

/// By mesh axis: its rate; nothing if the job gives no bandwidth for it.
using AxisRates = IdVector<mesh::AxisId, std::optional<AxisRate>>;

/// Throws Error{job} if the mesh has no axis of this name. `where`: the place in the job file that names the axis.
void require_axis(const mesh::Mesh& mesh, const std::string& name, const std::string& where);

/// Throws Error{job} if [cluster.AXIS] names an axis that the mesh does not have, or if [cluster] flops is given and an
/// axis of several ranks has no bandwidth.
void check_cluster(const job::Job& job, const mesh::Mesh& mesh);

/// The rates that [cluster] gives for each axis.
[[nodiscard]] AxisRates axis_rates(const job::Job& job, const mesh::Mesh& mesh);

}  // namespace shardrun::compile
