#include "core/report/run_pictures.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/stop.h"
#include "core/base/suggest.h"

namespace shardrun::report {
namespace {

using checkpoint::History;
using checkpoint::OpenTensor;

constexpr const char* drawable = "a picture shows fields of one or two dimensions (those of one element do not count)";

Extent extent_in(const OpenTensor& tensor) {
  const std::optional<Extent> extent = extent_of(tensor.info.shape);
  if (!extent) {
    throw Error(ErrorCode::usage,
                fmt::format("'{}': {} is [{}], and {}; 'shardrun gather' gives all of its numbers",
                            tensor.path.native(), tensor.info.name, fmt::join(tensor.info.shape, ", "), drawable));
  }
  return *extent;
}

/// Opens a field as it was after a step. Throws Error{data} if its shape is not that of `like`, an earlier one.
OpenTensor open_like(const History& history, std::int64_t step, const OpenTensor& like) {
  OpenTensor tensor = history.open(step);
  if (tensor.info.shape != like.info.shape) {
    throw Error(ErrorCode::data, fmt::format("{} is [{}] in '{}', and [{}] in '{}': pictures of several steps need one "
                                             "shape",
                                             history.name(), fmt::join(tensor.info.shape, ", "), tensor.path.native(),
                                             fmt::join(like.info.shape, ", "), like.path.native()));
  }
  return tensor;
}

Cells cells_in(const OpenTensor& tensor) {
  stop_point();
  return cells_of(extent_in(tensor),
                  [&](std::int64_t first, std::span<double> to) { checkpoint::read_numbers(tensor, first, to); });
}

std::string title_of(const History& history, std::int64_t step) {
  return step == History::unknown_step ? history.name() : fmt::format("step {}: {}", step, history.name());
}

Style style_of(const PictureSettings& settings, const std::optional<Scale>& bounds) {
  return {.map = settings.map, .scale = settings.scale.value_or(scale_for(bounds, settings.map))};
}

}  // namespace

void draw_step(const History& history, std::int64_t step, const PictureSettings& settings,
               const std::filesystem::path& to) {
  const Cells cells = cells_in(history.open(step));
  write_png(to, draw(cells, title_of(history, step), style_of(settings, bounds_of(cells))));
}

void draw_animation(const History& history, const PictureSettings& settings, double seconds,
                    const std::filesystem::path& to) {
  const std::vector<std::int64_t> steps = history.steps();
  const OpenTensor first = history.open(steps.front());
  std::optional<Scale> bounds;
  for (const std::int64_t step : steps) {
    bounds = settings.scale ? bounds : joined(bounds, bounds_of(cells_in(open_like(history, step, first))));
  }
  std::optional<GifWriter> gif;
  for (const std::int64_t step : steps) {
    const Image image =
        draw(cells_in(open_like(history, step, first)), title_of(history, step), style_of(settings, bounds));
    if (!gif) {
      gif.emplace(to, image, seconds);
    }
    gif->add(image);
  }
  gif->commit();
}

void draw_over_time(const History& history, const PictureSettings& settings, const std::filesystem::path& to) {
  const std::vector<std::int64_t> steps = history.steps();
  OpenTensor tensor = history.open(steps.front());
  const Extent line = extent_in(tensor);
  if (!line.is_line()) {
    throw Error(ErrorCode::usage,
                fmt::format("{} is [{}], and a picture over time shows a field of one dimension: choose a --step, or "
                            "--all for an animation",
                            history.name(), fmt::join(tensor.info.shape, ", ")));
  }
  std::size_t open = 0;
  const Cells cells = cells_of({static_cast<std::int64_t>(steps.size()), line.columns},
                               [&](std::int64_t first, std::span<double> to_fill) {
                                 if (const auto row = static_cast<std::size_t>(first / line.columns); row != open) {
                                   stop_point();
                                   tensor = open_like(history, steps[row], tensor);
                                   open = row;
                                 }
                                 checkpoint::read_numbers(tensor, first % line.columns, to_fill);
                               });
  const std::string title = fmt::format("steps {} to {} upwards: {}", steps.front(), steps.back(), history.name());
  write_png(to, draw_over_time(cells, steps, title, style_of(settings, bounds_of(cells))));
}

void require_pictures(const job::Job& job, const graph::Graph& graph) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::job, fmt::format("{}: [iterate] pictures: {}", job.where("iterate", "pictures"), why));
  };
  for (const std::string& name : job.iterate.pictures) {
    std::vector<std::string> names;
    const graph::State* found = nullptr;
    for (const graph::State& state : graph.states) {
      if (state.kind == graph::StateKind::field || state.kind == graph::StateKind::output) {
        names.push_back(state.name);
        found = state.name == name ? &state : found;
      }
    }
    if (found == nullptr) {
      refuse(fmt::format("{} {} has no field or output '{}'{}; it has {}", job.engine.name.empty() ? "model" : "engine",
                         graph.model, name, did_you_mean(name, names), fmt::join(names, ", ")));
    } else if (!extent_of(found->type.shape)) {
      refuse(fmt::format("'{}' is [{}], and {}", name, fmt::join(found->type.shape, ", "), drawable));
    }
  }
}

std::uint64_t most_picture_bytes(const job::Job& job, const graph::Graph& graph, std::int64_t saves) {
  std::uint64_t bytes = 0;
  for (const std::string& name : job.iterate.pictures) {
    const std::optional<Extent> extent = extent_of(graph.states[graph.find_state(name)].type.shape);
    bytes += extent ? most_image_bytes(*extent) : 0;
  }
  // For each save, a PNG and a frame of the GIF.
  std::uint64_t all = 0;
  return __builtin_mul_overflow(bytes, 2 * static_cast<std::uint64_t>(saves), &all) ? UINT64_MAX : all;
}

}  // namespace shardrun::report
