#include "core/compile/cluster.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "core/base/error.h"
#include "core/base/suggest.h"

namespace shardrun::compile {

void require_axis(const mesh::Mesh& mesh, const std::string& name, const std::string& where) {
  if (mesh.find(name).exists()) {
    return;
  }
  std::vector<std::string> axes;
  for (const mesh::Axis& axis : mesh.axes) {
    axes.push_back(axis.name);
  }
  throw Error(ErrorCode::job,
              fmt::format("{}: the mesh has no axis '{}'{}; it has {}", where, name, did_you_mean(name, axes),
                          axes.empty() ? "none" : fmt::format("{}", fmt::join(axes, ", "))));
}

void check_cluster(const job::Job& job, const mesh::Mesh& mesh) {
  for (const job::ClusterAxis& each : job.cluster.axes) {
    require_axis(mesh, each.axis, job.where("cluster." + each.axis, ""));
  }
  const AxisRates rates = axis_rates(job, mesh);
  for (const mesh::AxisId id : mesh.axes.ids()) {
    const mesh::Axis& axis = mesh.axes[id];
    if (job.cluster.flops > 0 && axis.size > 1 && !rates[id]) {
      throw Error(ErrorCode::job,
                  fmt::format("{}: [cluster] flops needs a bandwidth for mesh axis {}, over which {} ranks exchange "
                              "data; write bandwidth under [cluster], or under [cluster.{}]",
                              job.where("cluster", "flops"), axis.name, axis.size, axis.name));
    }
  }
}

AxisRates axis_rates(const job::Job& job, const mesh::Mesh& mesh) {
  AxisRates rates(mesh.axes.size());
  for (const mesh::AxisId axis : rates.ids()) {
    if (job.cluster.bandwidth > 0) {
      rates[axis] = {job.cluster.bandwidth, job.cluster.latency};
    }
    for (const job::ClusterAxis& each : job.cluster.axes) {
      if (each.axis == mesh.axes[axis].name) {
        rates[axis] = {each.bandwidth, each.latency};
      }
    }
  }
  return rates;
}

}  // namespace shardrun::compile
