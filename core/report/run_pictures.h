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

// Pictures of what a run has saved. All replace the file `to`, and throw Error{usage} for a field that no picture
// shows, and as History::open().

struct PictureSettings {
  ColorMap map = ColorMap::sequential;
  std::optional<Scale> scale;  ///< nothing: of the numbers in the picture, or in all of an animation
};

/// One step, as a PNG.
void draw_step(const checkpoint::History& history, std::int64_t step, const PictureSettings& settings,
               const std::filesystem::path& to);
/// All saved steps, as a GIF that shows each so many seconds.
void draw_animation(const checkpoint::History& history, const PictureSettings& settings, double seconds,
                    const std::filesystem::path& to);
/// A line at all saved steps, as one PNG.
void draw_over_time(const checkpoint::History& history, const PictureSettings& settings,
                    const std::filesystem::path& to);

/// Memory that drawing takes at most, whatever the field: its cells, an image, and its file.
inline constexpr std::uint64_t drawing_bytes = std::uint64_t{24} << 20U;

/// How long an animation shows a step, in seconds, unless somebody says otherwise.
inline constexpr double usual_seconds = 0.1;

/// Throws Error{job} unless each of [iterate] pictures is a field or an output that a picture shows.
void require_pictures(const job::Job& job, const graph::Graph& graph);
/// An upper bound for the bytes of the pictures of [iterate] pictures in a run that saves so many times.
[[nodiscard]] std::uint64_t most_picture_bytes(const job::Job& job, const graph::Graph& graph, std::int64_t saves);

}  // namespace shardrun::report
