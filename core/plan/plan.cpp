#include "core/plan/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/plan/hook.h"

namespace shardrun::plan {

const char* to_string(HookKind kind) noexcept {
  return kind == HookKind::sync_gradients ? "sync_gradients" : "after_step";
}

std::string to_string(const HookGroup& group) {
  return fmt::format("hook {} of {}{}", to_string(group.kind),
                     group.tensors.empty() ? "nothing" : group.tensors.front().name,
                     group.tensors.size() > 1 ? fmt::format(" and {} more", group.tensors.size() - 1) : "");
}

namespace {

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "" : ",") + name;
  }
  return text.empty() ? "-" : text;
}

std::string join(const DimSplits& dims) {
  std::string text;
  for (const std::vector<std::string>& dim : dims) {
    text += (text.empty() ? "" : " | ") + join(dim);
  }
  return "[" + text + "]";
}

const char* role_name(TensorRole role) noexcept {
  switch (role) {
    case TensorRole::store: return "store";
    case TensorRole::use: return "use";
    case TensorRole::gradient: return "gradient";
    case TensorRole::optimizer: return "optimizer";
  }
  return "?";
}

}  // namespace

std::string_view letter(Action::Kind kind) noexcept {
  return std::string_view("FBIW").substr(static_cast<std::size_t>(kind), 1);
}

std::string to_string(const Action& action) {
  return fmt::format("{}{}{}", action.chunk, letter(action.kind), action.microbatch);
}

std::int64_t Plan::ranks() const noexcept {
  std::int64_t ranks = 1;
  for (const MeshAxis& axis : mesh) {
    ranks *= axis.size;
  }
  return ranks;
}

const Hook* Plan::find_hook(HookKind kind) const noexcept {
  const auto found = std::ranges::find(hooks, kind, &Hook::kind);
  return found == hooks.end() ? nullptr : &*found;
}

std::string to_string(const Plan& plan) {
  std::string text = fmt::format("strategy {}: {} ranks\n", plan.strategy, plan.ranks());
  for (const MeshAxis& axis : plan.mesh) {
    text += fmt::format("mesh axis {} {}\n", axis.name, axis.size);
  }
  if (plan.whole_sums) {
    text += "whole sums\n";
  }
  if (plan.overlaps) {
    text += "calls overlap\n";
  }
  if (!plan.order.empty()) {
    text += fmt::format("order {}\n", fmt::join(plan.order, " "));
  }
  for (const AxisPlacement& axis : plan.axes) {
    text += fmt::format("axis {} -> {}\n", axis.axis, join(axis.mesh_axes));
  }
  for (const TensorPlacement& tensor : plan.tensors) {
    text += fmt::format("tensor {} {} {}\n", tensor.tensor, role_name(tensor.role),
                        join(tensor.dims) + (tensor.flat.empty() ? "" : " flat " + join(tensor.flat)));
  }
  for (const TensorGather& tensor : plan.gathers) {
    text += fmt::format("gather {} at use, unit {}{}\n", tensor.tensor, tensor.unit, tensor.keep ? ", kept" : "");
  }
  for (const VaryingTensor& tensor : plan.varying) {
    text += fmt::format("tensor {} varies over {}\n", tensor.tensor, tensor.mesh_axis);
  }
  for (const Hook& hook : plan.hooks) {
    text += fmt::format("hook {} over {}, every {}: {}\n", to_string(hook.kind), hook.mesh_axis, hook.every,
                        join(hook.tensors));
    for (const HookState& state : hook.states) {
      text += fmt::format("state {} of it, at first {}\n", state.name, state.copies_tensor ? "the tensor" : "zero");
    }
  }
  const Pipeline& pipeline = plan.pipeline;
  for (std::size_t c = 0; c < pipeline.chunks.size(); ++c) {
    text += fmt::format("chunk {} from layer {} on stage {}\n", c, pipeline.chunks[c].first_layer,
                        pipeline.chunks[c].stage);
  }
  for (std::size_t stage = 0; stage < pipeline.actions.size(); ++stage) {
    text += fmt::format("stage {}:", stage);
    for (const Action& action : pipeline.actions[stage]) {
      text += " " + to_string(action);
    }
    text += "\n";
  }
  for (const CutPointPlacement& point : plan.cut_points) {
    text += fmt::format("cut point {} {}\n", point.cut_point, join(point.dims));
  }
  return text;
}

}  // namespace shardrun::plan
