#include "core/checkpoint/contents.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "core/base/error.h"
#include "core/mesh/rows.h"

namespace shardrun::checkpoint {
namespace {

constexpr std::array<std::pair<graph::DType, DType>, 8> types = {{
    {graph::DType::f32, DType::f32},
    {graph::DType::bf16, DType::bf16},
    {graph::DType::f16, DType::f16},
    {graph::DType::f64, DType::f64},
    {graph::DType::i32, DType::i32},
    {graph::DType::i64, DType::i64},
    {graph::DType::u8, DType::u8},
    {graph::DType::i8, DType::i8},
}};

/// Ranks that hold the same part divide its writing only into pieces of at least this many bytes.
constexpr std::uint64_t least_share = std::uint64_t{64} << 10U;

bool is_master(const graph::Graph& graph, graph::StateId state) {
  const graph::StateId parameter = graph.states[state].of_parameter;
  return parameter.exists() && graph.states[parameter].master == state;
}

/// A box with consecutive elements of a part, in coordinates of the whole tensor.
mesh::Box slice_of(const mesh::Box& part, const mesh::Interval& elements) {
  mesh::Box box = part;
  if (elements.size() != part.elements()) {
    const std::int64_t before = part.run ? part.run->begin : 0;
    box.run = {before + elements.begin, before + elements.end};
  }
  return box;
}

/// A key that identifies a box, and by which boxes are sorted.
std::vector<std::int64_t> key_of(const mesh::Box& box) {
  std::vector<std::int64_t> key = box.origin;
  key.insert(key.end(), box.shape.begin(), box.shape.end());
  if (box.run) {
    key.insert(key.end(), {box.run->begin, box.run->end});
  }
  return key;
}

/// The boxes of a state that the rank at `at` writes, each with the index of its first element in that rank's memory of
/// the state. Elements that other ranks write are left out.
std::vector<std::pair<mesh::Box, std::int64_t>> own_boxes(const std::vector<std::int64_t>& shape,
                                                          const mesh::Placement& placement, const mesh::Mesh& mesh,
                                                          const mesh::Coordinates& at) {
  const mesh::Box held = mesh::box_of(shape, placement, mesh, at);
  const mesh::Box own = mesh::box_of(shape, placement.own(), mesh, at);
  if (own == held) {
    return {{own, 0}};
  }
  std::vector<std::pair<mesh::Box, std::int64_t>> boxes;
  for (const mesh::SharedRow& row : mesh::shared_rows(mesh::rows_of(shape, held), mesh::rows_of(shape, own))) {
    boxes.emplace_back(slice_of(own, {row.in_second, row.in_second + row.count}), row.in_first);
  }
  return boxes;
}

/// Adds the tensors of a state to `all`. A state that varies between ranks has several, each with its own name.
void add_held(const graph::Graph& graph, const partition::Partition& partition, const device::Device& device,
              graph::StateId id, TensorRole role, std::vector<HeldTensor>& all) {
  const graph::StateId values = graph.master_of(id);
  const graph::State& state = graph.states[values];
  const mesh::Placement& placement = partition.placements.states[values];
  const mesh::Mesh& mesh = partition.placements.mesh;
  std::map<std::string, std::size_t> tensors;
  std::map<std::pair<std::size_t, std::vector<std::int64_t>>, HeldTensor::Part> holders;
  for (std::int64_t rank = 0; rank < mesh.ranks(); ++rank) {
    const mesh::Coordinates at = mesh::coordinates_of(mesh, rank);
    if (partition.stage_at(at) != partition.stages.states.owner[values]) {
      continue;
    }
    const std::string name = stored_name(graph.states[id], placement, mesh, at);
    const auto [tensor, is_new] = tensors.emplace(name, all.size());
    if (is_new) {
      all.push_back({{{name, role, stored_type(device.stored(state.type.dtype)), state.type.shape, {}}, values}, {}});
    }
    for (auto& [box, first] : own_boxes(state.type.shape, placement, mesh, at)) {
      HeldTensor::Part& part = holders[{tensor->second, key_of(box)}];
      part.box = std::move(box);
      part.first = first;
      part.ranks.push_back(static_cast<std::size_t>(rank));
    }
  }
  for (auto& [key, part] : holders) {
    all[key.first].parts.push_back(std::move(part));
  }
}

/// Assigns pieces of tensors to ranks, one tensor after the other.
class Assignment {
 public:
  explicit Assignment(std::int64_t ranks) : bytes_(static_cast<std::size_t>(ranks)) {
    contents_.of_ranks.resize(bytes_.size());
  }

