#include "core/cli/draw.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace shardrun::cli {
namespace {

/// Maximum number of rows in a drawing. Of more rows, those in the middle are left out.
constexpr std::size_t most_rows = 16;
constexpr std::size_t usual_width = 48;  ///< width of all cells together, if there is room for it

/// The width of a text in columns: its number of UTF-8 characters.
std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string centred(std::string_view text, std::size_t width) {
  const std::size_t free = width - std::min(width, columns_of(text));
  return std::string(free / 2, ' ') + std::string(text) + std::string(free - free / 2, ' ');
}

std::string repeated(std::string_view piece, std::size_t times) {
  std::string text;
  for (std::size_t i = 0; i < times; ++i) {
    text += piece;
  }
  return text;
}

/// A column or row of the drawing: an interval of a dimension, and its size.
struct Band {
  mesh::Interval interval;
  std::size_t size = 1;   ///< in columns or lines
  bool left_out = false;  ///< whether it stands for bands in the middle that are left out
};

/// A cell's text, by the origin of its part.
using Cells = std::map<std::pair<std::int64_t, std::int64_t>, std::string>;

struct Grid {
  std::optional<std::size_t> down;    ///< the dimension that is drawn from top to bottom
  std::optional<std::size_t> across;  ///< the dimension that is drawn from left to right
  std::vector<Band> rows;
  std::vector<Band> columns;
  Cells cells;
};

bool splits(const std::vector<mesh::Shard>& shards, std::size_t dim) {
  return std::any_of(shards.begin(), shards.end(), [&](const mesh::Shard& shard) {
    return interval_along(shard.box, dim) != interval_along(shards.front().box, dim);
  });
}

/// The dimensions to draw, at most two, in the tensor's order: split ones are preferred, then later ones.
std::vector<std::size_t> drawn_dims(const std::vector<mesh::Shard>& shards, std::size_t dims) {
  std::vector<std::size_t> drawn;
  for (std::size_t d = 0; d < dims && drawn.size() < 2; ++d) {
    if (splits(shards, d)) {
      drawn.push_back(d);
    }
  }
  for (std::size_t d = dims; d-- > 0 && drawn.size() < 2;) {
    if (!splits(shards, d)) {
      drawn.push_back(d);
    }
  }
  std::sort(drawn.begin(), drawn.end());
  return drawn;
}

std::vector<Band> bands_of(const std::vector<mesh::Shard>& shards, std::optional<std::size_t> dim) {
  if (!dim) {
    return {{.interval = {0, 1}}};
  }
  std::map<std::int64_t, mesh::Interval> found;
  for (const mesh::Shard& shard : shards) {
    if (shard.box.elements() > 0) {
      found.emplace(shard.box.origin[*dim], interval_along(shard.box, *dim));
    }
  }
  std::vector<Band> bands;
  for (const auto& [begin, interval] : found) {
    bands.push_back({.interval = interval});
  }
  return bands;
}

/// Returns the first `kept` − 1 bands, one band that stands for those in the middle, and the last band. Returns all
/// bands if there are at most `kept`.
std::vector<Band> without_middle(const std::vector<Band>& bands, std::size_t kept) {
  if (bands.size() <= kept) {
    return bands;
  }
  std::vector<Band> shorter(bands.begin(), bands.begin() + static_cast<std::ptrdiff_t>(kept) - 1);
  shorter.push_back({.interval = {-1, -1}, .size = 3, .left_out = true});
  shorter.push_back(bands.back());
  return shorter;
}

Grid grid_of(const std::vector<mesh::Shard>& shards) {
  Grid grid;
  const std::vector<std::size_t> drawn = drawn_dims(shards, shards.front().box.shape.size());
  if (!drawn.empty()) {
    grid.across = drawn.back();
  }
  if (drawn.size() == 2) {
    grid.down = drawn.front();
  }
  grid.rows = without_middle(bands_of(shards, grid.down), most_rows);
  grid.columns = bands_of(shards, grid.across);
  std::map<Cells::key_type, std::set<std::int64_t>> ranks;
  for (const mesh::Shard& shard : shards) {
    if (shard.box.elements() > 0) {
      const Cells::key_type place = {grid.down ? shard.box.origin[*grid.down] : 0,
                                     grid.across ? shard.box.origin[*grid.across] : 0};
      ranks[place].insert(shard.ranks.begin(), shard.ranks.end());
    }
  }
  for (const auto& [place, of_cell] : ranks) {
    grid.cells[place] = mesh::ranks_text({of_cell.begin(), of_cell.end()});
  }
  return grid;
}

std::string text_at(const Grid& grid, const Band& row, const Band& column) {
  if (row.left_out || column.left_out) {
    return row.left_out ? "⋮" : "…";
  }
  const auto cell = grid.cells.find({row.interval.begin, column.interval.begin});
  return cell == grid.cells.end() ? "" : cell->second;
}

std::string label_of(const Band& band, std::string_view left_out) {
  return band.left_out ? std::string(left_out) : to_string(band.interval);
}

std::size_t label_width(const Grid& grid) {
  std::size_t width = 0;
  for (const Band& row : grid.rows) {
    width = std::max(width, grid.down ? columns_of(label_of(row, "⋮")) + 1 : 0);
  }
  return width;
}

std::int64_t indices_of(const std::vector<Band>& bands) {
  std::int64_t sum = 0;
  for (const Band& band : bands) {
    sum += band.interval.size();
  }
  return sum;
}

/// Sets each column's smallest width for its texts. Returns the grid's width with these columns and its lines.
std::size_t set_least_widths(Grid& grid) {
  std::size_t sum = 1;
  for (Band& column : grid.columns) {
    column.size = columns_of(label_of(column, "…")) + 2;
    for (const Band& row : grid.rows) {
      column.size = std::max(column.size, columns_of(text_at(grid, row, column)) + 2);
    }
    sum += column.size + 1;
  }
  return sum;
}

/// Widens columns in proportion to their numbers of indices, up to `width`. Leaves out columns in the middle if there
/// is too little room. Returns false if not even two columns fit.
bool set_widths(Grid& grid, std::size_t width) {
  const std::size_t available = width - std::min(width, label_width(grid));
  const std::vector<Band> all = grid.columns;
  std::size_t least = set_least_widths(grid);
  for (std::size_t kept = std::min(all.size(), available); least > available && kept > 2;) {
    grid.columns = without_middle(all, --kept);
    least = set_least_widths(grid);
  }
  const auto indices = static_cast<std::size_t>(indices_of(grid.columns));
  std::size_t wider = 1;
  std::vector<std::size_t> sizes;
  for (const Band& column : grid.columns) {
    const auto share =
        usual_width * static_cast<std::size_t>(column.interval.size()) / std::max<std::size_t>(1, indices);
    sizes.push_back(std::max(column.size, share));
    wider += sizes.back() + 1;
  }
  if (wider <= available) {
    for (std::size_t c = 0; c < sizes.size(); ++c) {
      grid.columns[c].size = sizes[c];
    }
  }
  return least <= available;
}

/// Sets the heights of rows: to scale if there are few rows, otherwise one line each.
void set_heights(Grid& grid) {
  const std::size_t lines = grid.rows.size() <= 4 ? 3 * grid.rows.size() : grid.rows.size();
  const auto indices = std::max<std::int64_t>(1, indices_of(grid.rows));
  for (Band& row : grid.rows) {
    const double share =
        static_cast<double>(lines) * static_cast<double>(row.interval.size()) / static_cast<double>(indices);
    row.size =
        row.left_out || grid.rows.size() > 4 ? 1 : std::max<std::size_t>(1, static_cast<std::size_t>(share + 0.5));
  }
}

std::string rule(const Grid& grid, std::size_t indent, const char* left, const char* between, const char* right) {
  std::string text = std::string(indent, ' ') + left;
  for (std::size_t c = 0; c < grid.columns.size(); ++c) {
    text += repeated("─", grid.columns[c].size) + (c + 1 == grid.columns.size() ? right : between);
  }
  return text + "\n";
}

std::string boxes(const Grid& grid) {
  const std::size_t indent = label_width(grid);
  std::string text = rule(grid, indent, "┌", "┬", "┐");
  for (std::size_t r = 0; r < grid.rows.size(); ++r) {
    const Band& row = grid.rows[r];
    text += r == 0 ? "" : rule(grid, indent, "├", "┼", "┤");
    for (std::size_t line = 0; line < row.size; ++line) {
      const bool written = line == (row.size - 1) / 2;
      text += fmt::format("{:>{}}", written && grid.down ? label_of(row, "⋮") + " " : "", indent) + "│";
      for (const Band& column : grid.columns) {
        text += centred(written ? text_at(grid, row, column) : "", column.size) + "│";
      }
      text += "\n";
    }
  }
  return text + rule(grid, indent, "└", "┴", "┘");
}

std::string column_labels(const Grid& grid) {
  if (!grid.across) {
    return "";
  }
  std::string text(label_width(grid) + 1, ' ');
  for (const Band& column : grid.columns) {
    text += centred(label_of(column, "…"), column.size) + " ";
  }
  text.erase(text.find_last_not_of(' ') + 1);
  return text + "\n";
}

std::string title(const Grid& grid, const std::vector<std::string>& axes) {
  std::vector<std::string> directions;
  if (grid.down) {
    directions.push_back(axes[*grid.down] + " ↓");
  }
  if (grid.across) {
    directions.push_back(axes[*grid.across] + " →");
  }
  return directions.empty() ? "" : fmt::format("{}\n", fmt::join(directions, "  "));
}

/// Lines about what the drawing does not show.
std::string remarks(const Grid& grid, const std::vector<mesh::Shard>& shards, const std::vector<std::string>& axes) {
  std::vector<std::string> whole;
  std::vector<std::string> split;
  for (std::size_t d = 0; d < axes.size(); ++d) {
    if (d != grid.down && d != grid.across) {
      (splits(shards, d) ? split : whole).push_back(axes[d]);
    }
  }
  std::string text;
  if (!whole.empty()) {
    text += fmt::format("not drawn, whole in every part: {}\n", fmt::join(whole, ", "));
  }
  if (shards.front().box.run) {
    text += "not drawn, but split too: the elements of each box in row-major order, among its ranks\n";
  }
  if (!split.empty()) {
    text += fmt::format("not drawn, but split too: {}; the ranks of a box have different parts of it\n",
                        fmt::join(split, ", "));
  }
  std::vector<std::int64_t> without;
  for (const mesh::Shard& shard : shards) {
    if (shard.box.elements() == 0) {
      without.insert(without.end(), shard.ranks.begin(), shard.ranks.end());
    }
  }
  std::sort(without.begin(), without.end());
  if (!without.empty()) {
    text +=
        fmt::format("without any element: {} {}\n", without.size() == 1 ? "rank" : "ranks", mesh::ranks_text(without));
  }
  return text;
}

/// Whether all parts are runs of the same box.
bool are_runs_of_whole(const std::vector<mesh::Shard>& shards) {
  return std::all_of(shards.begin(), shards.end(), [&](const mesh::Shard& shard) {
    return shard.box.run && shard.box.origin == shards.front().box.origin &&
           shard.box.shape == shards.front().box.shape;
  });
}

}  // namespace

std::string draw(const std::vector<mesh::Shard>& shards, const std::vector<std::string>& axes, std::size_t width) {
  if (are_runs_of_whole(shards)) {
    std::vector<mesh::Shard> runs = shards;
    for (mesh::Shard& shard : runs) {
      shard.box = {.origin = {shard.box.run->begin}, .shape = {shard.box.run->size()}};
    }
    return draw(runs, {fmt::format("elements of {}", fmt::join(axes, " × "))}, width);
  }
  Grid grid = grid_of(shards);
  if (grid.cells.empty()) {
    return remarks(grid, shards, axes);
  }
  if (!set_widths(grid, width)) {
    return fmt::format("its parts cannot be drawn in {} columns\n", width) + remarks(grid, shards, axes);
  }
  set_heights(grid);
  return title(grid, axes) + column_labels(grid) + boxes(grid) + remarks(grid, shards, axes);
}

}  // namespace shardrun::cli
