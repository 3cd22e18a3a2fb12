#pragma once

#include <shardrun/strategy.h>

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/plan/plan.h"
#include "plugins/loader/call.h"
#include "plugins/loader/strategy.h"

namespace shardrun::plugins {

/// The host's side of sr_plan_writer. It records what a strategy writes.
class PlanRecorder final : public Recorder {
 public:
  explicit PlanRecorder(const StrategyRequest& request);

  [[nodiscard]] const sr_plan_writer& writer() const noexcept { return writer_; }

  /// The plan, after the strategy has returned. Throws the first refusal, or Error{plugin} if the plan does not fit the
  /// ranks or omits a mesh axis of the job.
  [[nodiscard]] plan::Plan finish() const;

  // The functions of the writer. Each throws Error{plugin}.
  void add_mesh_axis(const char* name, std::uint32_t size);
  void place_axis(const char* axis, const char* const* mesh_axes, std::uint32_t count);
  void place_tensor(const char* glob, std::uint32_t role, const sr_split* splits, std::uint32_t count,
                    std::uint32_t stride);
  void place_cut_point(const char* glob, const sr_split* splits, std::uint32_t count, std::uint32_t stride);

  void gather_at_use(const char* glob, const char* unit, std::uint32_t keep);
  void place_layers(const char* mesh_axis, const sr_chunk* chunks, std::uint32_t count, std::uint32_t stride);
  void set_actions(std::uint32_t stage, const sr_action* actions, std::uint32_t count, std::uint32_t stride);

  void set_hook(plan::HookKind kind, const char* glob, const char* mesh_axis, std::uint32_t every);
  void add_hook_state(std::uint32_t hook, const char* name, std::uint32_t begins);
  void vary(const char* glob, const char* mesh_axis);

  void set_bucket_bytes(std::uint64_t bytes) noexcept { bucket_bytes_ = bytes; }

 private:
  struct Split;

  [[nodiscard]] std::vector<std::string> checked_mesh_axes(const char* const* mesh_axes, std::uint32_t count) const;
  [[nodiscard]] std::vector<Split> read_splits(const sr_split* splits, std::uint32_t count, std::uint32_t stride) const;

  const StrategyRequest& request_;
  sr_plan_writer writer_{};
  std::vector<plan::MeshAxis> mesh_;
  // The keys are positions in the request, so that the plan does not depend on the order of the calls.
  std::map<std::size_t, std::vector<std::string>> axes_;
  std::map<std::pair<std::size_t, plan::TensorRole>, plan::TensorPlacement> tensors_;
  std::map<std::size_t, plan::DimSplits> cut_points_;
  std::map<std::size_t, plan::TensorGather> gathers_;
  std::map<std::size_t, std::set<std::string>> varying_;
  std::vector<plan::Hook> hooks_;
  plan::Pipeline pipeline_;
  std::uint64_t bucket_bytes_ = 0;
};

}  // namespace shardrun::plugins