  void add(HeldTensor held) {
    contents_.tensors.push_back(std::move(held.saved));
    for (const HeldTensor::Part& part : held.parts) {
      divide(part);
    }
  }

  Contents take() { return std::move(contents_); }

 private:
  /// Divides a part of the last tensor into equal shares for ranks that hold it. Takes as many ranks as possible
  /// without shares below least_share, but at least one. Ranks with the fewest bytes to write so far are preferred.
  void divide(const HeldTensor::Part& part) {
    std::vector<std::size_t> ranks = part.ranks;
    const std::int64_t elements = part.box.elements();
    const std::uint64_t bytes =
        static_cast<std::uint64_t>(elements) * element_bytes(contents_.tensors.back().tensor.dtype);
    const std::size_t shares = std::clamp<std::size_t>(bytes / least_share, 1, ranks.size());
    std::ranges::stable_sort(ranks, {}, [&](std::size_t rank) { return bytes_[rank]; });
    ranks.resize(shares);
    std::ranges::sort(ranks);
    for (std::size_t i = 0; i < shares; ++i) {
      give(ranks[i], part,
           mesh::part_of({0, elements}, static_cast<std::int64_t>(shares), static_cast<std::int64_t>(i)));
    }
  }

  void give(std::size_t rank, const HeldTensor::Part& part, const mesh::Interval& elements) {
    if (elements.size() > 0) {
      const std::size_t tensor = contents_.tensors.size() - 1;
      contents_.of_ranks[rank].push_back(
          {tensor, {part.first + elements.begin, part.first + elements.end}, slice_of(part.box, elements)});
      bytes_[rank] +=
          static_cast<std::uint64_t>(elements.size()) * element_bytes(contents_.tensors[tensor].tensor.dtype);
    }
  }

  Contents contents_;
  std::vector<std::uint64_t> bytes_;  ///< bytes to write, per rank
};

}  // namespace

std::vector<HeldTensor> held_tensors(const graph::Graph& graph, const partition::Partition& partition,
                                     const device::Device& device) {
  std::vector<HeldTensor> all;
  for (const graph::StateId id : graph.states.ids()) {
    if (const std::optional<TensorRole> role = role_of(graph, id)) {
      add_held(graph, partition, device, id, *role, all);
    }
  }
  return all;
}

Contents contents_of(std::vector<HeldTensor> tensors, std::int64_t ranks) {
  Assignment assignment(ranks);
  for (HeldTensor& held : tensors) {
    assignment.add(std::move(held));
  }
  return assignment.take();
}

std::string stored_name(const graph::State& state, const mesh::Placement& placement, const mesh::Mesh& mesh,
                        const mesh::Coordinates& at) {
  std::string name = state.name;
  for (const mesh::AxisId axis : placement.varying) {
    name += fmt::format("@{}={}", mesh.axes[axis].name, at[axis]);
  }
  return name;
}

std::optional<TensorRole> role_of(const graph::Graph& graph, graph::StateId state) {
  switch (graph.states[state].kind) {
    case graph::StateKind::parameter: return TensorRole::parameter;
    case graph::StateKind::field: return TensorRole::field;
    case graph::StateKind::hook_state: return TensorRole::hook;
    case graph::StateKind::optimizer:
      return is_master(graph, state) ? std::nullopt : std::optional(TensorRole::optimizer);
    default: return std::nullopt;
  }
}

DType stored_type(graph::DType dtype) {
  return std::ranges::find(types, dtype, &decltype(types)::value_type::first)->second;
}

graph::DType loaded_type(DType dtype) {
  const auto found = std::ranges::find(types, dtype, &decltype(types)::value_type::second);
  if (found == types.end()) {
    throw Error(ErrorCode::data, fmt::format("no tensor of a job has elements of type {}", to_string(dtype)));
  }
  return found->first;
}

}  // namespace shardrun::checkpoint
