#include "core/partition/hook_steps.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/partition/hooks.h"

namespace shardrun::partition {
namespace {

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

}  // namespace

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

}  // namespace shardrun::partition
