#include "core/forecast/predict.h"

#include <algorithm>
#include <optional>
#include <set>

namespace shardrun::forecast {
namespace {

using plan::Action;
using Kind = partition::Instruction::Kind;

const partition::Buffer& buffer_of(const ExecutedInstruction& at, partition::BufferId id) {
  return at.program->buffers[id];
}

std::uint64_t operand_bytes(const ExecutedInstruction& at) {
  std::uint64_t bytes = 0;
  for (const partition::BufferId id : at.instruction->inputs) {
    bytes += buffer_of(at, id).bytes;
  }
  for (std::size_t o = 0; o < at.instruction->outputs.size(); ++o) {
    const bool is_read_too = o == 0 && at.instruction->accumulate != partition::Accumulate::never;
    bytes += buffer_of(at, at.instruction->outputs[o]).bytes * (is_read_too ? 2 : 1);
  }
  return bytes;
}

/// The bytes that an instruction of kind `move` reads and writes.
std::uint64_t moved_bytes(const ExecutedInstruction& at) {
  const partition::Buffer& from = buffer_of(at, at.instruction->inputs.at(0));
  const std::int64_t elements = graph::element_count(from.type);
  std::int64_t moved = 0;
  for (const partition::Copy& copy : at.instruction->copies) {
    moved += graph::element_count(copy.shape);
  }
  return elements == 0 ? 0
                       : 2 * static_cast<std::uint64_t>(moved) * (from.bytes / static_cast<std::uint64_t>(elements));
}

/// The bytes of a hook call's buffers, each counted once, because the work of the strategy's function is unknown.
std::uint64_t hook_bytes(const ExecutedInstruction& at) {
  std::uint64_t bytes = 0;
  for (const partition::Region& region : at.instruction->hook->buffers) {
    bytes +=
        static_cast<std::uint64_t>(region.elements) * graph::element_bytes(buffer_of(at, region.buffer).type.dtype);
  }
  return bytes;
}

std::int64_t messages_of(const partition::Transfer& transfer, std::int64_t member, std::int64_t members) {
  switch (transfer.collective) {
    case partition::Collective::all_reduce: return 2 * (members - 1);
    case partition::Collective::reduce_scatter:
    case partition::Collective::all_gather: return members - 1;
    case partition::Collective::all_to_all:
    case partition::Collective::halo: {
      std::int64_t partners = 0;
      for (std::int64_t m = 0; m < members; ++m) {
        const auto at = static_cast<std::size_t>(m);
        partners += m != member && (transfer.send_counts[at] > 0 || transfer.recv_counts[at] > 0) ? 1 : 0;
      }
      return partners;
    }
    case partition::Collective::send:
    case partition::Collective::receive: return 1;
  }
  return 0;
}

struct Span {
  double begin = 0;
  double end = 0;
};

/// The union of time spans, as disjoint spans in ascending order.
std::vector<Span> union_of(std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  std::vector<Span> disjoint;
  for (const Span& span : spans) {
    if (!disjoint.empty() && span.begin <= disjoint.back().end) {
      disjoint.back().end = std::max(disjoint.back().end, span.end);
    } else {
      disjoint.push_back(span);
    }
  }
  return disjoint;
}

/// Seconds that lie in spans of both lists. REQUIRES: each list is disjoint and ascending.
double overlap(const std::vector<Span>& some, const std::vector<Span>& others) {
  double seconds = 0;
  for (std::size_t s = 0, o = 0; s < some.size() && o < others.size();) {
    const double end = std::min(some[s].end, others[o].end);
    seconds += std::max(0.0, end - std::max(some[s].begin, others[o].begin));
    ++(some[s].end == end ? s : o);
  }
  return seconds;
}

/// Simulates ranks. Always advances the rank with the smallest time, so transfers start in the order of time.
class StepSimulation {
 public:
  StepSimulation(const std::vector<RankStep>& ranks, const partition::Pipeline& pipeline, const StepCosts& costs)
      : ranks_(ranks),
        pipeline_(pipeline),
        costs_(costs),
        computing_(ranks.size()),
        next_(ranks.size(), 0),
        now_(ranks.size(), 0),
        waits_(ranks.size(), false) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      instructions_.push_back(instructions_of(ranks[rank]));
    }
    meetings_ = meetings_of(instructions_, pipeline.axis);
    under_way_.resize(meetings_.all.size());
    result_.stages.resize(ranks.size());
    for (const std::vector<Action>& actions : pipeline.actions) {
      action_seconds_.emplace_back(actions.size(), 0.0);
    }
  }

