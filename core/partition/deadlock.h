#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/partition/split_function.h"

namespace shardrun::partition {

/// A value of one call that a stage sends or receives, or a collective that all stages take part in.
struct StageMessage {
  enum class Kind : std::uint8_t {
    send,
    receive,
    meet,  ///< a collective of all stages
  } kind = Kind::send;
  Link link = {};  ///< for send and receive
  std::size_t call = 0;
  graph::ValueId value = {};
  std::size_t segment = 0;                ///< index of the segment in the stage's list
  std::optional<std::size_t> place = {};  ///< position in the order of launches; see order_launches()
};

/// How an error text names a message.
struct MessageName {
  std::string action;
  std::string node;
};

/// Simulates the message lists of all stages with a limit on the messages in flight along each link. A receive waits
/// until its message is sent, a send waits while its link is full, and a collective waits for all stages. Returns the
/// smallest limit with which every list ends. Throws Error{job}, naming what each stage waits for, if there is none.
/// `name`: names a message in that text.
[[nodiscard]] std::size_t least_under_way(const IdVector<StageId, std::vector<StageMessage>>& stages,
                                          const std::function<MessageName(const StageMessage& message)>& name);

/// Advances through the lists of all stages until none can go on. `advance(stage, entry)` executes the next entry of a
/// stage's list and returns true, or returns false if the entry has to wait for another stage. Returns the number of
/// executed entries of each list.
template <class Entry, class Advance>
IdVector<StageId, std::size_t> walk(const IdVector<StageId, std::vector<Entry>>& stages, const Advance& advance) {
  IdVector<StageId, std::size_t> done(stages.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (const StageId stage : stages.ids()) {
      while (done[stage] < stages[stage].size() && advance(stage, stages[stage][done[stage]])) {
        ++done[stage];
        moved = true;
      }
    }
  }
  return done;
}

/// The collectives of all stages, in order. A stage passes a collective when all stages have reached it.
class Meetings {
 public:
  explicit Meetings(std::size_t stages) : come_(stages, 0), passed_(stages, 0) {}

  /// The stage reaches its next collective. Returns whether it passes.
  bool pass(StageId stage) {
    come_[stage] = passed_[stage] + 1;
    const bool passes = std::ranges::all_of(come_, [&](std::size_t come) { return come > passed_[stage]; });
    passed_[stage] += passes ? 1 : 0;
    return passes;
  }

 private:
  IdVector<StageId, std::size_t> come_;    ///< collectives that each stage has reached
  IdVector<StageId, std::size_t> passed_;  ///< collectives that each stage has passed
};

}  // namespace shardrun::partition
