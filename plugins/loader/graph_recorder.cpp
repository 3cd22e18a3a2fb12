#include "plugins/loader/graph_recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/text.h"
#include "plugins/loader/call.h"
#include "plugins/loader/structs.h"

namespace shardrun::plugins {
namespace {

constexpr std::uint32_t most_dimensions = 8;  // a device's tensors have no more
constexpr std::size_t longest_name = 200;

graph::Initializer initializer_from(const sr_state& raw) {
  using Kind = graph::Initializer::Kind;
  const double value = raw.initial_value;
  if (!std::isfinite(static_cast<float>(value))) {
    refuse_with("initial_value is not finite");
  }
  if ((raw.initial == SR_INITIAL_CHANCE && (value < 0 || value > 1)) ||
      (raw.initial == SR_INITIAL_BUMP && value <= 0) || (raw.initial == SR_INITIAL_NORMAL && value < 0)) {
    refuse_with(fmt::format(
        "initial_value is {}; expected 0 to 1 of a chance, more than 0 of a bump, at least 0 of normal draws", value));
  }
  switch (raw.initial) {
    case SR_INITIAL_CONSTANT: return {Kind::constant, raw.initial_value};
    case SR_INITIAL_NORMAL: return {Kind::normal, raw.initial_value};
    case SR_INITIAL_BUMP: return {Kind::gaussian_bump, raw.initial_value};
    case SR_INITIAL_UNIFORM: return {Kind::uniform, raw.initial_value};
    case SR_INITIAL_CHANCE: return {Kind::chance, raw.initial_value};
    case SR_INITIAL_COUNTING: return {Kind::counting, raw.initial_value};
    default: refuse_with(fmt::format("there is no way {} of setting first values", raw.initial));
  }
}

}  // namespace

std::string name_from(const char* text, std::string_view what) {
  const std::string name = text != nullptr ? text : "";
  if (name.empty() || name.size() > longest_name || printable(name) != name) {
    refuse_with(
        fmt::format("{} is '{}', expected 1 to {} printable bytes", what, printable(excerpt(name)), longest_name));
  }
  return name;
}

std::string plain_name_from(const char* text, std::string_view what) {
  std::string name = name_from(text, what);
  const bool is_plain = std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("._-/").find(c) != std::string_view::npos || static_cast<unsigned char>(c) >= 0x80;
  });
  if (!is_plain) {
    refuse_with(fmt::format("{} is '{}', expected letters, digits and . _ - / only", what, name));
  }
  return name;
}

graph::TensorType type_from(const sr_tensor_type* given) {
  const auto raw = read_struct<sr_tensor_type>(given, SR_TENSOR_TYPE_SIZE_1_7, "the type");
  if (raw.element != SR_ELEMENT_F32 && raw.element != SR_ELEMENT_I32) {
    refuse_with(fmt::format("the element type is {}, expected {} (f32) or {} (i32)", raw.element, SR_ELEMENT_F32,
                            SR_ELEMENT_I32));
  }
  if (raw.rank > most_dimensions || (raw.rank > 0 && (raw.shape == nullptr || raw.axes == nullptr))) {
    refuse_with(fmt::format("the type has {} dimensions; expected at most {}, each with its size and axis", raw.rank,
                            most_dimensions));
  }
  graph::TensorType type{
      .dtype = raw.element == SR_ELEMENT_F32 ? graph::DType::f32 : graph::DType::i32, .shape = {}, .axes = {}};
  for (std::uint32_t d = 0; d < raw.rank; ++d) {
    if (raw.shape[d] < 1) {
      refuse_with(fmt::format("dimension {} has size {}, expected at least 1", d, raw.shape[d]));
    }
    type.shape.push_back(raw.shape[d]);
    type.axes.push_back(plain_name_from(raw.axes[d], fmt::format("the axis of dimension {}", d)));
    if (std::ranges::count(type.axes, type.axes.back()) > 1) {
      refuse_with(fmt::format("two dimensions have the axis '{}'", type.axes.back()));
    }
  }
  return type;
}

StateRecorder::StateRecorder(graph::Graph& graph) : graph_(graph) {
  writer_.struct_size = sizeof(writer_);
  writer_.self = this;
  writer_.add_state = [](void* self, const sr_state* state, sr_error* error) {
    return record_in<StateRecorder>(self, error, "add_state", state != nullptr ? state->name : nullptr,
                                    [&](StateRecorder& to) { to.add_state(state); });
  };
  writer_.set_layers = [](void* self, std::uint32_t layers, sr_error* error) {
    return record_in<StateRecorder>(self, error, "set_layers", nullptr,
                                    [&](StateRecorder& to) { to.set_layers(layers); });
  };
}

void StateRecorder::add_state(const sr_state* state) {
  const auto raw = read_struct<sr_state>(state, SR_STATE_SIZE_1_7, "the state");
  if (raw.kind != SR_TENSOR_PARAMETER && raw.kind != SR_TENSOR_STATE && raw.kind != SR_TENSOR_CACHE) {
    refuse_with(fmt::format("there is no kind {}", raw.kind));
  }
  if (raw.layer < -1 || raw.decay > 1) {
    refuse_with(fmt::format("layer is {} and decay {}, expected at least -1, and 0 or 1", raw.layer, raw.decay));
  }
  graph::State added{.name = plain_name_from(raw.name, "the name"),
                     .type = type_from(raw.type),
                     .kind = raw.kind == SR_TENSOR_PARAMETER ? graph::StateKind::parameter
                             : raw.kind == SR_TENSOR_CACHE   ? graph::StateKind::cache
                                                             : graph::StateKind::field,
                     .initializer = initializer_from(raw),
                     .decay = raw.decay == 1,
                     .layer = raw.layer};
  if (graph_.find_state(added.name).exists()) {
    refuse_with("there is a state of that name already");
  }
  if (added.type.dtype != graph::DType::f32) {
    refuse_with("its elements are i32, expected f32: states are real numbers");
  }
  if (added.name == "__metadata__") {
    refuse_with("files of states have that name for themselves");
  }
  graph::require_countable(added.type, added.name);
  graph_.states.push_back(std::move(added));
}

void StateRecorder::set_layers(std::uint32_t layers) {
  constexpr std::uint32_t most = 1U << 20U;
  if (layers > most) {
    refuse_with(fmt::format("{} layers, expected at most {}", layers, most));
  }
  graph_.layers = static_cast<std::int32_t>(layers);
}

}  // namespace shardrun::plugins
