#include "core/partition/lowering.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/partition/copies.h"
#include "core/partition/hooks.h"
#include "core/partition/parts.h"

namespace shardrun::partition {
namespace {

/// One region that covers all of these states. Throws Error{internal} if they are not contiguous.
Region region_of(const std::vector<graph::StateId>& states, const IdVector<graph::StateId, Buffer>& buffers) {
  const Buffer& first = buffers[states.front()];
  Region region{.buffer = buffer_of(states.front())};
  std::uint64_t end = first.offset;
  for (const graph::StateId id : states) {
    const Buffer& state = buffers[id];
    if (state.offset != end) {
      throw Error(ErrorCode::internal,
                  fmt::format("{} is at byte {} of the arena, but its bucket, which begins with {}, goes on at {}",
                              state.name, state.offset, first.name, end));
    }
    end += state.bytes;
    region.elements += graph::element_count(state.type);
  }
  return region;
}

Collective collective_of(plan::HookStep::Kind kind) {
  switch (kind) {
    case plan::HookStep::Kind::all_gather: return Collective::all_gather;
    case plan::HookStep::Kind::reduce_scatter: return Collective::reduce_scatter;
    case plan::HookStep::Kind::all_to_all: return Collective::all_to_all;
    default: return Collective::all_reduce;
  }
}

/// The number of rows on the ranks that have the coordinate of `at` along `axis`. `axes`: the mesh axes that split the
/// rows; ranks whose coordinates along them differ have different rows.
std::int64_t rows_at(const std::vector<mesh::AxisId>& axes, std::int64_t rows, mesh::AxisId axis,
                     const Partition& partition, mesh::Coordinates at) {
  const mesh::Mesh& mesh = partition.placements.mesh;
  std::int64_t found = 0;
  for (const mesh::AxisId each : axes) {
    at[each] = each == axis ? at[each] : 0;
  }
  for (bool more = true; more;) {
    found += mesh::shard_of(rows, axes, mesh, at).size();
    more = false;
    for (std::size_t a = 0; a < axes.size() && !more; ++a) {
      std::int64_t& coordinate = at[axes[a]];
      if (axes[a] != axis) {
        coordinate = (coordinate + 1) % mesh.size(axes[a]);
        more = coordinate != 0;
      }
    }
  }
  return found;
}

/// Counts the samples of a step: those of all ranks, and those of the ranks with this rank's coordinate along `axis`,
/// whose gradients are already summed when the hook is called.
HookSamples samples_of(const Partition& partition, mesh::AxisId axis, const mesh::Coordinates& at) {
  HookSamples samples;
  for (const std::int64_t rows : partition.microbatch_rows) {
    const mesh::Placement batch =
        partition.placements.by_axes({.dtype = graph::DType::f32, .shape = {rows}, .axes = {"batch"}});
    samples.all += static_cast<std::uint64_t>(rows);
    samples.own += static_cast<std::uint64_t>(rows_at(batch.dims[0], rows, axis, partition, at));
  }
  return samples;
}

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

HookSteps::HookSteps(const Bucket& bucket, const LowerSettings& settings, const mesh::Coordinates& at, Emitter& emitter,
                     Span span)
    : hook_(*hook_of(settings.graph.states[bucket.states.front()].kind, settings.partition.placements)),
      of_rank_(bucket.hook),
      emitter_(emitter),
      span_(span),
      members_(settings.partition.placements.mesh.size(hook_.axis)),
      member_(static_cast<std::uint32_t>(at[hook_.axis])),
      name_(fmt::format("{}/{}", to_string(hook_.kind), settings.states[bucket.states.front()].name)) {
  if (!of_rank_) {
    return;
  }
  const auto add_region = [&](const std::vector<graph::StateId>& states) {
    regions_.push_back(region_of(states, settings.states));
    dtypes_.push_back(settings.states[states.front()].type.dtype);
    rounded_.push_back(settings.states[states.front()].rounded);
  };
  add_region(bucket.states);
  for (const std::vector<graph::StateId>& states : hook_states_of(bucket.states, hook_, settings.graph)) {
    add_region(states);
  }
  samples_ = samples_of(settings.partition, hook_.axis, at);
  for (const plan::HookBuffer& buffer : of_rank_->plan.buffers) {
    const graph::DType dtype = buffer.whole_numbers ? graph::DType::i32 : graph::DType::f32;
    const auto size = static_cast<std::int64_t>(buffer.elements);
    regions_.push_back(
        {emitter_.add_staging(fmt::format("{}/buffer {}", name_, regions_.size()), dtype, size, span), size});
    dtypes_.push_back(dtype);
    rounded_.push_back(dtype);
  }
}

TransferId HookSteps::go_on(StepId step) {
  for (; of_rank_ && next_ < of_rank_->plan.steps.size(); ++next_) {
    const plan::HookStep& now = of_rank_->plan.steps[next_];
    std::optional<HookCopy> copy;
    if (now.kind != plan::HookStep::Kind::call) {
      if (members_ > 1) {
        ++next_;
        return emitter_.add_transfer(transfer_of(now), span_);
      }
      if (now.send == now.receive) {
        continue;
      }
      copy = {.from = now.send, .to = now.receive};
    }
    emitter_.append({.kind = Instruction::Kind::hook,
                     .op = &op_of(Transition::Kind::hook),
                     .name = name_,
                     .phase = graph::Phase::update,
                     .hook = HookCall{.group = of_rank_->group,
                                      .call = now.call,
                                      .copy = copy,
                                      .member = member_,
                                      .samples = samples_,
                                      .buffers = regions_}},
                    step);
  }
  return {};
}

Transfer HookSteps::transfer_of(const plan::HookStep& step) const {
  Transfer transfer{.name = name_,
                    .collective = collective_of(step.kind),
                    .axis = hook_.axis,
                    .dtype = dtypes_[step.send],
                    .rounded = rounded_[step.send],
                    .send = regions_[step.send],
                    .recv = regions_[step.receive],
                    .hook = hook_.kind};
  const std::int64_t sent = transfer.send.elements;
  const std::int64_t received = transfer.recv.elements;
  const auto blocks = [&](std::int64_t elements) {
    return std::vector<std::int64_t>(static_cast<std::size_t>(members_), elements);
  };
  switch (step.kind) {
    case plan::HookStep::Kind::all_gather: transfer.recv_counts = blocks(sent); break;
    case plan::HookStep::Kind::reduce_scatter: transfer.recv_counts = blocks(received); break;
    case plan::HookStep::Kind::all_to_all:
      transfer.send_counts = blocks(sent / members_);
      transfer.recv_counts = blocks(received / members_);
      break;
    default: break;
  }
  return transfer;
}

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
