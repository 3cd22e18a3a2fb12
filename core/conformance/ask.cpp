#include <fmt/format.h>
#include <fmt/ranges.h>
#include <shardrun/sdk/strategy/border.hpp>
#include <shardrun/strategy.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <vector>

#include "core/base/error.h"
#include "core/conformance/strategy_member.h"
#include "plugins/loader/raw_attributes.h"
#include "plugins/loader/recorder.h"
#include "plugins/loader/structs.h"

namespace shardrun::conformance {
namespace {

using plan::DimSplits;
using plan::Plan;

constexpr unsigned char untouched = 0xA5;
/// Number of bytes by which the structs of a later release are larger.
constexpr std::size_t growth = 24;

/// The sr_error that the plugin may write to, between guard bytes.
struct GuardedError {
  unsigned char before[64];
  sr_error error;
  unsigned char behind[4096];

  GuardedError() {
    std::fill(std::begin(before), std::end(before), untouched);
    std::fill(std::begin(behind), std::end(behind), untouched);
    std::memset(&error, 0, sizeof(error));
    error.struct_size = sizeof(error);
  }

  void require_bounds() const {
    const auto is_untouched = [](unsigned char byte) { return byte == untouched; };
    if (!std::all_of(std::begin(before), std::end(before), is_untouched) ||
        !std::all_of(std::begin(behind), std::end(behind), is_untouched)) {
      throw Failure(
          fmt::format("make_plan wrote outside of the sr_error that it was given, which has {} bytes", sizeof(error)));
    }
    if (error.struct_size != sizeof(error)) {
      throw Failure(fmt::format("make_plan changed struct_size of the sr_error to {}", error.struct_size));
    }
    if (::strnlen(error.text, sizeof(error.text)) == sizeof(error.text)) {
      throw Failure("the text that make_plan left in sr_error has no end");
    }
  }
};

/// A copy of an array of structs. `growth` bytes of unknown content follow each struct, as in a later release.
template <class T>
class Grown {
 public:
  Grown(const T* array, std::uint32_t count, std::uint32_t stride)
      : bytes_(count * stride_of(), static_cast<std::byte>(untouched)) {
    for (std::uint32_t i = 0; i < count; ++i) {
      std::byte* const element = bytes_.data() + i * stride_of();
      std::memcpy(element, reinterpret_cast<const std::byte*>(array) + std::size_t{i} * stride, sizeof(T));
      const std::uint32_t size = stride_of();
      std::memcpy(element, &size, sizeof(size));
    }
  }
  explicit Grown(const T& one) : Grown(&one, 1, sizeof(T)) {}

  [[nodiscard]] const T* data() const noexcept { return reinterpret_cast<const T*>(bytes_.data()); }
  [[nodiscard]] static constexpr std::uint32_t stride_of() noexcept { return sizeof(T) + growth; }