  Prediction run() {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      behind_.emplace(now_[rank], rank);
    }
    while (!behind_.empty()) {
      const std::size_t rank = behind_.begin()->second;
      behind_.erase(behind_.begin());
      go_on(rank);
    }
    result_.seconds = *std::max_element(now_.begin(), now_.end());
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      StagePrediction& stage = result_.stages[rank];
      stage.waiting += result_.seconds - now_[rank];
      stage.hidden = std::min(stage.compute, overlap(union_of(computing_[rank]), union_of(under_way_of(rank))));
    }
    for (const partition::StageId stage : pipeline_.actions.ids()) {
      for (std::size_t number = 0; number < pipeline_.actions[stage].size(); ++number) {
        const Action& action = pipeline_.actions[stage][number];
        result_.actions[{action.chunk, action.kind, action.microbatch}] += action_seconds_[stage.index()][number];
      }
    }
    return std::move(result_);
  }

 private:
  /// The state of the transfer of one meeting.
  struct UnderWay {
    std::size_t started = 0;  ///< participants that have started the transfer
    double from = 0;          ///< time of the latest of these starts
    double seconds = 0;
    double end = 0;
  };

  /// Advances a rank until another rank has a smaller time, or until it has to wait or its step ends.
  void go_on(std::size_t rank) {
    while (next_[rank] < instructions_[rank].size()) {
      if (!behind_.empty() && *behind_.begin() < std::pair{now_[rank], rank}) {
        behind_.emplace(now_[rank], rank);
        return;
      }
      if (!advance(rank)) {
        waits_[rank] = true;
        return;
      }
      ++next_[rank];
    }
  }

  /// The spans in which a rank's transfers were under way. Transfers over axes without a rate have no length.
  [[nodiscard]] std::vector<Span> under_way_of(std::size_t rank) const {
    std::vector<Span> spans;
    for (std::size_t i = 0; i < instructions_[rank].size(); ++i) {
      if (instructions_[rank][i].instruction->kind == Kind::start) {
        const UnderWay& it = under_way_[meetings_.at[rank][i]];
        spans.push_back({it.from, it.end});
      }
    }
    return spans;
  }

  /// Executes the rank's next instruction. Returns false if it waits for a transfer that is not under way yet.
  bool advance(std::size_t rank) {
    const ExecutedInstruction& at = instructions_[rank][next_[rank]];
    const double cost = costs_.seconds[rank][next_[rank]];
    StagePrediction& stage = result_.stages[rank];
    double in_action = cost;
    switch (at.instruction->kind) {
      case Kind::compute:
      case Kind::move:
      case Kind::hook:
        stage.compute += cost;
        computing_[rank].push_back({now_[rank], now_[rank] + cost});
        now_[rank] += cost;
        break;
      case Kind::start:
        begin(rank, at);
        stage.exposed += cost;
        now_[rank] += cost;
        break;
      case Kind::wait: {
        const std::optional<double> waited = wait(rank, at, cost);
        if (!waited) {
          return false;
        }
        in_action = at.transfer().axis == pipeline_.axis ? 0 : *waited;
        break;
      }
    }
    if (const partition::ActionId action = at.instruction->action; pipeline_.exists() && action.exists()) {
      action_seconds_[rank][action.index()] += in_action;
    }
    return true;
  }

  [[nodiscard]] const std::optional<compile::AxisRate>& rate_of(const partition::Transfer& transfer) const {
    return costs_.axes[transfer.axis];
  }

  void begin(std::size_t rank, const ExecutedInstruction& at) {
    const std::size_t number = meetings_.at[rank][next_[rank]];
    const partition::Transfer& transfer = at.transfer();
    const bool receives = transfer.collective == partition::Collective::receive;
    if (receives && !transfer.is_direct) {
      return;
    }
    UnderWay& it = under_way_[number];
    it.from = std::max(it.from, now_[rank]);
    ++it.started;
    if (const std::optional<compile::AxisRate>& rate = rate_of(transfer); rate && !receives) {
      it.seconds = std::max(it.seconds, transfer_seconds(transfer, *ranks_[rank].programs, *rate));
    }
    if (is_under_way(number, transfer)) {
      send(it, meetings_.all[number], transfer);
    }
  }

  /// Lets the transfer begin when its senders have finished their earlier transfers over this axis.
  void send(UnderWay& it, const Meeting& meeting, const partition::Transfer& transfer) {
    const std::size_t senders = is_message(transfer) ? 1 : meeting.sides.size();
    double begin = it.from;
    for (std::size_t s = 0; s < senders; ++s) {
      begin = std::max(begin, free_[{transfer.axis, meeting.sides[s].rank}]);
    }
    it.end = begin + it.seconds;
    for (std::size_t s = 0; s < senders; ++s) {
      free_[{transfer.axis, meeting.sides[s].rank}] = it.end;
    }
    for (const Meeting::Side& side : meeting.sides) {
      if (waits_[side.rank]) {
        waits_[side.rank] = false;
        behind_.emplace(now_[side.rank], side.rank);
      }
    }
  }

  [[nodiscard]] bool is_under_way(std::size_t meeting, const partition::Transfer& transfer) const {
    const bool waits_in_transport = is_message(transfer) && !transfer.is_direct;
    return under_way_[meeting].started == (waits_in_transport ? 1 : meetings_.all[meeting].sides.size());
  }

  /// Executes a wait. Returns its seconds, or nothing if the transfer's end is not known yet.
  std::optional<double> wait(std::size_t rank, const ExecutedInstruction& at, double cost) {
    const std::size_t number = meetings_.at[rank][next_[rank]];
    const UnderWay& it = under_way_[number];
    if (!is_under_way(number, at.transfer())) {
      return std::nullopt;
    }
    const double begin = now_[rank];
    const double all_there = std::max(begin, it.from);
    const bool has_rate = rate_of(at.transfer()).has_value();
    const double end = has_rate ? std::max(begin, it.end) : all_there + cost;
    StagePrediction& stage = result_.stages[rank];
    stage.waiting += all_there - begin;
    stage.exposed += end - all_there;
    now_[rank] = end;
    return end - begin;
  }

  const std::vector<RankStep>& ranks_;
  const partition::Pipeline& pipeline_;
  const StepCosts& costs_;
  std::vector<std::vector<ExecutedInstruction>> instructions_;
  Meetings meetings_;
  std::vector<UnderWay> under_way_;                              ///< the transfer of each meeting
  std::map<std::pair<mesh::AxisId, std::size_t>, double> free_;  ///< per axis and rank: when its sends have ended
  std::vector<std::vector<Span>> computing_;                     ///< spans of computing of each rank, ascending
  std::vector<std::size_t> next_;
  std::vector<double> now_;
  std::vector<bool> waits_;  ///< per rank: whether it waits for participants to start a transfer
  std::set<std::pair<double, std::size_t>> behind_;  ///< ranks that may be able to advance, ordered by time
  std::vector<std::vector<double>> action_seconds_;  ///< per rank: seconds of each action in its list
  Prediction result_;
};

}  // namespace

