#include "core/verify/gather.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace shardrun::verify {
namespace {

std::vector<std::int64_t> indices_of(const std::vector<std::int64_t>& shape, std::size_t element) {
  std::vector<std::int64_t> indices(shape.size());
  auto rest = static_cast<std::int64_t>(element);
  for (std::size_t d = shape.size(); d-- > 0;) {
    indices[d] = rest % shape[d];
    rest /= shape[d];
  }
  return indices;
}

bool same_bits(double a, double b) noexcept { return std::memcmp(&a, &b, sizeof(double)) == 0; }

/// The relative difference of two values that have different bits. It is never 0.
double distance(double a, double b) noexcept {
  const double size = std::max(std::abs(a), std::abs(b));
  const double relative = std::abs(a - b) / size;
  return std::isnan(relative) ? 1 : std::max(relative, std::numeric_limits<double>::epsilon());
}

void add_part(const Part& part, const graph::State& state, std::int32_t rank, Whole& whole, Difference& replica) {
  for (std::size_t local = 0; local < part.values.size(); ++local) {
    const auto at =
        static_cast<std::size_t>(part.box.index_in_whole(state.type.shape, static_cast<std::int64_t>(local)));
    const double value = part.values[local];
    if (whole.first[at] < 0) {
      whole.first[at] = rank;
      whole.values[at] = value;
    } else if (!same_bits(whole.values[at], value) && distance(whole.values[at], value) > replica.error.mean) {
      replica.error.mean = replica.error.largest = distance(whole.values[at], value);
      replica.ranks = {whole.first[at], rank};
      replica.note = fmt::format("element {} is {} on rank {}, {} on rank {}", index_text(state.type.shape, at),
                                 whole.values[at], whole.first[at], value, rank);
    }
  }
  whole.boxes[static_cast<std::size_t>(rank)] = part.box;
}

void check_coverage(const graph::State& state, const Whole& whole, Difference& replica) {
  const auto missing = std::count(whole.first.begin(), whole.first.end(), -1);
  if (missing > 0) {
    const auto at =
        static_cast<std::size_t>(std::find(whole.first.begin(), whole.first.end(), -1) - whole.first.begin());
    replica.error = {1, 1};
    replica.ranks = {};
    replica.note = fmt::format("no rank holds {} of its {} elements, the first at {}", missing, whole.first.size(),
                               index_text(state.type.shape, at));
  }
}

}  // namespace

std::string index_text(const std::vector<std::int64_t>& shape, std::size_t element) {
  return fmt::format("[{}]", fmt::join(indices_of(shape, element), ", "));
}

std::vector<int> ranks_of(const Whole& whole, const std::vector<std::int64_t>& shape, std::size_t element) {
  const std::vector<std::int64_t> indices = indices_of(shape, element);
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < whole.boxes.size(); ++rank) {
    if (whole.boxes[rank].contains(indices)) {
      ranks.push_back(static_cast<int>(rank));
    }
  }
  return ranks;
}

Gathered gather(const graph::Graph& graph, std::int64_t ranks, std::int64_t step, const SnapshotOf& snapshot_of,
                const Selection& selection, Report& report) {
  Gathered gathered(graph.states.size());
  IdVector<graph::StateId, Difference> replicas(graph.states.size());
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const Snapshot snapshot = snapshot_of(rank);
    for (const graph::StateId s : graph.states.ids()) {
      if (!snapshot.parts[s]) {
        continue;
      }
      const graph::State& state = graph.states[s];
      if (!gathered[s]) {
        const auto elements = static_cast<std::size_t>(graph::element_count(state.type));
        const std::vector<std::int64_t> zeros(state.type.shape.size());
        gathered[s] = Whole{.values = std::vector<double>(elements),
                            .first = std::vector<std::int32_t>(elements, -1),
                            .boxes = std::vector<mesh::Box>(static_cast<std::size_t>(ranks), {zeros, zeros})};
        replicas[s] = {.tensor = state.name, .what = What::replica, .expected = 1, .step = step + 1};
      }
      add_part(*snapshot.parts[s], state, static_cast<std::int32_t>(rank), *gathered[s], replicas[s]);
    }
  }
  for (const graph::StateId s : graph.states.ids()) {
    if (gathered[s] && is_selected(selection, s)) {
      check_coverage(graph.states[s], *gathered[s], replicas[s]);
      report.add(std::move(replicas[s]));
    }
  }
  return gathered;
}

}  // namespace shardrun::verify
