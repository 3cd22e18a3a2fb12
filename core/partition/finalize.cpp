#include "core/partition/finalize.h"

#include <algorithm>
#include <utility>

#include "core/partition/copies.h"
#include "core/partition/parts.h"

namespace shardrun::partition {
namespace {

Transition::Kind transition_of(Collective collective) noexcept {
  switch (collective) {
    case Collective::reduce_scatter: return Transition::Kind::reduce_scatter;
    case Collective::all_gather: return Transition::Kind::all_gather;
    case Collective::all_to_all: return Transition::Kind::all_to_all;
    default: return Transition::Kind::all_reduce;
  }
}

class StateTransfer {
 public:
  StateTransfer(graph::StateId state, const LowerSettings& settings, const mesh::Coordinates& at)
      : state_(state),
        buffer_(settings.states[state]),
        finalization_(settings.partition.sharded.finalizations[state]),
        mesh_(settings.partition.placements.mesh),
        stored_(settings.partition.placements.states[state]),
        at_(at) {}

  [[nodiscard]] Transfer of(std::size_t step) const {
    const Transition& transition = finalization_.steps[step];
    const mesh::Placement from = placement_before(step);
    const mesh::Placement to = placement_before(step + 1);
    const Parts parts = parts_of(transition, buffer_.global, from, to, mesh_, at_);
    return {.name = buffer_.name,
            .collective = parts.collective,
            .axis = transition.axis,
            .reduction = transition.reduction,
            .dtype = buffer_.type.dtype,
            .rounded = buffer_.rounded,
            .send = region(from),
            .recv = region(to),
            .send_counts = counts(parts.sent),
            .recv_counts = counts(parts.received)};
  }

 private:
  [[nodiscard]] mesh::Placement placement_before(std::size_t step) const {
    mesh::Placement placement = stored_;
    for (std::size_t s = 0; s < step; ++s) {
      if (finalization_.steps[s].kind == Transition::Kind::reduce_scatter) {
        placement.along(finalization_.steps[s].dim).push_back(finalization_.steps[s].axis);
      }
    }
    return placement;
  }

  [[nodiscard]] Region region(const mesh::Placement& placement) const {
    const mesh::Box part = mesh::box_of(buffer_.global, placement, mesh_, at_);
    return {.buffer = buffer_of(state_), .elements = part.elements(), .first = index_in(buffer_.box, part)};
  }

