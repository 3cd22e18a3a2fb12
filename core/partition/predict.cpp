#include "core/partition/predict.h"

#include <algorithm>
#include <set>
#include <string_view>

namespace shardrun::partition {
namespace {

using plugins::Action;
using Kind = Instruction::Kind;
using ActionKey = std::tuple<std::uint32_t, Action::Kind, std::uint32_t>;

bool is_message(const Transfer& transfer) noexcept {
  return transfer.collective == Collective::send || transfer.collective == Collective::receive;
}

const Buffer& buffer_of(const ExecutedInstruction& at, BufferId id) {
  return at.program->buffers[static_cast<std::size_t>(id)];
}

std::uint64_t operand_bytes(const ExecutedInstruction& at) {
  std::uint64_t bytes = 0;
  for (const BufferId id : at.instruction->inputs) {
    bytes += buffer_of(at, id).bytes;
  }
  for (std::size_t o = 0; o < at.instruction->outputs.size(); ++o) {
    const bool is_read_too = o == 0 && at.instruction->accumulate != Accumulate::never;
    bytes += buffer_of(at, at.instruction->outputs[o]).bytes * (is_read_too ? 2 : 1);
  }
  return bytes;
}

/// Read here and written there.
std::uint64_t moved_bytes(const ExecutedInstruction& at) {
  const Buffer& from = buffer_of(at, at.instruction->inputs.at(0));
  const std::int64_t elements = graph::element_count(from.type);
  std::int64_t moved = 0;
  for (const Copy& copy : at.instruction->copies) {
    moved += graph::element_count(copy.shape);
  }
  return elements == 0 ? 0
                       : 2 * static_cast<std::uint64_t>(moved) * (from.bytes / static_cast<std::uint64_t>(elements));
}

/// Each buffer once: what a hook's call does with it is not known.
std::uint64_t hook_bytes(const HookCall& hook) {
  constexpr std::uint64_t element_bytes = 4;
  std::uint64_t bytes = 0;
  for (const Region& region : hook.buffers) {
    bytes += static_cast<std::uint64_t>(region.elements) * element_bytes;
  }
  return bytes;
}

std::int64_t messages_of(const Transfer& transfer, std::int64_t member, std::int64_t members) {
  switch (transfer.collective) {
    case Collective::all_reduce: return 2 * (members - 1);
    case Collective::reduce_scatter:
    case Collective::all_gather: return members - 1;
    case Collective::all_to_all: {
      std::int64_t partners = 0;
      for (std::int64_t m = 0; m < members; ++m) {
        const auto at = static_cast<std::size_t>(m);
        partners += m != member && (transfer.send_counts[at] > 0 || transfer.recv_counts[at] > 0) ? 1 : 0;
      }
      return partners;
    }
    case Collective::send:
    case Collective::receive: return 1;
  }
  return 0;
}

/// Which of a pipeline's actions each instruction of a stage belongs to.
class ActionOf {
 public:
  ActionOf(const Pipeline& pipeline, std::size_t stage, const std::vector<ExecutedInstruction>& instructions)
      : pipeline_(pipeline) {
    for (std::size_t i = 0; pipeline.exists() && i < instructions.size(); ++i) {
      behind_ = is_of_action(instructions[i]) ? i + 1 : behind_;
    }
    for (std::size_t a = 0; pipeline.exists() && a < pipeline.actions[stage].size(); ++a) {
      const Action& action = pipeline.actions[stage][a];
      actions_.insert({action.chunk, action.kind, action.microbatch});
    }
  }

  /// Null: to none, such as what settles gradients behind all of them. What is not computed belongs to what was
  /// computed before it. To be asked for one instruction after the other; `number`: in the step.
  const ActionKey* next(const ExecutedInstruction& at, std::size_t number) {
    if (number >= behind_) {
      return nullptr;
    }
    if (is_of_action(at)) {
      find(*at.instruction);
    }
    return now_;
  }

 private:
  /// Copies are made beside the graph's nodes, for states.
  static bool is_of_action(const ExecutedInstruction& at) {
    return at.program->function == "micro" && at.instruction->kind == Kind::compute &&
           at.instruction->op->name != std::string_view("copy");
  }

  void find(const Instruction& instruction) {
    const auto chunk = static_cast<std::uint32_t>(pipeline_.chunk_of(instruction.layer));
    const auto call = static_cast<std::uint32_t>(instruction.call);
    const auto look_for = [&](Action::Kind kind) {
      const auto found = actions_.find({chunk, kind, call});
      now_ = found == actions_.end() ? now_ : &*found;
      return found != actions_.end();
    };
    switch (instruction.phase) {
      case graph::Phase::forward: look_for(Action::Kind::forward); break;
      case graph::Phase::backward_input:
        static_cast<void>(look_for(Action::Kind::backward_input) || look_for(Action::Kind::backward));
        break;
      case graph::Phase::backward_weight:
        static_cast<void>(look_for(Action::Kind::backward_weight) || look_for(Action::Kind::backward));
        break;
      case graph::Phase::update: break;
    }
  }

