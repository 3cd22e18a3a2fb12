#include "core/partition/schedule.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <utility>

namespace shardrun::partition {
namespace {

using graph::NodeId;

class Scheduler {
 public:
  Scheduler(const SplitFunction& function, const mesh::Mesh& mesh, std::uint64_t bucket_bytes)
      : function_(function), mesh_(mesh), bucket_bytes_(bucket_bytes) {
    find_values_of_states();
    find_gathers();
  }

  IdVector<StepId, Step> run() {
    for (const NodeId n : function_.nodes.ids()) {
      visit(n);
    }
    flush_exchanges();
    flush();
    wait(std::exchange(under_way_, {}));
    for (const auto& [link, sent] : sending_) {
      wait({sent.begin(), sent.end()});
    }
    return std::move(steps_);
  }

 private:
  using Nodes = std::vector<NodeId>;

  [[nodiscard]] const std::optional<Transition>& transition(NodeId n) const { return function_.nodes[n].transition; }

  /// Fills in for_states_: whether only state writes read a value.
  void find_values_of_states() {
    for_states_.assign(function_.values.size(), false);
    for (const graph::StateWrite& write : function_.writes) {
      for_states_[write.value] = true;
    }
    for (const graph::Node& node : function_.nodes) {
      for (const graph::ValueId id : node.inputs) {
        for_states_[id] = false;
      }
    }
    for (const graph::Port& port : function_.outputs) {
      for_states_[port.value] = false;
    }
  }

  void find_gathers() {
    for (const NodeId n : function_.nodes.ids()) {
      const std::optional<Transition>& step = function_.nodes[n].transition;
      if (step && step->gather >= 0) {
        gathers_[step->gather].push_back(n);
      }
    }
    next_gather_ = gathers_.begin();
  }

  void visit(NodeId n) {
    const std::optional<Transition>& step = transition(n);
    if (step && step->kind == Transition::Kind::exchange && step->gather < 0 && !is_only_for_state(n)) {
      exchange(n);
      return;
    }
    flush_exchanges();
    if (!step || step->kind == Transition::Kind::slice) {
      steps_.push_back({Step::Kind::compute, {n}});
    } else if (step->kind == Transition::Kind::send) {
      send(n, step->link);
    } else if (step->gather >= 0) {
      gather(step->gather);
    } else if (step->kind != Transition::Kind::receive && !step->place && for_states_[function_.nodes[n].outputs[0]]) {
      defer(n);
    } else {
      start({n});
      wait({n});
    }
  }

  /// Whether only state writes read a node's result. False for an op that shifts, whose kernel needs the halo.
  [[nodiscard]] bool is_only_for_state(NodeId n) const {
    const graph::Node& node = function_.nodes[n];
    return !node.op->shifts && for_states_[node.outputs[0]];
  }

  /// Collects consecutive exchanges. An exchange of a value that a collected one makes has to wait until that one ends.
  void exchange(NodeId n) {
    const graph::ValueId shifted = function_.nodes[n].inputs[0];
    if (std::any_of(exchanges_.begin(), exchanges_.end(),
                    [&](NodeId other) { return function_.nodes[other].outputs[0] == shifted; })) {
      flush_exchanges();
    }
    exchanges_.push_back(n);
  }

  void flush_exchanges() {
    start(exchanges_);
    wait(std::exchange(exchanges_, {}));
  }

  void start(Nodes nodes) {
    if (!nodes.empty()) {
      steps_.push_back({Step::Kind::start, std::move(nodes)});
    }
  }

  void wait(Nodes nodes) {
    if (!nodes.empty()) {
      steps_.push_back({Step::Kind::wait, std::move(nodes)});
    }
  }

  void send(NodeId n, const Link& link) {
    std::deque<NodeId>& before = sending_[link];
    if (before.size() == function_.under_way) {
      wait({before.front()});
      before.pop_front();
    }
    before.push_back(n);
    start({n});
  }

