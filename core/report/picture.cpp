#include "core/report/picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace shardrun::report {
namespace {

constexpr std::int64_t most_cells = 1024;   ///< most cells on a side
constexpr std::int64_t least_pixels = 512;  ///< length that the longer side of a plane should have
constexpr std::int64_t least_width = 480;   ///< width of an image that leaves room for its title
constexpr std::int64_t least_bar = 160;
constexpr std::int64_t plot_width = 640;
constexpr std::int64_t plot_height = 320;
constexpr std::int64_t bar_width = 20;
constexpr std::int64_t gap = 6;
constexpr std::int64_t tick_length = 4;

/// A place along an axis, in pixels, and its label.
struct Tick {
  std::int64_t at = 0;
  std::string label;
};

std::int64_t width_of(const std::string& text) { return glyph_width * static_cast<std::int64_t>(text.size()); }

std::int64_t width_of(const std::vector<Tick>& ticks) {
  std::int64_t width = 0;
  for (const Tick& tick : ticks) {
    width = std::max(width, width_of(tick.label));
  }
  return width;
}

/// A label with enough digits to tell the ticks apart.
std::string label_of(double value, double largest, double apart) {
  const double digits = std::ceil(std::log10(std::max(largest / apart, 1.0))) + 1;
  return fmt::format("{:.{}g}", std::abs(value) < apart / 1e6 ? 0.0 : value,
                     static_cast<int>(std::clamp(digits, 2.0, 17.0)));
}

/// Ticks of a scale. `length`: the axis's length in pixels.
std::vector<Tick> ticks_of_scale(const Scale& scale, std::int64_t length) {
  const std::vector<double> values = ticks_of(scale, std::max<std::int64_t>(length / 40, 2));
  const double apart = values.size() > 1 ? values[1] - values[0] : scale.high - scale.low;
  std::vector<Tick> ticks;
  for (const double value : values) {
    const double share = (value - scale.low) / (scale.high - scale.low);
    ticks.push_back({std::lround(share * static_cast<double>(length - 1)),
                     label_of(value, std::max(std::abs(scale.low), std::abs(scale.high)), apart)});
  }
  return ticks;
}

/// Ticks with the numbers of elements, counted from 0. Each is in the middle of its element's pixels.
std::vector<Tick> ticks_of_index(std::int64_t elements, std::int64_t length) {
  std::vector<Tick> ticks;
  for (const double value : ticks_of({0, static_cast<double>(elements - 1)}, std::max<std::int64_t>(length / 100, 2))) {
    if (value == std::floor(value)) {
      const double middle = (value + 0.5) / static_cast<double>(elements) * static_cast<double>(length);
      ticks.push_back({static_cast<std::int64_t>(middle), fmt::format("{:.0f}", value)});
    }
  }
  return ticks;
}

/// A rectangle of the image that has axes. Ticks of rows are counted from its upper edge.
struct Frame {
  std::int64_t x = 0;
  std::int64_t y = 0;
  std::int64_t wide = 0;
  std::int64_t high = 0;
};

void draw_border(Image& image, const Frame& frame) {
  image.fill(frame.x - 1, frame.y - 1, frame.wide + 2, 1, black);
  image.fill(frame.x - 1, frame.y + frame.high, frame.wide + 2, 1, black);
  image.fill(frame.x - 1, frame.y - 1, 1, frame.high + 2, black);
  image.fill(frame.x + frame.wide, frame.y - 1, 1, frame.high + 2, black);
}

void draw_axes(Image& image, const Frame& frame, const std::vector<Tick>& rows, const std::vector<Tick>& columns) {
  draw_border(image, frame);
  for (const Tick& tick : rows) {
    image.fill(frame.x - 1 - tick_length, frame.y + tick.at, tick_length, 1, black);
    image.write(frame.x - gap - tick_length - width_of(tick.label), frame.y + tick.at - glyph_height / 2, tick.label);
  }
  for (const Tick& tick : columns) {
    image.fill(frame.x + tick.at, frame.y + frame.high + 1, 1, tick_length, black);
    const std::int64_t left = frame.x + tick.at - width_of(tick.label) / 2;
    image.write(std::clamp<std::int64_t>(left, 0, std::max<std::int64_t>(image.width - width_of(tick.label), 0)),
                frame.y + frame.high + gap, tick.label);
  }
}

std::uint8_t color_of(double value, const Scale& scale) {
  if (!std::isfinite(value)) {
    return grey;
  }
  const double share = std::clamp((value - scale.low) / (scale.high - scale.low), 0.0, 1.0);
  return static_cast<std::uint8_t>(first_of_map + std::lround(share * static_cast<double>(map_colors - 1)));
}

/// Draws the bar with the scale's numbers, from the lower end up.
void draw_bar(Image& image, const Frame& frame, const Scale& scale, const std::vector<Tick>& ticks) {
  draw_border(image, frame);
  for (std::int64_t y = 0; y < frame.high; ++y) {
    const double share = static_cast<double>(frame.high - 1 - y) / static_cast<double>(frame.high - 1);
    image.fill(frame.x, frame.y + y, frame.wide, 1, color_of(scale.low + share * (scale.high - scale.low), scale));
  }
  for (const Tick& tick : ticks) {
    const std::int64_t y = frame.y + frame.high - 1 - tick.at;
    image.fill(frame.x + frame.wide + 1, y, tick_length, 1, black);
    image.write(frame.x + frame.wide + gap + tick_length, y - glyph_height / 2, tick.label);
  }
}

std::int64_t zoom_of(std::int64_t rows, std::int64_t columns) {
  return std::max<std::int64_t>(least_pixels / std::max(rows, columns), 1);
}

/// Draws a plane. `rows` returns the ticks for a height in pixels. `is_over_time`: rows are steps, time runs upwards,
/// and cells need not be square.
Image draw_plane(const Cells& cells, const std::string& title, const Style& style,
                 const std::function<std::vector<Tick>(std::int64_t height)>& rows, bool is_over_time) {
  const std::int64_t zoom = zoom_of(is_over_time ? 1 : cells.rows, cells.columns);
  const std::int64_t row_zoom = is_over_time ? zoom_of(cells.rows, 1) : zoom;
  const std::vector<Tick> row_ticks = rows(cells.rows * row_zoom);
  const std::int64_t bar_height = std::max(cells.rows * row_zoom, least_bar);
  const std::vector<Tick> bar_ticks = ticks_of_scale(style.scale, bar_height);
  const Frame frame = {.x = width_of(row_ticks) + 2 * gap + tick_length,
                       .y = glyph_height + 3 * gap,
                       .wide = cells.columns * zoom,
                       .high = cells.rows * row_zoom};
  const Frame bar = {.x = frame.x + frame.wide + 3 * gap, .y = frame.y, .wide = bar_width, .high = bar_height};
  Image image(std::max(bar.x + bar.wide + width_of(bar_ticks) + 2 * gap + tick_length, least_width),
              frame.y + bar_height + glyph_height + 2 * gap, palette_of(style.map));
  image.write(gap, gap, title);
  for (std::int64_t row = 0; row < cells.rows; ++row) {
    for (std::int64_t column = 0; column < cells.columns; ++column) {
      const double value = cells.values[static_cast<std::size_t>(row * cells.columns + column)];
      const std::int64_t y = is_over_time ? cells.rows - 1 - row : row;
      image.fill(frame.x + column * zoom, frame.y + y * row_zoom, zoom, row_zoom, color_of(value, style.scale));
    }
  }
  draw_axes(image, frame, row_ticks, ticks_of_index(cells.field.columns, frame.wide));
  draw_bar(image, bar, style.scale, bar_ticks);
  return image;
}

/// Adds a line to the plot, one column of pixels at a time. Each column reaches to the middle of the one before.
void draw_curve(Image& image, const Frame& frame, const Cells& cells, const Scale& scale) {
  const auto height_of = [&](double value) {
    const double share = (value - scale.low) / (scale.high - scale.low);
    return frame.high - 1 - std::lround(std::clamp(share, -0.1, 1.1) * static_cast<double>(frame.high - 1));
  };
  bool goes_on = false;
  std::int64_t before = 0;  // middle of the column before, if the line continues from it
  for (std::int64_t x = 0; x < frame.wide; ++x) {
    const auto first = static_cast<std::size_t>(x * cells.columns / frame.wide);
    const auto end = std::max(first + 1, static_cast<std::size_t>((x + 1) * cells.columns / frame.wide));
    double least = std::numeric_limits<double>::infinity();
    double greatest = -least;
    for (std::size_t cell = first; cell < end; ++cell) {
      least = std::min(least, cells.least[cell]);
      greatest = std::max(greatest, cells.greatest[cell]);
      if (!std::isfinite(cells.values[cell])) {
        image.fill(frame.x + x, frame.y, 1, frame.high, grey);
      }
    }
    if (!(least <= greatest)) {
      goes_on = false;
      continue;
    }
    std::int64_t top = height_of(greatest);
    std::int64_t bottom = height_of(least);
    const std::int64_t here = (top + bottom) / 2;
    top = goes_on ? std::min(top, before) : top;
    bottom = goes_on ? std::max(bottom, before) : bottom;
    const std::int64_t upper = std::max<std::int64_t>(top - 1, 0);
    image.fill(frame.x + x, frame.y + upper, 1, std::min(bottom + 1, frame.high) - upper, ink);
    before = here;
    goes_on = true;
  }
}

Image draw_line(const Cells& cells, const std::string& title, const Style& style) {
  std::vector<Tick> rows = ticks_of_scale(style.scale, plot_height);
  for (Tick& tick : rows) {
    tick.at = plot_height - 1 - tick.at;
  }
  const Frame frame = {.x = width_of(rows) + 2 * gap + tick_length,
                       .y = glyph_height + 3 * gap,
                       .wide = plot_width,
                       .high = plot_height};
  Image image(frame.x + frame.wide + 4 * gap, frame.y + frame.high + glyph_height + 2 * gap, palette_of(style.map));
  image.write(gap, gap, title);
  draw_curve(image, frame, cells, style.scale);
  draw_axes(image, frame, rows, ticks_of_index(cells.field.columns, frame.wide));
  return image;
}

std::string with_faults(const std::string& title, const Cells& cells) {
  return cells.not_finite == 0 ? title : fmt::format("{} ({} not finite: grey)", title, cells.not_finite);
}

}  // namespace

