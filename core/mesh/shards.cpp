#include "core/mesh/shards.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <tuple>
#include <utility>

namespace shardrun::mesh {
namespace {

struct Run {
  std::int64_t begin;
  std::int64_t end;  ///< not included
};

std::vector<Run> runs_of(const std::vector<std::int64_t>& ranks) {
  std::vector<Run> runs;
  for (const std::int64_t rank : ranks) {
    if (!runs.empty() && runs.back().end == rank) {
      ++runs.back().end;
    } else {
      runs.push_back({rank, rank + 1});
    }
  }
  return runs;
}

/// Whether all runs have the same length and begin at equal distances.
bool are_even(const std::vector<Run>& runs) {
  for (std::size_t r = 1; r < runs.size(); ++r) {
    if (runs[r].end - runs[r].begin != runs[0].end - runs[0].begin ||
        runs[r].begin - runs[r - 1].begin != runs[1].begin - runs[0].begin) {
      return false;
    }
  }
  return true;
}

std::string text_of(const Run& run) {
  switch (run.end - run.begin) {
    case 1: return fmt::format("{}", run.begin);
    case 2: return fmt::format("{},{}", run.begin, run.begin + 1);
    default: return fmt::format("{}-{}", run.begin, run.end - 1);
  }
}

}  // namespace

std::vector<Shard> shards_of(const std::vector<std::int64_t>& shape, const Placement& placement, const Mesh& mesh) {
  using Key = std::tuple<std::vector<std::int64_t>, std::vector<std::int64_t>, std::int64_t, std::int64_t>;
  std::map<Key, Shard> shards;
  for (std::int64_t rank = 0; rank < mesh.ranks(); ++rank) {
    Box box = box_of(shape, placement, mesh, coordinates_of(mesh, rank));
    const Interval run = box.run.value_or(Interval{});
    Shard& shard = shards[{box.origin, box.shape, run.begin, run.end}];
    shard.box = std::move(box);
    shard.ranks.push_back(rank);
  }
  std::vector<Shard> all;
  for (auto& [key, shard] : shards) {
    all.push_back(std::move(shard));
  }
  return all;
}

std::string ranks_text(const std::vector<std::int64_t>& ranks) {
  const std::vector<Run> runs = runs_of(ranks);
  if (runs.size() > 4 && are_even(runs)) {
    return fmt::format("{},{},…,{}", text_of(runs[0]), text_of(runs[1]), text_of(runs.back()));
  }
  std::vector<std::string> texts;
  for (const Run& run : runs) {
    texts.push_back(text_of(run));
  }
  return fmt::format("{}", fmt::join(texts, ","));
}

Interval interval_along(const Box& box, std::size_t dim) noexcept {
  return {box.origin[dim], box.origin[dim] + box.shape[dim]};
}

std::string to_string(const Interval& interval) { return fmt::format("{}:{}", interval.begin, interval.end); }

std::string ranges_text(const Box& box) {
  std::vector<std::string> ranges;
  for (std::size_t d = 0; d < box.shape.size(); ++d) {
    ranges.push_back(to_string(interval_along(box, d)));
  }
  return fmt::format("{}[{}]", box.run ? fmt::format("elements {} of ", to_string(*box.run)) : "",
                     fmt::join(ranges, ", "));
}

}  // namespace shardrun::mesh
