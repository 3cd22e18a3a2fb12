#pragma once

#include <shardrun/strategy.h>

#include <vector>

#include "plugins/loader/strategy.h"

namespace shardrun::plugins {

/// A request in its C form. It points into the request, which must outlive it.
class RequestTables {
 public:
  /// Throws Error{internal} for a tensor or cut point that does not have one axis per dimension.
  RequestTables(const StrategyRequest& request, const OptionValues& options);
  RequestTables(const RequestTables&) = delete;
  RequestTables& operator=(const RequestTables&) = delete;

  [[nodiscard]] const sr_job& job() const noexcept { return job_; }
  [[nodiscard]] const sr_graph& graph() const noexcept { return graph_; }

 private:
  const char* const* axis_names(const std::string& name, const std::vector<std::int64_t>& shape,
                                const std::vector<std::string>& axes);

  std::vector<sr_mesh_axis> mesh_;
  std::vector<sr_option_value> options_;
  std::vector<sr_tensor> tensors_;
  std::vector<sr_axis> axes_;
  std::vector<sr_cut_point> cut_points_;
  std::vector<sr_layer> layers_;
  std::vector<sr_sharding> sharding_;
  std::vector<std::vector<const char*>> axis_names_;
  sr_layer before_{};
  sr_layer behind_{};
  sr_job job_{};
  sr_graph graph_{};
};

}  // namespace shardrun::plugins
