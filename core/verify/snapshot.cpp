#include "core/verify/snapshot.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "core/base/error.h"
#include "core/checkpoint/contents.h"
#include "core/checkpoint/rank_file.h"
#include "core/checkpoint/safetensors.h"
#include "core/device/elements.h"
#include "core/device/host_tensor.h"
#include "core/files/atomic_file.h"
#include "core/workload/program.h"

namespace shardrun::verify {
namespace {

std::vector<double> widen(graph::DType dtype, std::span<const std::byte> bytes) {
  std::vector<double> values(bytes.size() / graph::element_bytes(dtype));
  device::read_elements(dtype, bytes, values);
  return values;
}

/// Reads a part that was stored in the state's type or, by the reference device, in float64.
Part read_part(const checkpoint::SafetensorsFile& file, const graph::State& state) {
  const checkpoint::Tensor& tensor = file.at(state.name);
  const std::vector<std::int64_t>& global = state.type.shape;
  const checkpoint::DType stored = checkpoint::stored_type(state.type.dtype);
  if (tensor.info.dtype == stored || tensor.info.dtype == checkpoint::DType::f64) {
    if (auto box = checkpoint::place_in(file.metadata(), tensor.info, global)) {
      std::vector<std::byte> bytes(tensor.bytes.size());
      file.read(tensor, 0, bytes);
      return {.box = std::move(*box), .values = widen(checkpoint::loaded_type(tensor.info.dtype), bytes)};
    }
  }
  const auto place = file.metadata().find(checkpoint::place_key(state.name));
  throw Error(
      ErrorCode::data,
      fmt::format("'{}': {} should be a part of an F32 or F64 tensor [{}]; found {} [{}] at '{}': the ranks did not "
                  "run this job",
                  file.path().string(), state.name, fmt::join(global, ", "), checkpoint::to_string(tensor.info.dtype),
                  fmt::join(tensor.info.shape, ", "), place == file.metadata().end() ? "" : place->second));
}

}  // namespace

const char* to_string(Moment moment) noexcept {
  switch (moment) {
    case Moment::begin: return "begin";
    case Moment::gradients: return "gradients";
    case Moment::end: return "end";
    case Moment::evaluation: return "evaluation";
  }
  return "";
}

bool belongs_to(graph::StateKind kind, Moment moment) noexcept {
  const bool lasts =
      kind == graph::StateKind::parameter || kind == graph::StateKind::optimizer || kind == graph::StateKind::field;
  switch (moment) {
    case Moment::begin: return lasts;
    case Moment::gradients: return kind == graph::StateKind::gradient || kind == graph::StateKind::metric;
    case Moment::end: return lasts || kind == graph::StateKind::metric || kind == graph::StateKind::output;
    case Moment::evaluation: return kind == graph::StateKind::metric;
  }
  return false;
}

Snapshot take_snapshot(const graph::Graph& graph, const runtime::Executor& executor, Moment moment) {
  Snapshot snapshot;
  snapshot.parts.resize(graph.states.size());
  for (const graph::StateId id : graph.states.ids()) {
    if (belongs_to(graph.states[id].kind, moment)) {
      const device::HostTensor part(executor.queue(), executor.state(id), device::Access::read);
      snapshot.parts[id] = Part{.box = executor.part(id), .values = widen(part.view().dtype, part.bytes())};
    }
  }
  return snapshot;
}

std::filesystem::path snapshot_path(const std::filesystem::path& folder, std::int64_t step, Moment moment,
                                    std::int64_t rank) {
  return folder / fmt::format("step-{}.{}.rank-{}.safetensors", step, to_string(moment), rank);
}

void write_snapshot(const std::filesystem::path& folder, std::int64_t step, Moment moment, std::int64_t rank,
                    const graph::Graph& graph, const runtime::Executor& executor, const PlaceOf& place_of) {
  std::vector<checkpoint::FilePart> parts;
  for (const graph::StateId id : graph.states.ids()) {
    const graph::State& state = graph.states[id];
    if (belongs_to(state.kind, moment)) {
      auto [box, whole] = place_of ? place_of(id) : std::pair(executor.part(id), state.type.shape);
      parts.push_back({.name = state.name,
                       .dtype = checkpoint::stored_type(executor.state(id).dtype),
                       .whole = std::move(whole),
                       .box = std::move(box),
                       .state = id});
    }
  }
  files::AtomicFile file(snapshot_path(folder, step, moment, rank));
  checkpoint::RankFile(parts).stream(executor, [&](std::span<const std::byte> bytes) { file.write(bytes); });
  file.commit();
}

void write_predictions(const std::filesystem::path& folder, std::int64_t step, std::int64_t rank,
                       const runtime::Executor& executor, std::size_t program, const std::string& name) {
  std::vector<checkpoint::Tensor> tensors;
  checkpoint::Metadata metadata;
  std::optional<device::HostTensor> outputs;
  if (rank == 0) {
    outputs.emplace(executor.queue(), executor.output(program, std::string(workload::forward_output)),
                    device::Access::read);
    const device::TensorView& view = outputs->view();
    const std::vector<std::int64_t> shape(view.shape.begin(), view.shape.begin() + view.rank);
    tensors.push_back({.info = {name, checkpoint::stored_type(view.dtype), shape}, .bytes = outputs->bytes()});
    metadata[checkpoint::place_key(name)] =
        checkpoint::place_text({.origin = std::vector<std::int64_t>(shape.size(), 0), .shape = shape}, shape);
  }
  checkpoint::write_safetensors(snapshot_path(folder, step, Moment::end, rank), tensors, metadata);
}

Snapshot read_snapshot(const std::filesystem::path& folder, std::int64_t step, Moment moment, std::int64_t rank,
                       const graph::Graph& graph) {
  const checkpoint::SafetensorsFile file(snapshot_path(folder, step, moment, rank));
  Snapshot snapshot;
  snapshot.parts.resize(graph.states.size());
  for (const graph::StateId id : graph.states.ids()) {
    if (belongs_to(graph.states[id].kind, moment) && file.find(graph.states[id].name) != nullptr) {
      snapshot.parts[id] = read_part(file, graph.states[id]);
    }
  }
  return snapshot;
}

}  // namespace shardrun::verify
