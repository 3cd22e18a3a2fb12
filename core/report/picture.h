#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/report/image.h"

namespace shardrun::report {

/// The size of a field, as a picture shows it: its numbers of rows and columns.
struct Extent {
  std::int64_t rows = 0;  ///< 1: the field is a line
  std::int64_t columns = 0;

  [[nodiscard]] bool is_line() const noexcept { return rows == 1; }
};

/// The extent of a tensor of this shape. Dimensions of size 1 are left out. Nothing if more than two are left, or if
/// the field has no elements.
[[nodiscard]] std::optional<Extent> extent_of(const std::vector<std::int64_t>& shape);

/// What is drawn of a field: its elements or, if a side has more than 1,024, means of blocks of elements.
struct Cells {
  Extent field;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::vector<double> values;   ///< NaN if an element of the cell is not finite
  std::int64_t not_finite = 0;  ///< number of elements that are not finite
  // The least and the greatest finite element of each cell; only for a line.
  std::vector<double> least;
  std::vector<double> greatest;
};

/// Reads elements from number `first` on, in row-major order.
using ReadElements = std::function<void(std::int64_t first, std::span<double> to)>;

/// Makes the cells of a field. Reads all elements once, a piece at a time.
[[nodiscard]] Cells cells_of(const Extent& field, const ReadElements& read);

/// The range of numbers that a picture's colours, or the height of a line's plot, show.
struct Scale {
  double low = 0;
  double high = 1;

  bool operator==(const Scale&) const = default;
};

/// The least and the greatest finite number that is drawn; nothing if there is none.
[[nodiscard]] std::optional<Scale> bounds_of(const Cells& cells);
[[nodiscard]] std::optional<Scale> joined(const std::optional<Scale>& one, const std::optional<Scale>& other);
/// A scale that covers the bounds and is never empty. For a diverging map, zero is in its middle.
[[nodiscard]] Scale scale_for(const std::optional<Scale>& bounds, ColorMap map);

struct Style {
  ColorMap map = ColorMap::sequential;
  Scale scale;  ///< numbers beyond the scale get the colours of its ends; lines are cut off at its ends
};

/// Draws a line as a plot. Draws a plane as pixels, with the first dimension downwards and a bar for the scale.
[[nodiscard]] Image draw(const Cells& cells, const std::string& title, const Style& style);

/// Draws a line over time, which runs upwards. `cells`: those of a field with one row for each of `steps`.
[[nodiscard]] Image draw_over_time(const Cells& cells, std::span<const std::int64_t> steps, const std::string& title,
                                   const Style& style);

/// An upper bound for the size of draw()'s image as a file, in bytes.
[[nodiscard]] std::uint64_t most_image_bytes(const Extent& field);

/// Round numbers within the scale: at most `most` and, if `most` allows, at least two.
[[nodiscard]] std::vector<double> ticks_of(const Scale& scale, std::int64_t most);

}  // namespace shardrun::report