 private:
  std::vector<std::byte> bytes_;
};

/// Calls `act` with the same request, but in the larger structs of a later release.
template <class Act>
std::int32_t call_as_later(const sr_job& job, const sr_graph& graph, const sr_plan_writer& writer, Act act) {
  const Grown<sr_mesh_axis> mesh(job.mesh, job.mesh_count, job.mesh_stride);
  const Grown<sr_option_value> options(job.options, job.option_count, job.option_stride);
  const Grown<sr_tensor> tensors(graph.tensors, graph.tensor_count, graph.tensor_stride);
  const Grown<sr_axis> axes(graph.axes, graph.axis_count, graph.axis_stride);
  const Grown<sr_cut_point> cut_points(graph.cut_points, graph.cut_point_count, graph.cut_point_stride);
  const Grown<sr_layer> layers(graph.layers, graph.layer_count, graph.layer_stride);
  sr_job later_job = job;
  later_job.mesh = mesh.data();
  later_job.mesh_stride = mesh.stride_of();
  later_job.options = options.data();
  later_job.option_stride = options.stride_of();
  sr_graph later_graph = graph;
  later_graph.tensors = tensors.data();
  later_graph.tensor_stride = tensors.stride_of();
  later_graph.axes = axes.data();
  later_graph.axis_stride = axes.stride_of();
  later_graph.cut_points = cut_points.data();
  later_graph.cut_point_stride = cut_points.stride_of();
  later_graph.layers = layers.data();
  later_graph.layer_stride = layers.stride_of();
  return act(*Grown<sr_job>(later_job).data(), *Grown<sr_graph>(later_graph).data(),
             *Grown<sr_plan_writer>(writer).data());
}

std::string text_of(const DimSplits& dims) {
  std::vector<std::string> texts;
  for (const std::vector<std::string>& mesh_axes : dims) {
    texts.push_back(mesh_axes.empty() ? "whole" : fmt::format("{}", fmt::join(mesh_axes, " and ")));
  }
  return fmt::format("[{}]", fmt::join(texts, ", "));
}

std::string text_of(const Plan& plan) {
  std::string text;
  for (const plan::MeshAxis& axis : plan.mesh) {
    text += fmt::format("mesh axis {} of {}\n", axis.name, axis.size);
  }
  for (const plan::AxisPlacement& axis : plan.axes) {
    text += fmt::format("axis {} over {}\n", axis.axis, text_of(DimSplits{axis.mesh_axes}));
  }
  for (const plan::TensorPlacement& tensor : plan.tensors) {
    text += fmt::format("tensor {} in role {} over {}\n", tensor.tensor, static_cast<int>(tensor.role) + 1,
                        text_of(tensor.dims));
    if (!tensor.flat.empty()) {
      text += fmt::format("its elements over {}\n", text_of(DimSplits{tensor.flat}));
    }
  }
  for (const plan::CutPointPlacement& point : plan.cut_points) {
    text += fmt::format("cut point {} over {}\n", point.cut_point, text_of(point.dims));
  }
  for (const plan::TensorGather& tensor : plan.gathers) {
    text += fmt::format("tensor {} at use, unit {}{}\n", tensor.tensor, tensor.unit, tensor.keep ? ", kept" : "");
  }
  for (const plan::Chunk& chunk : plan.pipeline.chunks) {
    text += fmt::format("chunk from layer {} on stage {}\n", chunk.first_layer, chunk.stage);
  }
  for (std::size_t stage = 0; stage < plan.pipeline.actions.size(); ++stage) {
    text += fmt::format("stage {}:", stage);
    for (const plan::Action& action : plan.pipeline.actions[stage]) {
      text += fmt::format(" {}/{}/{}", static_cast<int>(action.kind), action.chunk, action.microbatch);
    }
    text += "\n";
  }
  for (const plan::VaryingTensor& tensor : plan.varying) {
    text += fmt::format("tensor {} varies over {}\n", tensor.tensor, tensor.mesh_axis);
  }
  for (const plan::Hook& hook : plan.hooks) {
    text += fmt::format("hook {} over {} every {}: {}\n", to_string(hook.kind), hook.mesh_axis, hook.every,
                        fmt::join(hook.tensors, ", "));
    for (const plan::HookState& state : hook.states) {
      text += fmt::format("state {} of it, at first {}\n", state.name, state.copies_tensor ? "the tensor" : "zero");
    }
  }
  return text + fmt::format("buckets of {} bytes\n", plan.bucket_bytes);
}

}  // namespace

Answer ask(const plugins::Plugin& strategy, const plugins::StrategyRequest& request, HostRelease host) {
  const auto functions =
      plugins::read_struct<sr_strategy>(strategy.table().functions, SR_STRATEGY_SIZE_1_0, "the function table");
  if (functions.make_plan == nullptr) {
    throw Failure("the function table has no make_plan");
  }
  const OptionValues options = checked_with_defaults(strategy.options(), request.options);
  const std::vector<sr_option_value> raw = plugins::raw_options(options);
  const sdk::detail::WrittenJob written_job(request.job, plugins::raw_view(raw));
  const sdk::detail::WrittenGraph written_graph(request.graph);
  plugins::PlanRecorder recorder(request);
  GuardedError guarded;
  const auto call = [&](const sr_job& job, const sr_graph& graph, const sr_plan_writer& writer) {
    return functions.make_plan(strategy.table().self, &job, &graph, &writer, &guarded.error);
  };
  std::int32_t status = SR_OK;
  try {
    status = host == HostRelease::current
                 ? call(written_job.raw(), written_graph.raw(), recorder.writer())
                 : call_as_later(written_job.raw(), written_graph.raw(), recorder.writer(), call);
  } catch (const std::exception& escaped) {
    throw Failure(fmt::format("make_plan let an exception out, which no plugin may: {}", escaped.what()));
  } catch (...) {
    throw Failure("make_plan let an exception out, which no plugin may");
  }
  guarded.require_bounds();
  if (recorder.refusal()) {
    throw Failure(fmt::format("it wrote what no plan can hold: {}", recorder.refusal()->message()));
  }
  const std::string reason = guarded.error.text;
  if (status == SR_INVALID && !reason.empty()) {
    return {.is_plan = false, .text = reason};
  }
  if (status != SR_OK) {
    throw Failure(
        fmt::format("make_plan ended with status {} and {}; expected SR_OK (0) and a plan, or SR_INVALID "
                    "({}) and a reason",
                    status, reason.empty() ? "no reason" : fmt::format("the reason '{}'", reason), SR_INVALID));
  }
  try {
    const Plan plan = recorder.finish();
    return {.is_plan = true, .text = text_of(plan), .plan = plan};
  } catch (const Error& refused) {
    throw Failure(fmt::format("it wrote a plan that cannot be: {}", refused.message()));
  }
}

}  // namespace shardrun::conformance
