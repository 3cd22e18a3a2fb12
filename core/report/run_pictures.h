#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/checkpoint/history.h"
#include "core/graph/graph.h"
#include "core/job/job.h"
#include "core/report/picture.h"

namespace shardrun::report {

// Pictures of what a run has saved. All functions replace the file `to`. They throw Error{usage} for a field that
// cannot be drawn, Error{data} if its shape differs between steps, Error{io}, and as History::open() does.

struct PictureSettings {
  ColorMap map = ColorMap::sequential;
  std::optional<Scale> scale;  ///< nothing: the range of all numbers that the picture or the animation shows
};

/// Draws one step as a PNG.
void draw_step(const checkpoint::History& history, std::int64_t step, const PictureSettings& settings,
               const std::filesystem::path& to);
/// Draws all saved steps as a GIF that shows each for `seconds`.
void draw_animation(const checkpoint::History& history, const PictureSettings& settings, double seconds,
                    const std::filesystem::path& to);
/// Draws a line at all saved steps as one PNG.
void draw_over_time(const checkpoint::History& history, const PictureSettings& settings,
                    const std::filesystem::path& to);

/// The largest memory that drawing takes, for any field: its cells, an image, and its file.
inline constexpr std::uint64_t drawing_bytes = std::uint64_t{24} << 20U;

/// How long an animation shows a step by default, in seconds.
inline constexpr double usual_seconds = 0.1;

/// Throws Error{job} unless each of [iterate] pictures names a field or an output that can be drawn.
void require_pictures(const job::Job& job, const graph::Graph& graph);
/// An upper bound for the bytes of the pictures of [iterate] pictures in a run that saves `saves` times.
[[nodiscard]] std::uint64_t most_picture_bytes(const job::Job& job, const graph::Graph& graph, std::int64_t saves);

}  // namespace shardrun::report
