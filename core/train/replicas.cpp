#include "core/train/replicas.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "core/base/error.h"
#include "core/partition/agreements.h"
#include "core/runtime/flight_record.h"

namespace shardrun::train {
namespace {

/// The number of values that one set contributes to the all_reduce (max): both halves of its hash, and both halves
/// inverted. The largest inverted half is the inverse of the smallest half.
constexpr std::size_t numbers_of_set = partition::numbers_per_replica_set;

std::vector<device::TensorView> views_of(const std::vector<partition::ReplicaSet>& sets,
                                         const runtime::Executor& executor) {
  std::vector<device::TensorView> views;
  for (const partition::ReplicaSet& set : sets) {
    for (const graph::StateId state : set.states) {
      views.push_back(executor.state(state));
    }
  }
  return views;
}

/// The names of the transports that may have changed data.
std::string transports_of(const job::Job& job) {
  std::string names;
  for (const job::Chosen& transport : job.transports) {
    names += (names.empty() ? "" : ", ") + transport.name;
  }
  return names;
}

/// Combines a hash with those before it. The result depends on their order, and differences spread over all bits.
std::uint64_t mixed(std::uint64_t sum, std::uint64_t hash) noexcept {
  constexpr std::uint64_t odd = 0x9e37'79b9'7f4a'7c15;
  sum = (sum ^ hash) * odd;
  return sum ^ (sum >> 32U);
}

}  // namespace

Replicas::Replicas(const compile::Compiled& compiled, runtime::Executor& executor, RankLink& link)
    : compiled_(compiled),
      executor_(executor),
      link_(link),
      sets_(partition::replicas_of(compiled.graph, compiled.partition)),
      hashes_(views_of(sets_, executor)),
      largest_(numbers_of_set * sets_.size()),
      exchanged_(largest_.size()) {
  const mesh::Coordinates at = mesh::coordinates_of(compiled.partition.placements.mesh, link.rank());
  for (const partition::ReplicaSet& set : sets_) {
    held_.push_back(set.holds(compiled.partition, at));
  }
  const mesh::Mesh& mesh = compiled.partition.placements.mesh;
  for (const mesh::AxisId axis : mesh.axes.ids()) {
    if (std::any_of(sets_.begin(), sets_.end(), [&](const auto& set) { return set.runs_along(axis); })) {
      comparisons_.emplace_back(axis, executor.find(partition::comparison_function(mesh, axis), 0));
    }
  }
}

void Replicas::compare(std::int64_t step) {
  own_ = hashes_.compute(executor_.queue(), executor_.threads());
  const std::int32_t differ = link_.agree(any_differ() ? 1 : 0, std::numeric_limits<std::int32_t>::max());
  if (differ == 0) {
    last_equal_ = step;
    return;
  }
  executor_.verify_states();  // a rank whose own memory is the cause reports that; the others wait for it below
  // A result other than 1 was changed in transit. Other ranks have perhaps seen no difference and would not answer.
  const std::string found = differ == 1 ? difference_of_all() : changed_answers();
  throw Error(ErrorCode::numerics,
              fmt::format("step {}: {}. {}. Nothing of this step is saved", step, found,
                          last_equal_ ? fmt::format("All replicas were equal after step {}", *last_equal_)
                                      : "They had not been compared before"));
}

/// If a transport changed the result on some rank, that rank continues and sends no hashes. Then this call times out.
std::string Replicas::difference_of_all() {
  try {
    return link_.made_of_all("replicas", answer(), [this](const auto& of_ranks) { return difference(of_ranks); });
  } catch (const Error& error) {
    if (error.code() != ErrorCode::timeout) {
      throw;
    }
    return fmt::format("{}; {}", changed_answers(), error.message());
  }
}

/// This rank's hashes, followed by the properties of its kernels.
std::string Replicas::answer() const {
  std::string bytes(own_.size_bytes(), '\0');
  std::memcpy(bytes.data(), own_.data(), own_.size_bytes());
  const bool mixed = link_.job().train.precision == job::Precision::mixed;
  return bytes + kernels_of(compiled_.device->facts(), mixed);
}

std::string Replicas::changed_answers() const {
  return fmt::format("a transport ({}) changed data: what the ranks told each other of their replicas' hashes",
                     transports_of(link_.job()));
}

bool Replicas::any_differ() {
  std::size_t at = 0;
  for (std::size_t s = 0; s < sets_.size(); ++s) {
    std::uint64_t hash = 0;
    for (std::size_t i = 0; i < sets_[s].states.size(); ++i) {
      hash = mixed(hash, own_[at++]);
    }
    const auto low = static_cast<std::int32_t>(static_cast<std::uint32_t>(hash));
    const auto high = static_cast<std::int32_t>(static_cast<std::uint32_t>(hash >> 32U));
    // The value of a rank without the set, which must never be the largest.
    constexpr std::int32_t none = std::numeric_limits<std::int32_t>::min();
    const std::array<std::int32_t, numbers_of_set> numbers = {low, high, ~low, ~high};
    for (std::size_t n = 0; n < numbers_of_set; ++n) {
      largest_[numbers_of_set * s + n] = held_[s] ? numbers[n] : none;
    }
  }
  for (const auto& [axis, program] : comparisons_) {
    exchanged_ = largest_;
    executor_.agree(program, exchanged_);
    for (std::size_t i = 0; i < largest_.size(); ++i) {
      if (sets_[i / numbers_of_set].runs_along(axis)) {
        largest_[i] = exchanged_[i];
      }
    }
  }
  for (std::size_t s = 0; s < sets_.size(); ++s) {
    const std::int32_t* const largest = largest_.data() + numbers_of_set * s;
    if (held_[s] && (largest[0] != ~largest[2] || largest[1] != ~largest[3])) {
      return true;
    }
  }
  return false;
}

std::string Replicas::difference(const std::vector<std::string>& of_ranks) const {
  const partition::Partition& partition = compiled_.partition;
  const mesh::Mesh& mesh = partition.placements.mesh;
  struct Found {
    graph::StateId state = {};
    Dissent who;
  };
  std::vector<Found> found;
  std::size_t number = 0;  // index of a hash
  for (const partition::ReplicaSet& set : sets_) {
    // Groups of ranks that hold the same part, by the rank at coordinate 0 along the set's axes.
    std::map<std::int64_t, std::vector<int>> groups;
    for (int rank = 0; rank < static_cast<int>(of_ranks.size()); ++rank) {
      mesh::Coordinates at = mesh::coordinates_of(mesh, rank);
      if (set.holds(partition, at)) {
        for (const mesh::AxisId axis : set.axes) {
          at[axis] = 0;
        }
        groups[mesh::rank_at(mesh, at)].push_back(rank);
      }
    }
    for (const graph::StateId state : set.states) {
      for (const auto& [first, ranks] : groups) {
        std::vector<std::uint64_t> hashes(ranks.size());
        for (std::size_t r = 0; r < ranks.size(); ++r) {
          const std::string& given = of_ranks[static_cast<std::size_t>(ranks[r])];
          std::memcpy(&hashes[r], given.data() + number * sizeof(std::uint64_t), sizeof(std::uint64_t));
        }
        if (std::adjacent_find(hashes.begin(), hashes.end(), std::not_equal_to<>()) != hashes.end()) {
          found.push_back({state, dissent_of(ranks, hashes)});
          break;
        }
      }
      ++number;
    }
  }
  if (found.empty()) {
    return changed_answers();
  }
  // Prefers a state with a majority, and a parameter before the states computed from it.
  const auto first = std::min_element(found.begin(), found.end(), [](const Found& one, const Found& other) {
    return std::pair(!one.who.has_majority, one.state) < std::pair(!other.who.has_majority, other.state);
  });
  const graph::State& state = compiled_.graph.states[first->state];
  std::set<std::string> kernels;
  for (const std::string& given : of_ranks) {
    kernels.insert(given.substr(own_.size_bytes()));
  }
  return fmt::format("the replicas of {} ({}) differ: {}{}. {}", state.name, graph::to_string(state.kind),
                     first->who.text, found.size() == 1 ? "" : fmt::format(" ({} tensors differ in all)", found.size()),
                     cause_of(kernels, transports_of(link_.job())));
}

std::string kernels_of(const device::DeviceFacts& facts, bool mixed) {
  // On a GPU, what multiplies bf16 matrices multiplies float32, too.
  return mixed || facts.kind == "cuda" ? fmt::format("{}, bf16 products: {}", facts.vectors, facts.bf16_products)
                                       : facts.vectors;
}

std::string cause_of(const std::set<std::string>& kernels, const std::string& transports) {
  if (kernels.size() > 1) {
    return fmt::format(
        "The kernels of the ranks differ ({}) and round differently: use machines and builds of one kind, or set [job] "
        "check_every = -1",
        fmt::join(kernels, " | "));
  }
  return fmt::format(
      "A memory, a processor or a transport ({}) has changed data: run the job again, and without that machine if it "
      "happens again",
      transports);
}

Dissent dissent_of(const std::vector<int>& ranks, const std::vector<std::uint64_t>& hashes) {
  std::vector<std::pair<std::uint64_t, std::vector<int>>> kinds;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const auto& each) { return each.first == hashes[r]; });
    if (kind == kinds.end()) {
      kind = kinds.insert(kinds.end(), {hashes[r], {}});
    }
    kind->second.push_back(ranks[r]);
  }
  const auto most = std::max_element(kinds.begin(), kinds.end(), [](const auto& one, const auto& other) {
    return one.second.size() < other.second.size();
  });
  if (2 * most->second.size() > ranks.size()) {
    std::vector<int> others;
    std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(others), [&](int rank) {
      return std::find(most->second.begin(), most->second.end(), rank) == most->second.end();
    });
    return {fmt::format("{} {} other bits than {}", runtime::names_of(others), others.size() == 1 ? "has" : "have",
                        runtime::names_of(most->second)),
            true};
  }
  std::vector<std::string> names;
  for (const auto& kind : kinds) {
    names.push_back(runtime::names_of(kind.second));
  }
  return {fmt::format("{} have different bits, and no majority says whose are right", fmt::join(names, " | ")), false};
}

}  // namespace shardrun::train