  const Pipeline& pipeline_;
  std::set<ActionKey> actions_;
  const ActionKey* now_ = nullptr;
  std::size_t behind_ = 0;  ///< all actions
};

class StepSimulation {
 public:
  StepSimulation(const std::vector<RankStep>& ranks, const Pipeline& pipeline, const StepCosts& costs)
      : ranks_(ranks), pipeline_(pipeline), costs_(costs), next_(ranks.size(), 0), now_(ranks.size(), 0) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      instructions_.push_back(instructions_of(ranks[rank]));
      action_of_.emplace_back(pipeline, rank, instructions_.back());
    }
    meetings_ = meetings_of(instructions_, pipeline.axis);
    under_way_.resize(meetings_.all.size());
    result_.stages.resize(ranks.size());
  }

  Prediction run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        while (next_[rank] < instructions_[rank].size() && advance(rank)) {
          ++next_[rank];
          moved = true;
        }
      }
    }
    result_.seconds = *std::max_element(now_.begin(), now_.end());
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      result_.stages[rank].waiting += result_.seconds - now_[rank];
    }
    return std::move(result_);
  }

 private:
  /// A meeting's transfer.
  struct UnderWay {
    std::size_t started = 0;  ///< sides that have to start before it is under way
    double from = 0;          ///< when the last of them did
    double seconds = 0;
    double end = 0;
  };

  bool advance(std::size_t rank) {
    const ExecutedInstruction& at = instructions_[rank][next_[rank]];
    const double cost = costs_.seconds[rank][next_[rank]];
    StagePrediction& stage = result_.stages[rank];
    const ActionKey* action = action_of_[rank].next(at, next_[rank]);
    double in_action = cost;
    switch (at.instruction->kind) {
      case Kind::compute:
      case Kind::move:
      case Kind::hook:
        stage.compute += cost;
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
    if (action != nullptr) {
      result_.actions[*action] += in_action;
    }
    return true;
  }

  [[nodiscard]] const std::optional<AxisRate>& rate_of(const Transfer& transfer) const {
    return costs_.axes[static_cast<std::size_t>(transfer.axis)];
  }

  void begin(std::size_t rank, const ExecutedInstruction& at) {
    const std::size_t number = meetings_.at[rank][next_[rank]];
    const Transfer& transfer = at.transfer();
    if (transfer.collective == Collective::receive) {
      return;
    }
    UnderWay& it = under_way_[number];
    it.from = std::max(it.from, now_[rank]);
    ++it.started;
    if (const std::optional<AxisRate>& rate = rate_of(transfer)) {
      it.seconds = std::max(it.seconds, transfer_seconds(transfer, *ranks_[rank].programs, costs_.f32_bytes, *rate));
    }
    if (is_under_way(number, transfer)) {
      double& free = free_[{transfer.axis, transfer.link, transfer.axis == pipeline_.axis ? 0 : rank}];
      it.end = free = std::max(free, it.from) + it.seconds;
    }
  }

  [[nodiscard]] bool is_under_way(std::size_t meeting, const Transfer& transfer) const {
    return under_way_[meeting].started == (is_message(transfer) ? 1 : meetings_.all[meeting].sides.size());
  }

  /// How long it waits; nothing where that is not known yet.
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
    stage.hidden += has_rate ? std::max(0.0, it.seconds - (end - all_there)) : 0;
    now_[rank] = end;
    return end - begin;
  }

  const std::vector<RankStep>& ranks_;
  const Pipeline& pipeline_;
  const StepCosts& costs_;
  std::vector<std::vector<ExecutedInstruction>> instructions_;
  Meetings meetings_;
  std::vector<ActionOf> action_of_;
  std::vector<UnderWay> under_way_;  ///< of each meeting
  std::map<std::tuple<mesh::AxisId, Link, std::size_t>, double> free_;
  std::vector<std::size_t> next_;
  std::vector<double> now_;
  Prediction result_;
};

}  // namespace

bool computes(const Instruction& instruction) noexcept {
  return instruction.kind != Kind::start && instruction.kind != Kind::wait;
}

double compute_seconds(const ExecutedInstruction& at, const ComputeRate& rate) {
  const bool moves = at.instruction->kind == Kind::move;
  const auto bytes = static_cast<double>(moves              ? moved_bytes(at)
                                         : at.instruction->hook ? hook_bytes(*at.instruction->hook)
                                                                : operand_bytes(at));
  return std::max(static_cast<double>(at.instruction->flops) / rate.flops, bytes / rate.memory_bandwidth);
}

double transfer_seconds(const Transfer& transfer, const Programs& programs, std::size_t f32_bytes,
                        const AxisRate& rate) {
  const std::int64_t members = programs.mesh.size(transfer.axis);
  const std::int64_t member =
      mesh::coordinates_of(programs.mesh, programs.rank)[static_cast<std::size_t>(transfer.axis)];
  const std::size_t element_bytes = transfer.dtype == graph::DType::f32 ? f32_bytes : 4;
  return static_cast<double>(messages_of(transfer, member, members)) * rate.latency +
         static_cast<double>(sent_bytes(transfer, member, members, element_bytes)) / rate.bandwidth;
}

double Prediction::cost_of(const Action& action) const {
  const auto found = actions.find({action.chunk, action.kind, action.microbatch});
  return found == actions.end() ? 0 : found->second;
}

Prediction predict(const std::vector<RankStep>& ranks, const Pipeline& pipeline, const StepCosts& costs) {
  return StepSimulation(ranks, pipeline, costs).run();
}

}  // namespace shardrun::partition