std::optional<Extent> extent_of(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> sizes;
  std::ranges::copy_if(shape, std::back_inserter(sizes), [](std::int64_t size) { return size != 1; });
  if (sizes.size() > 2 || std::ranges::find(sizes, 0) != sizes.end()) {
    return std::nullopt;
  }
  sizes.insert(sizes.begin(), 2 - sizes.size(), 1);
  return Extent{sizes[0], sizes[1]};
}

Cells cells_of(const Extent& field, const ReadElements& read) {
  Cells cells = {.field = field,
                 .rows = std::min(field.rows, most_cells),
                 .columns = std::min(field.columns, most_cells),
                 .values = {},
                 .least = {},
                 .greatest = {}};
  const auto count = static_cast<std::size_t>(cells.rows * cells.columns);
  cells.values.assign(count, 0);
  // The number of elements of a cell is that of its rows times that of its columns.
  std::vector<std::int64_t> in_row(static_cast<std::size_t>(cells.rows), 0);
  std::vector<std::int64_t> in_column(static_cast<std::size_t>(cells.columns), 0);
  for (std::int64_t column = 0; column < field.columns; ++column) {
    ++in_column[static_cast<std::size_t>(column * cells.columns / field.columns)];
  }
  if (field.is_line()) {
    cells.least.assign(count, std::numeric_limits<double>::infinity());
    cells.greatest.assign(count, -std::numeric_limits<double>::infinity());
  }
  constexpr std::int64_t at_once = std::int64_t{1} << 16U;
  std::vector<double> values;
  for (std::int64_t row = 0; row < field.rows; ++row) {
    const std::int64_t cell_row = row * cells.rows / field.rows;
    const std::int64_t of_row = cell_row * cells.columns;
    ++in_row[static_cast<std::size_t>(cell_row)];
    for (std::int64_t first = 0; first < field.columns; first += at_once) {
      values.resize(static_cast<std::size_t>(std::min(at_once, field.columns - first)));
      read(row * field.columns + first, values);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const std::int64_t column = first + static_cast<std::int64_t>(i);
        const auto cell = static_cast<std::size_t>(
            of_row + (cells.columns == field.columns ? column : column * cells.columns / field.columns));
        const bool is_finite = std::isfinite(values[i]);
        cells.values[cell] += is_finite ? values[i] : std::numeric_limits<double>::quiet_NaN();
        cells.not_finite += is_finite ? 0 : 1;
        if (field.is_line() && is_finite) {
          cells.least[cell] = std::min(cells.least[cell], values[i]);
          cells.greatest[cell] = std::max(cells.greatest[cell], values[i]);
        }
      }
    }
  }
  for (std::size_t cell = 0; cell < count; ++cell) {
    const std::int64_t elements = in_row[cell / in_column.size()] * in_column[cell % in_column.size()];
    cells.values[cell] /= static_cast<double>(elements);
  }
  return cells;
}

