#include "core/graph/regroup.h"

namespace shardrun::graph {

std::vector<Regrouped> regroup(std::span<const std::int64_t> from, std::span<const std::int64_t> to) {
  std::vector<Regrouped> groups;
  for (std::size_t i = 0, j = 0; i < from.size() || j < to.size();) {
    Regrouped group{i, i, j, j};
    const bool one_in_from = i < from.size() && from[i] == 1;
    const bool one_in_to = j < to.size() && to[j] == 1;
    if (one_in_from || one_in_to) {
      i += one_in_from ? 1 : 0;
      j += one_in_to ? 1 : 0;
    } else {
      for (std::int64_t in_from = from[i++], in_to = to[j++]; in_from != in_to;) {
        in_from < in_to ? in_from *= from[i++] : in_to *= to[j++];
      }
    }
    group.from_end = i;
    group.to_end = j;
    groups.push_back(group);
  }
  return groups;
}

}  // namespace shardrun::graph
