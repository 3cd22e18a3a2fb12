#include "core/verify/snapshot.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "core/base/error.h"
#include "core/checkpoint/safetensors.h"

namespace shardrun::verify {
namespace {

std::span<const std::byte> bytes_of(const device::TensorView& view, std::size_t f32_bytes) {
  return {static_cast<const std::byte*>(view.data), static_cast<std::size_t>(view.elements()) * f32_bytes};
}

/// Floats or doubles, which need not be aligned.
std::vector<double> widen(std::span<const std::byte> bytes, std::size_t f32_bytes) {
  std::vector<double> values(bytes.size() / f32_bytes);
  if (f32_bytes == sizeof(double)) {
    if (!bytes.empty()) {
      std::memcpy(values.data(), bytes.data(), bytes.size());
    }
    return values;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    float narrow = 0;
    std::memcpy(&narrow, bytes.data() + i * sizeof(float), sizeof(float));
    values[i] = static_cast<double>(narrow);
  }
  return values;
}

std::vector<std::int64_t> first_of(const std::array<std::int64_t, device::max_rank>& values, std::uint32_t rank) {
  return {values.begin(), values.begin() + rank};
}

/// "4,0 of 8,16"
std::string place_text(const std::vector<std::int64_t>& origin, const std::vector<std::int64_t>& global) {
  return fmt::format("{} of {}", fmt::join(origin, ","), fmt::join(global, ","));
}

/// The origin in such a text, where it is of that whole and the part lies within it.
std::optional<std::vector<std::int64_t>> parse_origin(const std::string& text, const std::vector<std::int64_t>& shape,
                                                      const std::vector<std::int64_t>& global) {
  std::vector<std::int64_t> origin;
  const char* at = text.c_str();
  for (std::size_t d = 0; d < global.size(); ++d) {
    char* end = nullptr;
    origin.push_back(std::strtoll(at, &end, 10));
    at = *end == ',' ? end + 1 : end;
    if (origin[d] < 0 || origin[d] > global[d] - shape[d]) {
      return std::nullopt;
    }
  }
  return text == place_text(origin, global) ? std::optional(origin) : std::nullopt;
}

Part read_part(const checkpoint::SafetensorsFile& file, const graph::State& state) {
  const checkpoint::Tensor& tensor = file.at(state.name);
  const bool wide = tensor.info.dtype == checkpoint::DType::f64;
  const auto place = file.metadata().find(state.name);
  const std::vector<std::int64_t>& global = state.type.shape;
  if ((wide || tensor.info.dtype == checkpoint::DType::f32) && tensor.info.shape.size() == global.size() &&
      place != file.metadata().end()) {
    if (const auto origin = parse_origin(place->second, tensor.info.shape, global)) {
      return {.box = {*origin, tensor.info.shape},
              .values = widen(tensor.bytes, wide ? sizeof(double) : sizeof(float))};
    }
  }
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
    case Moment::end: return lasts || kind == graph::StateKind::metric;
    case Moment::evaluation: return kind == graph::StateKind::metric;
  }
  return false;
}

Snapshot take_snapshot(const graph::Graph& graph, const runtime::Executor& executor, Moment moment) {
  const std::size_t f32_bytes = executor.device().element_bytes(graph::DType::f32);
  Snapshot snapshot;
  snapshot.parts.resize(graph.states.size());
  for (std::size_t s = 0; s < graph.states.size(); ++s) {
    if (belongs_to(graph.states[s].kind, moment)) {
      const device::TensorView view = executor.state(static_cast<graph::StateId>(s));
      snapshot.parts[s] = Part{.box = {first_of(view.origin, view.rank), first_of(view.shape, view.rank)},
                               .values = widen(bytes_of(view, f32_bytes), f32_bytes)};
    }
  }
  return snapshot;
}

std::filesystem::path snapshot_path(const std::filesystem::path& folder, std::int64_t step, Moment moment,
                                    std::int64_t rank) {
  return folder / fmt::format("step-{}.{}.rank-{}.safetensors", step, to_string(moment), rank);
}

void write_snapshot(const std::filesystem::path& folder, std::int64_t step, Moment moment, std::int64_t rank,
                    const graph::Graph& graph, const runtime::Executor& executor) {
  const std::size_t f32_bytes = executor.device().element_bytes(graph::DType::f32);
  const auto dtype = f32_bytes == sizeof(double) ? checkpoint::DType::f64 : checkpoint::DType::f32;
  std::vector<checkpoint::Tensor> tensors;
  checkpoint::Metadata places;
  for (std::size_t s = 0; s < graph.states.size(); ++s) {
    const graph::State& state = graph.states[s];
    if (belongs_to(state.kind, moment)) {
      const device::TensorView view = executor.state(static_cast<graph::StateId>(s));
      tensors.push_back({{state.name, dtype, first_of(view.shape, view.rank)}, bytes_of(view, f32_bytes)});
      places[state.name] = place_text(first_of(view.origin, view.rank), state.type.shape);
    }
  }
  checkpoint::write_safetensors(snapshot_path(folder, step, moment, rank), tensors, places);
}

Snapshot read_snapshot(const std::filesystem::path& folder, std::int64_t step, Moment moment, std::int64_t rank,
                       const graph::Graph& graph) {
  const checkpoint::SafetensorsFile file(snapshot_path(folder, step, moment, rank));
  Snapshot snapshot;
  snapshot.parts.resize(graph.states.size());
  for (std::size_t s = 0; s < graph.states.size(); ++s) {
    if (belongs_to(graph.states[s].kind, moment)) {
      snapshot.parts[s] = read_part(file, graph.states[s]);
    }
  }
  return snapshot;
}

}  // namespace shardrun::verify