std::optional<Scale> bounds_of(const Cells& cells) {
  std::optional<Scale> bounds;
  for (const std::vector<double>* const numbers : {&cells.values, &cells.least, &cells.greatest}) {
    for (const double value : *numbers) {
      if (std::isfinite(value)) {
        bounds = joined(bounds, Scale{value, value});
      }
    }
  }
  return bounds;
}

std::optional<Scale> joined(const std::optional<Scale>& one, const std::optional<Scale>& other) {
  if (!one || !other) {
    return one ? one : other;
  }
  return Scale{std::min(one->low, other->low), std::max(one->high, other->high)};
}

Scale scale_for(const std::optional<Scale>& bounds, ColorMap map) {
  Scale scale = bounds.value_or(Scale{0, 1});
  if (map == ColorMap::diverging) {
    scale.high = std::max(std::abs(scale.low), std::abs(scale.high));
    scale.low = -scale.high;
  }
  const double size = std::max(std::abs(scale.low), std::abs(scale.high));
  // The range is too small for labels with different numbers: all values are equal, or differ only by rounding.
  if (const double least = size == 0 ? 1 : size * 1e-12; scale.high - scale.low < least) {
    const double half = size == 0 ? 0.5 : size / 2;
    scale = {scale.low - half, scale.high + half};
  }
  return scale;
}