  graph::StateId state_;
  const Buffer& buffer_;
  const Finalization& finalization_;
  const mesh::Mesh& mesh_;
  const mesh::Placement& stored_;
  const mesh::Coordinates& at_;
};

/// The transfers of one step of a bucket. If the finalization begins with an all_reduce, one transfer covers all
/// states. If it begins with a reduce_scatter, each state has its own transfer.
std::vector<Transfer> transfers_of(const Bucket& bucket, std::size_t step, const LowerSettings& settings,
                                   const mesh::Coordinates& at) {
  const Transition& now = bucket.steps[step];
  if (bucket.steps.front().kind == Transition::Kind::all_reduce) {
    const Region region = region_of(bucket.states, settings.states);
    return {{.name = settings.states[bucket.states.front()].name,
             .collective = Collective::all_reduce,
             .axis = now.axis,
             .reduction = now.reduction,
             .dtype = settings.states[bucket.states.front()].type.dtype,
             .rounded = settings.states[bucket.states.front()].rounded,
             .send = region,
             .recv = region}};
  }
  std::vector<Transfer> transfers;
  for (const graph::StateId state : bucket.states) {
    transfers.push_back(StateTransfer(state, settings, at).of(step));
  }
  return transfers;
}

}  // namespace

Finalizer::Finalizer(const LowerSettings& settings, const mesh::Coordinates& at, Emitter& emitter,
                     const IdVector<graph::StateId, StepId>& complete_at)
    : settings_(settings), at_(at), emitter_(emitter) {
  for (std::size_t b = 0; b < settings_.buckets.size(); ++b) {
    StepId complete;
    for (const graph::StateId state : settings_.buckets[b].states) {
      complete = std::max(complete, complete_at[state]);
    }
    // Stages reach the sums over stages at different points of their programs. In device memory, these sums start at
    // the end.
    const mesh::AxisId stages = settings_.partition.pipeline.axis;
    if (settings_.rank.is_direct(stages) &&
        std::ranges::any_of(settings_.buckets[b].steps, [&](const Transition& step) { return step.axis == stages; })) {
      complete = settings_.steps.next();
    }
    order_.emplace_back(complete, b);
  }
  std::sort(order_.begin(), order_.end());
}

void Finalizer::start(StepId s) {
  for (; next_ < order_.size() && order_[next_].first <= s; ++next_) {
    UnderWay bucket{.bucket = &settings_.buckets[order_[next_].second], .step = 0, .transfers = {}, .hook = {}};
    begin_step(bucket, s);
    under_way_.push_back(std::move(bucket));
  }
}

void Finalizer::begin_step(UnderWay& bucket, StepId s) {
  const Span span{s, settings_.steps.next()};
  const Transition& now = bucket.bucket->steps[bucket.step];
  bucket.transfers.clear();
  bucket.hook.reset();
  if (now.kind == Transition::Kind::hook) {
    bucket.hook.emplace(*bucket.bucket, settings_, at_, emitter_, span);
    (void)go_on(bucket, s);
    return;
  }
  for (Transfer& transfer : transfers_of(*bucket.bucket, bucket.step, settings_, at_)) {
    bucket.transfers.push_back(emitter_.add_transfer(std::move(transfer), span));
    emitter_.append(instruction(Instruction::Kind::start, bucket.transfers.back()), s);
  }
}

/// Starts the next exchange of the bucket's hook. Returns false if there is none left.
bool Finalizer::go_on(UnderWay& bucket, StepId s) {
  bucket.transfers.clear();
  const TransferId transfer = bucket.hook->go_on(s);
  if (transfer.exists()) {
    bucket.transfers = {transfer};
    emitter_.append(instruction(Instruction::Kind::start, transfer), s);
  }
  return transfer.exists();
}

Instruction Finalizer::instruction(Instruction::Kind kind, TransferId transfer) {
  const Transfer& of = emitter_.program().transfers[transfer];
  return {.kind = kind,
          .op = &op_of(transition_of(of.collective)),
          .name = of.name,
          .phase = graph::Phase::backward_weight,
          .transfer = transfer,
          .call = emitter_.program().call_rows.size() - 1};
}

void Finalizer::finish(StepId end) {
  while (!under_way_.empty()) {
    UnderWay first = std::move(under_way_.front());
    under_way_.pop_front();
    for (const TransferId transfer : first.transfers) {
      emitter_.append(instruction(Instruction::Kind::wait, transfer), end);
    }
    bool goes_on = first.hook && go_on(first, end);
    if (!goes_on && first.step + 1 < first.bucket->steps.size()) {
      ++first.step;
      begin_step(first, end);
      goes_on = true;
    }
    if (goes_on) {
      under_way_.push_back(std::move(first));
    } else {
      round_masters(*first.bucket, end);
    }
  }
}

/// Writes the bf16 parameters from the master weights that the bucket has finalized.
void Finalizer::round_masters(const Bucket& bucket, StepId s) {
  for (const graph::StateId master : bucket.states) {
    const graph::StateId parameter = settings_.graph.states[master].of_parameter;
    if (parameter.exists() && settings_.graph.states[parameter].master == master) {
      const graph::State& state = settings_.graph.states[parameter];
      emitter_.append({.kind = Instruction::Kind::compute,
                       .op = &graph::find_op("cast"),
                       .name = "cast/" + settings_.graph.states[master].name,
                       .attributes = {{"dtype", graph::to_string(state.type.dtype)}},
                       .inputs = {buffer_of(master)},
                       .outputs = {buffer_of(parameter)},
                       .phase = graph::Phase::update,
                       .layer = state.layer},
                      s);
    }
  }
}

}  // namespace shardrun::partition
