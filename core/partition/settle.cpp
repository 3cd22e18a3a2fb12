#include "core/partition/settle.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/partition/copies.h"
#include "core/partition/parts.h"

namespace shardrun::partition {
namespace {

std::size_t index(std::int32_t id) noexcept { return static_cast<std::size_t>(id); }

/// All states of a bucket as one.
Region region_of(const Bucket& bucket, const std::vector<Buffer>& states) {
  const Buffer& first = states[index(bucket.states.front())];
  Region region{.buffer = bucket.states.front()};
  std::uint64_t end = first.offset;
  for (const graph::StateId id : bucket.states) {
    const Buffer& state = states[index(id)];
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

class StateTransfer {
 public:
  StateTransfer(graph::StateId state, const LowerSettings& settings, const mesh::Coordinates& at)
      : state_(state),
        buffer_(settings.states[index(state)]),
        settlement_(settings.partition.sharded.settlements[index(state)]),
        mesh_(settings.partition.placements.mesh),
        stored_(settings.partition.placements.states[index(state)]),
        at_(at) {}

  [[nodiscard]] Transfer of(std::size_t step) const {
    const Transition& transition = settlement_.steps[step];
    const mesh::Placement from = placement_before(step);
    const mesh::Placement to = placement_before(step + 1);
    const Parts parts = parts_of(transition, buffer_.global, from, to, mesh_, at_);
    return {.name = buffer_.name,
            .collective = parts.collective,
            .axis = transition.axis,
            .reduction = transition.reduction,
            .dtype = buffer_.type.dtype,
            .send = region(from),
            .recv = region(to),
            .send_counts = counts(parts.sent),
            .recv_counts = counts(parts.received)};
  }

 private:
  [[nodiscard]] mesh::Placement placement_before(std::size_t step) const {
    mesh::Placement placement = stored_;
    for (std::size_t s = 0; s < step; ++s) {
      if (settlement_.steps[s].kind == Transition::Kind::reduce_scatter) {
        placement.dims[settlement_.steps[s].dim].push_back(settlement_.steps[s].axis);
      }
    }
    return placement;
  }

  [[nodiscard]] Region region(const mesh::Placement& placement) const {
    const mesh::Box part = mesh::box_of(buffer_.global, placement, mesh_, at_);
    return {.buffer = state_,
            .elements = part.elements(),
            .first = index_in({.origin = buffer_.origin, .shape = buffer_.type.shape}, part)};
  }

  graph::StateId state_;
  const Buffer& buffer_;
  const Settlement& settlement_;
  const mesh::Mesh& mesh_;
  const mesh::Placement& stored_;
  const mesh::Coordinates& at_;
};

}  // namespace

std::vector<Transfer> settling_transfers(const Bucket& bucket, std::size_t step, const LowerSettings& settings,
                                         const mesh::Coordinates& at) {
  const Transition& first = settings.partition.sharded.settlements[index(bucket.states.front())].steps.front();
  if (first.kind == Transition::Kind::all_reduce) {
    const Transition& now = settings.partition.sharded.settlements[index(bucket.states.front())].steps[step];
    const Region region = region_of(bucket, settings.states);
    return {{.name = settings.states[index(bucket.states.front())].name,
             .collective = Collective::all_reduce,
             .axis = now.axis,
             .reduction = now.reduction,
             .send = region,
             .recv = region}};
  }
  std::vector<Transfer> transfers;
  for (const graph::StateId state : bucket.states) {
    transfers.push_back(StateTransfer(state, settings, at).of(step));
  }
  return transfers;
}

}  // namespace shardrun::partition