std::vector<double> ticks_of(const Scale& scale, std::int64_t most) {
  const double width = scale.high - scale.low;
  const double least = width / static_cast<double>(most);
  const double power = std::pow(10, std::floor(std::log10(least)));
  std::vector<double> ticks;
  for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
    const double apart = factor * power;
    const double first = std::ceil(scale.low / apart - 1e-9);
    const double last = std::floor(scale.high / apart + 1e-9);
    ticks.clear();
    for (double k = first; k <= last && ticks.size() <= static_cast<std::size_t>(most); ++k) {
      ticks.push_back(k * apart + 0.0);  // adding 0.0 avoids -0
    }
    if (ticks.size() <= static_cast<std::size_t>(most)) {
      break;
    }
  }
  return ticks;
}

std::uint64_t most_image_bytes(const Extent& field) {
  constexpr std::int64_t around = 400;  // pixels for labels, bar and gaps
  const std::int64_t rows = std::min(field.rows, most_cells);
  const std::int64_t columns = std::min(field.columns, most_cells);
  const std::int64_t zoom = zoom_of(rows, columns);
  const std::int64_t wide = field.is_line() ? plot_width : std::max(columns * zoom, least_width);
  const std::int64_t high = field.is_line() ? plot_height : std::max(rows * zoom, least_bar);
  // One byte per pixel; in a GIF, one code of up to 12 bits.
  return static_cast<std::uint64_t>((wide + around) * (high + around)) * 3 / 2;
}

Image draw(const Cells& cells, const std::string& title, const Style& style) {
  if (cells.field.is_line()) {
    return draw_line(cells, with_faults(title, cells), style);
  }
  return draw_plane(
      cells, with_faults(title, cells), style,
      [&](std::int64_t height) { return ticks_of_index(cells.field.rows, height); }, false);
}

Image draw_over_time(const Cells& cells, std::span<const std::int64_t> steps, const std::string& title,
                     const Style& style) {
  const auto rows = [&](std::int64_t height) {
    std::vector<Tick> ticks = ticks_of_index(cells.field.rows, height);
    for (Tick& tick : ticks) {
      const auto row = static_cast<std::size_t>(std::stoll(tick.label));
      tick = {height - 1 - tick.at, std::to_string(steps[row])};
    }
    return ticks;
  };
  return draw_plane(cells, with_faults(title, cells), style, rows, true);
}

}  // namespace shardrun::report
