#include "core/partition/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "core/base/error.h"

namespace shardrun::partition {
namespace {

using plan::Action;

[[noreturn]] void refuse(const plan::Plan& plan, const std::string& text) {
  throw Error(ErrorCode::job, fmt::format("strategy {}: {}", plan.strategy, text));
}

/// Which parts of a chunk and microbatch have been executed.
struct Done {
  bool forward = false;
  bool input = false;
  bool weight = false;
};

/// Checks one stage's list of actions.
class Checking {
 public:
  Checking(const plan::Plan& plan, StageId stage, std::int32_t microbatches)
      : plan_(plan), stage_(stage), microbatches_(microbatches) {}

  void run() {
    const plan::Pipeline& pipeline = plan_.pipeline;
    for (const Action& action : pipeline.actions[stage_.index()]) {
      check(action);
    }
    for (std::uint32_t c = 0; c < pipeline.chunks.size(); ++c) {
      for (std::int32_t m = 0; m < microbatches_ && on_stage(c); ++m) {
        require_all({Action::Kind::forward, c, static_cast<std::uint32_t>(m)});
      }
    }
  }

 private:
  [[nodiscard]] bool on_stage(std::uint32_t chunk) const {
    return plan_.pipeline.chunks[chunk].stage == stage_.index();
  }

  void check(const Action& action) {
    if (action.chunk >= plan_.pipeline.chunks.size() || !on_stage(action.chunk)) {
      fail(action, fmt::format("chunk {} is not on this stage", action.chunk));
    }
    if (action.microbatch >= static_cast<std::uint32_t>(microbatches_)) {
      fail(action, fmt::format("a step has {} microbatches, numbered from 0: see [data] microbatches", microbatches_));
    }
    // Stays valid: std::map does not move elements.
    Done& done = done_[{action.chunk, action.microbatch}];
    const bool forward = action.kind == Action::Kind::forward;
    const bool input = action.kind == Action::Kind::backward || action.kind == Action::Kind::backward_input;
    const bool weight = action.kind == Action::Kind::backward || action.kind == Action::Kind::backward_weight;
    if ((forward && done.forward) || (input && done.input) || (weight && done.weight)) {
      fail(action, "it has been done already");
    }
    // If the neighbouring chunk is on this stage, its result must exist already. Other stages' results are waited for.
    if (forward && action.chunk > 0 && on_stage(action.chunk - 1) &&
        !done_[{action.chunk - 1, action.microbatch}].forward) {
      fail(action,
           fmt::format("forward of chunk {}, which is on this stage too, has to come before it", action.chunk - 1));
    }
    if (input && action.chunk + 1 < plan_.pipeline.chunks.size() && on_stage(action.chunk + 1) &&
        !done_[{action.chunk + 1, action.microbatch}].input) {
      fail(action,
           fmt::format("backward of chunk {}, which is on this stage too, has to come before it", action.chunk + 1));
    }
    if (input && !done.forward) {
      fail(action, "forward of this chunk and microbatch has to come before it");
    }
    if (weight && !input && !done.input) {
      fail(action, "the gradients of activations (I) have to come before those of parameters");
    }
    done.forward = done.forward || forward;
    done.input = done.input || input;
    done.weight = done.weight || weight;
  }

  void require_all(Action action) {
    const Done& done = done_[{action.chunk, action.microbatch}];
    if (done.forward && !done.input && !done.weight) {
      action.kind = Action::Kind::backward;
      fail(action, "it is missing: add it behind the forward, or its two parts, I and W");
    }
    for (const auto& [kind, is_done] :
         {std::pair{Action::Kind::forward, done.forward}, std::pair{Action::Kind::backward_input, done.input},
          std::pair{Action::Kind::backward_weight, done.weight}}) {
      if (!is_done) {
        action.kind = kind;
        fail(action, "it is missing: add it");
      }
    }
  }

  [[noreturn]] void fail(const Action& action, const std::string& why) const {
    refuse(plan_, fmt::format("stage {}, action {}: {}", stage_.number(), to_string(action), why));
  }

  const plan::Plan& plan_;
  StageId stage_;
  std::int32_t microbatches_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, Done> done_;  ///< per chunk and microbatch
};

std::vector<Action> forwards_of(const plan::Pipeline& pipeline, StageId stage) {
  std::vector<Action> forwards;
  for (std::uint32_t chunk = 0; chunk < pipeline.chunks.size(); ++chunk) {
    if (pipeline.chunks[chunk].stage == stage.index()) {
      forwards.push_back({Action::Kind::forward, chunk, 0});
    }
  }
  return forwards;
}

}  // namespace

std::size_t Pipeline::chunk_of(std::int32_t layer) const noexcept {
  std::size_t chunk = 0;
  for (std::size_t c = 1; c < chunks.size(); ++c) {
    if (layer >= static_cast<std::int32_t>(chunks[c].first_layer)) {
      chunk = c;
    }
  }
  return chunk;
}

StageId Pipeline::stage_of(std::int32_t layer) const noexcept {
  return exists() ? StageId(chunks[chunk_of(layer)].stage) : StageId(0);
}

Pipeline pipeline_of(const plan::Plan& plan, const mesh::Mesh& mesh, std::optional<std::int32_t> microbatches) {
  const plan::Pipeline& draft = plan.pipeline;
  if (draft.mesh_axis.empty()) {
    return {};
  }
  Pipeline pipeline{.axis = mesh.find(draft.mesh_axis),
                    .chunks = draft.chunks,
                    .actions = IdVector<StageId, std::vector<Action>>(draft.actions)};
  const auto splits = [&](const std::vector<std::string>& axes) {
    return std::find(axes.begin(), axes.end(), draft.mesh_axis) != axes.end();
  };
  const auto any_splits = [&](const plan::DimSplits& dims) { return std::any_of(dims.begin(), dims.end(), splits); };
  const bool taken = std::any_of(plan.axes.begin(), plan.axes.end(),
                                 [&](const plan::AxisPlacement& axis) { return splits(axis.mesh_axes); }) ||
                     std::any_of(plan.tensors.begin(), plan.tensors.end(),
                                 [&](const plan::TensorPlacement& tensor) {
                                   return any_splits(tensor.dims) || splits(tensor.flat);
                                 }) ||
                     std::any_of(plan.cut_points.begin(), plan.cut_points.end(),
                                 [&](const plan::CutPointPlacement& point) { return any_splits(point.dims); });
  if (taken) {
    refuse(plan, fmt::format("mesh axis {} has the layers, and something else is split over it", draft.mesh_axis));
  }
  for (const StageId stage : pipeline.stage_ids()) {
    if (std::none_of(draft.chunks.begin(), draft.chunks.end(),
                     [&](const plan::Chunk& chunk) { return chunk.stage == stage.index(); })) {
      refuse(plan, fmt::format("stage {} of the pipeline has no chunk", stage.number()));
    }
    if (microbatches) {
      Checking(plan, stage, *microbatches).run();
    } else {
      pipeline.actions[stage] = forwards_of(draft, stage);
    }
  }
  return pipeline;
}

}  // namespace shardrun::partition
