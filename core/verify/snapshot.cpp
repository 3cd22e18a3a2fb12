#include "core/verify/snapshot.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/base/error.h"
#include "core/checkpoint/safetensors.h"
#include "core/device/elements.h"
#include "core/device/host_tensor.h"

namespace shardrun::verify {
namespace {

std::vector<double> widen(graph::DType dtype, std::span<const std::byte> bytes) {
  std::vector<double> values(bytes.size() / graph::element_bytes(dtype));
  device::read_elements(dtype, bytes, values);
  return values;
}

/// "4,0 of 8,16"; of a run of the elements of a box "4,0 of 8,16, elements 5:12 of 4,16".
std::string place_text(const mesh::Box& box, const std::vector<std::int64_t>& global) {
  const std::string run =
      box.run ? fmt::format(", elements {}:{} of {}", box.run->begin, box.run->end, fmt::join(box.shape, ",")) : "";
  return fmt::format("{} of {}{}", fmt::join(box.origin, ","), fmt::join(global, ","), run);
}

/// Parses a part's place. Nothing if it is of another whole, is not within it, or has another shape than the stored
/// tensor.
std::optional<mesh::Box> parse_place(const std::string& text, const std::vector<std::int64_t>& stored,
                                     const std::vector<std::int64_t>& global) {
  std::vector<std::int64_t> numbers;
  for (const char* at = text.c_str(); *at != '\0';) {
    char* end = nullptr;
    const std::int64_t number = std::strtoll(at, &end, 10);
    if (end != at) {
      numbers.push_back(number);
    }
    at = end == at ? at + 1 : end;
  }
  const std::size_t dims = global.size();
  const bool is_run = numbers.size() == 3 * dims + 2;
  if (!is_run && (numbers.size() != 2 * dims || stored.size() != dims)) {
    return std::nullopt;
  }
  const auto first = numbers.begin();
  const auto count = static_cast<std::ptrdiff_t>(dims);
  mesh::Box box{{first, first + count}, stored};
  if (is_run) {
    box.shape = {first + 2 * count + 2, numbers.end()};
    const mesh::Interval run{numbers[2 * dims], numbers[2 * dims + 1]};
    if (run.begin < 0 || run.end < run.begin || run.end > box.elements()) {
      return std::nullopt;
    }
    box.run = run;
  }
  for (std::size_t d = 0; d < dims; ++d) {
    if (box.origin[d] < 0 || box.shape[d] < 0 || box.origin[d] > global[d] - box.shape[d]) {
      return std::nullopt;
    }
  }
  return text == place_text(box, global) && stored == box.part_shape() ? std::optional(box) : std::nullopt;
}

constexpr std::array<std::pair<graph::DType, checkpoint::DType>, 7> file_types = {{
    {graph::DType::f32, checkpoint::DType::f32},
    {graph::DType::bf16, checkpoint::DType::bf16},
    {graph::DType::f16, checkpoint::DType::f16},
    {graph::DType::f64, checkpoint::DType::f64},
    {graph::DType::i32, checkpoint::DType::i32},
    {graph::DType::i64, checkpoint::DType::i64},
    {graph::DType::u8, checkpoint::DType::u8},
}};

/// Reads a part that was stored in the state's type, or in float64 by the reference device.
Part read_part(const checkpoint::SafetensorsFile& file, const graph::State& state) {
  const checkpoint::Tensor& tensor = file.at(state.name);
  const auto type = std::ranges::find(file_types, tensor.info.dtype, &decltype(file_types)::value_type::second);
  const bool is_stored =
      type != file_types.end() && (type->first == state.type.dtype || type->first == graph::DType::f64);
  const auto place = file.metadata().find(state.name);
  const std::vector<std::int64_t>& global = state.type.shape;
  if (is_stored && place != file.metadata().end()) {
    if (auto box = parse_place(place->second, tensor.info.shape, global)) {
      std::vector<std::byte> bytes(tensor.bytes.size());
      file.read(tensor, 0, bytes);
      return {.box = std::move(*box), .values = widen(type->first, bytes)};
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
  std::vector<device::HostTensor> parts;  // what `tensors` refer to
  std::vector<checkpoint::Tensor> tensors;
  checkpoint::Metadata places;
  for (const graph::StateId id : graph.states.ids()) {
    const graph::State& state = graph.states[id];
    if (belongs_to(state.kind, moment)) {
      const device::HostTensor& part = parts.emplace_back(executor.queue(), executor.state(id), device::Access::read);
      const auto dtype =
          std::ranges::find(file_types, part.view().dtype, &decltype(file_types)::value_type::first)->second;
      const auto [box, whole] = place_of ? place_of(id) : std::pair(executor.part(id), state.type.shape);
      tensors.push_back({{state.name, dtype, box.part_shape()}, part.bytes()});
      places[state.name] = place_text(box, whole);
    }
  }
  checkpoint::write_safetensors(snapshot_path(folder, step, moment, rank), tensors, places);
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
