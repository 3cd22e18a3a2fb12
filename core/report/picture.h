#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/report/image.h"

namespace shardrun::report {

/// Elements of a field each way, as a picture shows it.
struct Extent {
  std::int64_t rows = 0;  ///< 1: a line
  std::int64_t columns = 0;

  [[nodiscard]] bool is_line() const noexcept { return rows == 1; }
};

/// Dimensions of one element are left out. Nothing if more than two are left, or if the field has no elements.
[[nodiscard]] std::optional<Extent> extent_of(const std::vector<std::int64_t>& shape);

/// What is drawn of a field: its elements or, if these are more than 1,024 one way, means of blocks of them.
struct Cells {
  Extent field;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::vector<double> values;   ///< NaN where an element is not finite
  std::int64_t not_finite = 0;  ///< elements
  // Of the elements of each cell; of a line alone.
  std::vector<double> least;
  std::vector<double> greatest;
};

/// Reads elements from number `first` on, in row-major order.
using ReadElements = std::function<void(std::int64_t first, std::span<double> to)>;

/// Reads all elements once, a piece at a time.
[[nodiscard]] Cells cells_of(const Extent& field, const ReadElements& read);

/// The numbers that a picture's colours, or the height of a line, stand for.
struct Scale {
  double low = 0;
  double high = 1;

  bool operator==(const Scale&) const = default;
};

/// The least and the greatest finite number that is drawn; nothing if there is none.
[[nodiscard]] std::optional<Scale> bounds_of(const Cells& cells);
[[nodiscard]] std::optional<Scale> joined(const std::optional<Scale>& one, const std::optional<Scale>& other);
/// A scale for numbers within the bounds, with a width; of a diverging map, zero is in its middle.
[[nodiscard]] Scale scale_for(const std::optional<Scale>& bounds, ColorMap map);

struct Style {
  ColorMap map = ColorMap::sequential;
  Scale scale;  ///< numbers beyond it have the colours of its ends, and a line is cut off there
};

/// A line as a plot; a plane as pixels, its first dimension downwards, with a bar that has the scale's numbers.
[[nodiscard]] Image draw(const Cells& cells, const std::string& title, const Style& style);

/// A line over time, which runs upwards. `cells`: a row for each of `steps`.
[[nodiscard]] Image draw_over_time(const Cells& cells, std::span<const std::int64_t> steps, const std::string& title,
                                   const Style& style);

/// An upper bound for the bytes of draw()'s image in a file.
[[nodiscard]] std::uint64_t most_image_bytes(const Extent& field);

/// Round numbers within the scale, at most so many and, unless that is fewer, at least two.
[[nodiscard]] std::vector<double> ticks_of(const Scale& scale, std::int64_t most);

}  // namespace shardrun::report
