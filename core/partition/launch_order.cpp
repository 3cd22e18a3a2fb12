#include "core/partition/launch_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "core/base/error.h"
#include "core/partition/deadlock.h"

namespace shardrun::partition {
namespace {

using Kind = StageMessage::Kind;
using Time = std::size_t;

/// Computes the time at which each message is received, if a receive or a collective takes one unit of time and a send
/// takes none. All stages launch messages in the order of these times.
class Clocks {
 public:
  Clocks(const IdVector<StageId, std::vector<StageMessage>>& stages, std::size_t most)
      : stages_(stages), most_(most), clocks_(stages.size(), 0), meetings_(stages.size()) {}

  void run() {
    static_cast<void>(walk(stages_, [&](StageId stage, const StageMessage& message) {
      switch (message.kind) {
        case Kind::send: return send(stage, message.link);
        case Kind::receive: return receive(stage, message.link);
        case Kind::meet: return meet(stage);
      }
      return false;
    }));
  }

  /// When each message of a stage is received, and when each collective happens.
  [[nodiscard]] std::vector<Time> times_of(StageId stage) const {
    std::map<std::pair<Link, Kind>, std::size_t> seen;
    std::size_t meetings = 0;
    std::vector<Time> times;
    for (const StageMessage& message : stages_[stage]) {
      times.push_back(message.kind == Kind::meet
                          ? met_[meetings++]
                          : links_.at(message.link).received[seen[{message.link, message.kind}]++]);
    }
    return times;
  }

 private:
  struct Times {
    std::vector<Time> sent;
    std::vector<Time> received;
  };

  bool send(StageId stage, const Link& link) {
    Times& times = links_[link];
    if (times.sent.size() >= times.received.size() + most_) {
      return false;
    }
    if (times.sent.size() >= most_) {  // the send reuses an earlier message's buffer
      clocks_[stage] = std::max(clocks_[stage], times.received[times.sent.size() - most_]);
    }
    times.sent.push_back(clocks_[stage]);
    return true;
  }

  bool receive(StageId stage, const Link& link) {
    Times& times = links_[link];
    if (times.received.size() >= times.sent.size()) {
      return false;
    }
    clocks_[stage] = std::max(clocks_[stage], times.sent[times.received.size()]) + 1;
    times.received.push_back(clocks_[stage]);
    return true;
  }

  /// Returns whether the stage passes its next collective. The last stage that arrives passes first, and sets the time.
  bool meet(StageId stage) {
    if (!meetings_.pass(stage)) {
      return false;
    }
    const std::size_t number = passed_[stage]++;
    if (number == met_.size()) {
      met_.push_back(*std::ranges::max_element(clocks_) + 1);
    }
    clocks_[stage] = met_[number];
    return true;
  }

  const IdVector<StageId, std::vector<StageMessage>>& stages_;
  const std::size_t most_;
  IdVector<StageId, Time> clocks_;
  std::map<Link, Times> links_;
  Meetings meetings_;
  std::map<StageId, std::size_t> passed_;
  std::vector<Time> met_;
};

}  // namespace

void order_launches(IdVector<StageId, std::vector<StageMessage>>& stages, std::size_t most) {
  Clocks clocks(stages, most);
  clocks.run();
  for (const StageId stage : stages.ids()) {
    std::vector<StageMessage>& messages = stages[stage];
    const std::vector<Time> times = clocks.times_of(stage);
    std::vector<std::tuple<Time, Link, std::size_t>> order;  // the link breaks ties equally on all stages
    for (std::size_t m = 0; m < messages.size(); ++m) {
      order.emplace_back(times[m], messages[m].link, m);
    }
    std::ranges::sort(order);
    for (std::size_t place = 0; place < order.size(); ++place) {
      messages[std::get<2>(order[place])].place = place;
    }
  }
}

std::vector<Launch> launches_of(const Program& program) {
  std::vector<Launch> launches;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.kind == Instruction::Kind::start && program.transfers[instruction.transfer].is_direct) {
      const Transfer& transfer = program.transfers[instruction.transfer];
      launches.push_back({.name = transfer.name,
                          .axis = transfer.axis,
                          .collective = transfer.collective,
                          .link = transfer.link,
                          .reduction = transfer.reduction,
                          .dtype = transfer.dtype});
    }
  }
  return launches;
}

void require_one_order(const std::string& function, const IdVector<StageId, std::vector<Launch>>& stages,
                       mesh::AxisId axis) {
  IdVector<StageId, std::vector<Launch>> along = stages;
  for (std::vector<Launch>& launches : along) {
    std::erase_if(launches, [&](const Launch& launch) { return launch.axis != axis; });
  }
  // The index of each stage's next launch. Two stages advance together when both have reached their common launch.
  IdVector<StageId, std::size_t> next(along.size(), 0);
  const auto at = [&](StageId stage) {
    return next[stage] < along[stage].size() ? &along[stage][next[stage]] : nullptr;
  };
  const auto is_met = [&](const Launch& launch, StageId by) {
    const Launch* const there = at(by);
    if (there == nullptr) {
      return false;
    }
    Launch awaited = launch;
    if (launch.link.from.exists()) {
      awaited.collective = launch.collective == Collective::send ? Collective::receive : Collective::send;
    }
    return *there == awaited;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (const StageId stage : along.ids()) {
      while (const Launch* const launch = at(stage)) {
        std::vector<StageId> members = {launch->link.from, launch->link.to};
        if (!launch->link.from.exists()) {
          members.clear();
          std::ranges::copy(along.ids(), std::back_inserter(members));
        }
        if (!std::ranges::all_of(members, [&](StageId member) { return member == stage || is_met(*launch, member); })) {
          break;
        }
        for (const StageId member : members) {
          ++next[member];
        }
        moved = true;
      }
    }
  }
  std::string waiting;
  for (const StageId stage : along.ids()) {
    if (const Launch* const launch = at(stage)) {
      waiting +=
          fmt::format("; stage {} is at the {} of {}", stage.number(), to_string(launch->collective), launch->name);
    }
  }
  if (!waiting.empty()) {
    throw Error(ErrorCode::job,
                fmt::format("function {}: the stages would start their transfers in the device's memory in different "
                            "orders, and wait for each other{}: choose a transport for host memory along their axis",
                            function, waiting));
  }
}

void LaunchOrders::add(StageId stage, const Programs& programs) {
  const auto [first, is_first] = ranks_.emplace(stage, programs.rank);
  programs_.resize(std::max(programs_.size(), programs.programs.size()));
  for (std::size_t p = 0; p < programs.programs.size(); ++p) {
    auto& [function, of_stages] = programs_[p];
    function = programs.programs[p].function;
    std::vector<Launch> launches = launches_of(programs.programs[p]);
    if (is_first) {
      of_stages.emplace(stage, std::move(launches));
    } else if (of_stages[stage] != launches) {
      throw Error(ErrorCode::internal,
                  fmt::format("function {}: rank {} starts its transfers in the device's memory in "
                              "another order than rank {}",
                              function, programs.rank, first->second));
    }
  }
}

void LaunchOrders::check(const Pipeline& pipeline) const {
  for (const auto& [function, of_stages] : programs_) {
    IdVector<StageId, std::vector<Launch>> stages(pipeline.stages());
    for (const auto& [stage, launches] : of_stages) {
      stages[stage] = launches;
    }
    require_one_order(function, stages, pipeline.axis);
  }
}

}  // namespace shardrun::partition
