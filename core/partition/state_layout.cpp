#include "core/partition/bucket.h"

#include <algorithm>
#include <utility>

#include "core/memory/layout.h"
#include "core/partition/hooks.h"

namespace shardrun::partition {
namespace {

class Places {
 public:
  explicit Places(IdVector<graph::StateId, Buffer>& states) : states_(states), placed_(states.size(), false) {}

  void place(const std::vector<graph::StateId>& group) {
    for (const graph::StateId state : group) {
      place_one(state);
    }
    offset_ = memory::align_up(offset_);
  }

  void place(Category category) {
    for (const graph::StateId s : states_.ids()) {
      if (!placed_[s] && states_[s].category == category) {
        place_one(s);
        offset_ = memory::align_up(offset_);
      }
    }
  }

  [[nodiscard]] std::uint64_t end() const noexcept { return offset_; }

 private:
  void place_one(graph::StateId s) {
    if (!placed_[s]) {
      states_[s].offset = offset_;
      offset_ += states_[s].bytes;
      placed_[s] = true;
    }
  }

  IdVector<graph::StateId, Buffer>& states_;
  IdVector<graph::StateId, bool> placed_;
  std::uint64_t offset_ = 0;
};

}  // namespace

StateLayout::StateLayout(const graph::Graph& graph, const Partition& partition, const StageFunctions& stage)
    : graph_(graph),
      partition_(partition),
      functions_(stage),
      stage_(stage.stage),
      bytes_(state_bytes(graph, partition)) {}

StateLayout::StateBytes StateLayout::state_bytes(const graph::Graph& graph, const Partition& partition) {
  const mesh::Mesh& mesh = partition.placements.mesh;
  const mesh::Coordinates first(mesh.axes.size(), 0);
  const mesh::Coordinates last = mesh::coordinates_of(mesh, mesh.ranks() - 1);
  StateBytes bytes;
  for (const graph::StateId s : graph.states.ids()) {
    const graph::TensorType& type = graph.states[s].type;
    const mesh::Placement& placement = partition.placements.states[s];
    const auto of = [&](const mesh::Coordinates& at) {
      return static_cast<std::uint64_t>(mesh::box_of(type.shape, placement, mesh, at).elements()) *
             graph::element_bytes(type.dtype);
    };
    bytes.most.push_back(of(first));
    bytes.least.push_back(of(last));
    for (const mesh::Halo& halo : placement.halos) {  // with a halo, the largest and smallest parts may be anywhere
      mesh::Coordinates at = first;
      for (std::int64_t& along = at[placement.dims[halo.dim].front()];
           along < mesh.size(placement.dims[halo.dim].front()); ++along) {
        bytes.most.back() = std::max(bytes.most.back(), of(at));
        bytes.least.back() = std::min(bytes.least.back(), of(at));
      }
    }
  }
  return bytes;
}

std::vector<std::vector<Bucket>> StateLayout::buckets() {
  std::vector<std::vector<Bucket>> all;
  const auto finalizes = [&](graph::StateId state) {
    return kind(state) == graph::StateKind::metric || partition_.stages.states.owner[state] == stage_;
  };
  for (const SplitFunction& function : functions_.functions) {
    std::vector<Bucket>& kept = all.emplace_back();
    for (Bucket& bucket : function.name == after_step_function
                              ? hook_buckets()
                              : buckets_of(graph_, function, partition_.sharded.finalizations, finalizes, bytes_.most,
                                           partition_.bucket_bytes)) {
      lay_out(std::move(bucket), kept);
    }
  }
  return all;
}

std::uint64_t StateLayout::place(IdVector<graph::StateId, Buffer>& states) const {
  Places places(states);
  for (const bool parameters : {true, false}) {
    for (const std::vector<graph::StateId>& group : groups_) {
      if ((kind(group.front()) == graph::StateKind::parameter) == parameters) {
        places.place(group);
      }
    }
    if (parameters) {
      places.place(Category::parameters);
    }
  }
  for (const Category category : {Category::gradients, Category::optimizer, Category::activations}) {
    places.place(category);
  }
  return places.end();
}

graph::StateKind StateLayout::kind(graph::StateId state) const { return graph_.states[state].kind; }

/// Within a bucket, states of an aligned size come first: a state of any other size (`loss`, an odd bias) makes
/// everything after it unaligned.
void StateLayout::lay_out(Bucket bucket, std::vector<Bucket>& kept) {
  std::stable_partition(bucket.states.begin(), bucket.states.end(), [&](graph::StateId state) {
    return bytes_.most[state] % memory::alignment == 0 && bytes_.least[state] % memory::alignment == 0;
  });
  const bool fresh = std::none_of(bucket.states.begin(), bucket.states.end(),
                                  [&](graph::StateId state) { return placed_.contains(state); });
  placed_.insert(bucket.states.begin(), bucket.states.end());
  if (fresh) {
    groups_.push_back(bucket.states);
    laid_out_.insert(bucket.states);
    lay_out_hook_states(bucket);
  }
  if (laid_out_.contains(bucket.states)) {
    kept.push_back(std::move(bucket));
    return;
  }
  // Some of the states are already placed in other buckets, so each state becomes a bucket of its own.
  for (const graph::StateId state : bucket.states) {
    kept.push_back({.states = {state}, .steps = bucket.steps});
  }
}

void StateLayout::lay_out_hook_states(const Bucket& bucket) {
  const bool hooked = std::any_of(bucket.steps.begin(), bucket.steps.end(),
                                  [](const Transition& step) { return step.kind == Transition::Kind::hook; });
  if (hooked) {
    for (std::vector<graph::StateId>& states :
         hook_states_of(bucket.states, *hook_of(kind(bucket.states.front()), partition_.placements), graph_)) {
      groups_.push_back(std::move(states));
    }
  }
}

/// Groups this stage's tensors of the hook after_step into buckets.
std::vector<Bucket> StateLayout::hook_buckets() const {
  const PlacedHook& hook = *hook_of(graph::StateKind::parameter, partition_.placements);
  struct Open {
    GroupKey key;
    std::size_t bucket = 0;
    std::uint64_t filled = 0;
  };
  std::vector<Bucket> buckets;
  std::vector<Open> open;
  for (const graph::StateId state : hook.parameters) {
    const IdVector<StageId, bool>& held = partition_.stages.states.held[state];
    if (!held[stage_]) {
      continue;
    }
    // A tensor on several stages gets a bucket of its own, so that the hook does the same with it on each of them.
    const bool alone = std::count(held.begin(), held.end(), true) > 1;
    const GroupKey key = group_key(partition_.placements.states[state]);
    auto group = std::find_if(open.begin(), open.end(), [&](const Open& each) {
      return !alone && each.key == key && each.filled + bytes_.most[state] <= partition_.bucket_bytes;
    });
    if (group == open.end()) {
      std::erase_if(open, [&](const Open& each) { return !alone && each.key == key; });
      buckets.push_back({.states = {}, .steps = {{.kind = Transition::Kind::hook, .axis = hook.axis}}});
      group = open.insert(open.end(), {.key = key, .bucket = buckets.size() - 1, .filled = alone ? UINT64_MAX / 2 : 0});
    }
    buckets[group->bucket].states.push_back(state);
    group->filled += bytes_.most[state];
  }
  return buckets;
}

}  // namespace shardrun::partition