bool computes(const partition::Instruction& instruction) noexcept {
  return instruction.kind != Kind::start && instruction.kind != Kind::wait;
}

double compute_seconds(const ExecutedInstruction& at, const ComputeRate& rate) {
  const bool moves = at.instruction->kind == Kind::move;
  const auto bytes = static_cast<double>(moves                  ? moved_bytes(at)
                                         : at.instruction->hook ? hook_bytes(at)
                                                                : operand_bytes(at));
  return std::max(static_cast<double>(at.instruction->flops) / rate.flops, bytes / rate.memory_bandwidth);
}

double transfer_seconds(const partition::Transfer& transfer, const partition::Programs& programs,
                        const compile::AxisRate& rate) {
  const std::int64_t members = programs.mesh.size(transfer.axis);
  const std::int64_t member = mesh::coordinates_of(programs.mesh, programs.rank)[transfer.axis];
  return static_cast<double>(messages_of(transfer, member, members)) * rate.latency +
         static_cast<double>(partition::sent_bytes(transfer, member, members)) / rate.bandwidth;
}

double Prediction::cost_of(const Action& action) const {
  const auto found = actions.find({action.chunk, action.kind, action.microbatch});
  return found == actions.end() ? 0 : found->second;
}

Prediction predict(const std::vector<RankStep>& ranks, const partition::Pipeline& pipeline, const StepCosts& costs) {
  return StepSimulation(ranks, pipeline, costs).run();
}

}  // namespace shardrun::forecast
