#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/forecast/timeline.h"

namespace shardrun::forecast {
namespace {

constexpr char idle = '.';
constexpr char too_short = ':';  ///< an action whose cell is too narrow for its label
constexpr char hidden = '~';     ///< an action that would be visible only in part

/// Actions shorter than this share of the longest do not determine the cells' width.
constexpr double least_share = 1.0 / 8;

class Drawing {
 public:
  explicit Drawing(const Timeline& timeline) : timeline_(timeline) {
    double most = 0;
    for (const std::vector<TimedAction>& stage : timeline.stages) {
      std::set<std::uint32_t> chunks;
      for (const TimedAction& each : stage) {
        most = std::max(most, each.end - each.begin);
        chunks.insert(each.action.chunk);
        letters_.insert(plan::letter(each.action.kind).front());
      }
      has_chunks_ = has_chunks_ || chunks.size() > 1;
    }
    least_ = most;
    for (const std::vector<TimedAction>& stage : timeline.stages) {
      for (const TimedAction& each : stage) {
        const double cost = each.end - each.begin;
        least_ = cost >= most * least_share ? std::min(least_, cost) : least_;
        longest_ = std::max(longest_, numbered(each).size());
      }
    }
  }

  std::string draw(std::size_t width, std::size_t most_rows) {
    has_numbers_ = columns_of(longest_ + 1) <= width;
    columns_ = columns_of(has_numbers_ ? longest_ + 1 : 1);
    const std::size_t stages = timeline_.stages.size();
    const std::size_t step = (stages + most_rows - 1) / most_rows;
    std::string rows;
    for (std::size_t s = 0; s < stages; s += step) {
      const partition::StageId stage(s);
      rows += fmt::format("stage {:<3} {}  bubble {:.4g} %\n", s, window_of(row_of(timeline_.stages[stage]), width),
                          100 * timeline_.bubble(stage));
    }
    return legend(width, step) + rows;
  }

 private:
  [[nodiscard]] std::string numbered(const TimedAction& each) const {
    return fmt::format("{}{}{}", has_chunks_ ? std::to_string(each.action.chunk) : "", plan::letter(each.action.kind),
                       each.action.microbatch);
  }

  /// Columns of the whole timeline if the shortest action that counts has `cell` columns.
  [[nodiscard]] std::size_t columns_of(std::size_t cell) const {
    return least_ > 0 ? static_cast<std::size_t>(static_cast<double>(cell) * timeline_.end / least_ + 0.5) : 0;
  }

  struct Cell {
    std::size_t begin;
    std::size_t end;
    std::string label;
  };

  [[nodiscard]] std::vector<Cell> row_of(const std::vector<TimedAction>& actions) const {
    const auto column = [&](double time) {
      return columns_ == 0 ? 0 : static_cast<std::size_t>(time / timeline_.end * static_cast<double>(columns_) + 0.5);
    };
    std::vector<Cell> cells;
    for (const TimedAction& each : actions) {
      cells.push_back({column(each.begin), column(each.end),
                       has_numbers_ ? numbered(each) : std::string(plan::letter(each.action.kind))});
    }
    return cells;
  }

  /// The text of `size` columns, from column `begin` on.
  [[nodiscard]] std::string part_of(const std::vector<Cell>& cells, std::size_t begin, std::size_t size) {
    std::string text(size, idle);
    for (const Cell& cell : cells) {
      const std::size_t first = std::max(cell.begin, begin);
      const std::size_t last = std::min(cell.end, begin + size);
      if (first >= last) {
        continue;
      }
      std::string drawn(last - first, ' ');
      if (last - first < cell.end - cell.begin) {
        drawn.assign(drawn.size(), hidden);
        has_hidden_ = true;
      } else if (drawn.size() < cell.label.size()) {
        drawn.assign(drawn.size(), too_short);
        has_short_ = true;
      } else {
        drawn.replace(0, cell.label.size(), cell.label);
      }
      text.replace(first - begin, drawn.size(), drawn);
    }
    return text;
  }

  [[nodiscard]] std::string window_of(const std::vector<Cell>& cells, std::size_t width) {
    if (columns_ <= width) {
      return part_of(cells, 0, columns_);
    }
    const std::size_t half = half_of(width);
    return part_of(cells, 0, half) + " … " + part_of(cells, columns_ - half, half);
  }

  static std::size_t half_of(std::size_t width) { return (width - 3) / 2; }

  [[nodiscard]] std::string legend(std::size_t width, std::size_t step) const {
    std::string text;
    const auto add = [&](char mark, const char* meaning) {
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", mark, meaning);
    };
    const auto add_letter = [&](char mark, const char* meaning) {
      if (letters_.contains(mark)) {
        add(mark, meaning);
      }
    };
    add_letter('F', "forward");
    add_letter('B', "backward");
    add_letter('I', "backward of activations");
    add_letter('W', "backward of weights");
    text +=
        fmt::format(" of a microbatch{}; {} idle",
                    has_numbers_ ? fmt::format(", whose number follows{}", has_chunks_ ? "; before it the chunk" : "")
                                 : " (no room for its number)",
                    idle);
    if (has_short_) {
      add(too_short, "actions too short for their name");
    }
    if (has_hidden_) {
      add(hidden, "an action that is not shown whole");
    }
    text += "\nbubble: idle time in % of working time";
    if (columns_ > width) {
      text += fmt::format("; shown: the first and the last {:.2g} % of the time",
                          100 * static_cast<double>(half_of(width)) / static_cast<double>(columns_));
    }
    return text + (step > 1 ? fmt::format("; one of {} stages is shown\n", step) : "\n");
  }

  const Timeline& timeline_;
  std::set<char> letters_;
  bool has_chunks_ = false;
  bool has_numbers_ = true;
  bool has_short_ = false;
  bool has_hidden_ = false;
  double least_ = 0;
  std::size_t longest_ = 0;
  std::size_t columns_ = 0;
};

}  // namespace

std::string draw(const Timeline& timeline, std::size_t width, std::size_t most_rows) {
  return Drawing(timeline).draw(width, most_rows);
}

}  // namespace shardrun::forecast