  /// Waits for the gathers of a unit before its first op, and starts those of the next unit.
  void gather(std::int32_t number) {
    while (next_gather_ != gathers_.end() && next_gather_->first <= number) {
      start_gather(next_gather_->second);
      finish_gather(next_gather_->second);
      ++next_gather_;
      if (next_gather_ != gathers_.end()) {
        start_gather(next_gather_->second);
      }
    }
  }

  /// Starts those gathers of a unit that read states. If there are several mesh axes, later gathers read their results.
  void start_gather(const Nodes& nodes) {
    if (begun_.insert(nodes.front()).second) {
      start(of_round(nodes, 0));
    }
  }

  void finish_gather(const Nodes& nodes) {
    wait(of_round(nodes, 0));
    for (std::size_t round = 1;; ++round) {
      Nodes next = of_round(nodes, round);
      if (next.empty()) {
        return;
      }
      start(next);
      wait(std::move(next));
    }
  }

  /// The nodes of a unit that depend on a chain of `round` other nodes of the same unit.
  [[nodiscard]] Nodes of_round(const Nodes& nodes, std::size_t round) const {
    std::map<graph::ValueId, std::size_t> rounds;
    Nodes found;
    for (const NodeId n : nodes) {
      const graph::Node& node = function_.nodes[n];
      const auto before = rounds.find(node.inputs[0]);
      const std::size_t mine = before == rounds.end() ? 0 : before->second + 1;
      rounds[node.outputs[0]] = mine;
      if (mine == round) {
        found.push_back(n);
      }
    }
    return found;
  }

  void defer(NodeId n) {
    const std::uint64_t bytes = bytes_of(n);
    if (!filling_.empty() && (filled_ + bytes > bucket_bytes_ || !alike(filling_.front(), n))) {
      flush();
    }
    filling_.push_back(n);
    filled_ += bytes;
  }

  void flush() {
    if (filling_.empty()) {
      return;
    }
    wait(std::exchange(under_way_, filling_));
    start(std::exchange(filling_, {}));
    filled_ = 0;
  }

  [[nodiscard]] bool alike(NodeId a, NodeId b) const {
    return transition(a)->kind == transition(b)->kind && transition(a)->axis == transition(b)->axis;
  }

  /// Bytes of a node's operand or result, whichever is larger, on the first rank.
  [[nodiscard]] std::uint64_t bytes_of(NodeId n) const {
    const graph::Node& node = function_.nodes[n];
    const mesh::Coordinates first(mesh_.axes.size(), 0);
    std::uint64_t bytes = 0;
    for (const graph::ValueId id : {node.inputs[0], node.outputs[0]}) {
      const SplitValue& value = function_.values[id];
      const std::int64_t elements = mesh::box_of(value.type.shape, value.placement, mesh_, first).elements();
      bytes = std::max(bytes, static_cast<std::uint64_t>(elements) * graph::element_bytes(value.type.dtype));
    }
    return bytes;
  }

  const SplitFunction& function_;
  const mesh::Mesh& mesh_;
  const std::uint64_t bucket_bytes_;
  IdVector<StepId, Step> steps_;
  IdVector<graph::ValueId, bool> for_states_;
  std::map<std::int32_t, Nodes> gathers_;  ///< by number of the gather, which follows the order of first uses
  std::map<std::int32_t, Nodes>::const_iterator next_gather_;
  std::set<NodeId> begun_;  ///< first nodes of gathers that have started
  std::map<Link, std::deque<NodeId>> sending_;
  Nodes exchanges_;  ///< exchanges that are collected but not yet started
  Nodes filling_;
  std::uint64_t filled_ = 0;
  Nodes under_way_;
};

}  // namespace

IdVector<StepId, Step> schedule(const SplitFunction& function, const mesh::Mesh& mesh, std::uint64_t bucket_bytes) {
  return Scheduler(function, mesh, bucket_bytes).run();
}

}  // namespace shardrun::partition
