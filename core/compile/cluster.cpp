#include "core/compile/cluster.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>

#include "core/base/error.h"
#include "core/base/suggest.h"

namespace shardrun::compile {

void check_cluster(const job::Job& job, const mesh::Mesh& mesh) {
  for (const job::ClusterAxis& each : job.cluster.axes) {
    if (mesh.find(each.axis) < 0) {
      std::vector<std::string> axes;
      for (const mesh::Axis& axis : mesh.axes) {
        axes.push_back(axis.name);
      }
      throw Error(ErrorCode::job,
                  fmt::format("{}: the mesh has no axis '{}'{}; it has {}", job.where("cluster." + each.axis, ""),
                              each.axis, did_you_mean(each.axis, axes),
                              axes.empty() ? std::string("none") : fmt::format("{}", fmt::join(axes, ", "))));
    }
  }
  const std::vector<std::optional<AxisRate>> rates = axis_rates(job, mesh);
  for (std::size_t a = 0; a < rates.size() && job.cluster.flops > 0; ++a) {
    if (mesh.axes[a].size > 1 && !rates[a]) {
      throw Error(ErrorCode::job,
                  fmt::format("{}: [cluster] flops needs a bandwidth for mesh axis {}, over which {} ranks exchange "
                              "data; write bandwidth under [cluster], or under [cluster.{}]",
                              job.where("cluster", "flops"), mesh.axes[a].name, mesh.axes[a].size, mesh.axes[a].name));
    }
  }
}

std::vector<std::optional<AxisRate>> axis_rates(const job::Job& job, const mesh::Mesh& mesh) {
  std::vector<std::optional<AxisRate>> rates(mesh.axes.size());
  for (std::size_t a = 0; a < rates.size(); ++a) {
    if (job.cluster.bandwidth > 0) {
      rates[a] = {job.cluster.bandwidth, job.cluster.latency};
    }
    for (const job::ClusterAxis& each : job.cluster.axes) {
      if (each.axis == mesh.axes[a].name) {
        rates[a] = {each.bandwidth, each.latency};
      }
    }
  }
  return rates;
}

}  // namespace shardrun::compile
