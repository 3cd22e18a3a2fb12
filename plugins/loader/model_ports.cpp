#include "plugins/loader/model_ports.h"

#include <fmt/format.h>
#include <shardrun/model.h>

#include <algorithm>
#include <string>
#include <vector>

#include "plugins/loader/call.h"

namespace shardrun::plugins {
namespace {

/// A tensor that a function has to have. A size of 0 may be any.
struct ExpectedPort {
  const char* name;
  graph::DType dtype;
  std::vector<std::int64_t> shape;
};
using ExpectedPorts = std::vector<ExpectedPort>;

bool fits(const graph::TensorType& type, const ExpectedPort& expected) {
  return type.dtype == expected.dtype && type.axes.size() == expected.shape.size() && type.axes[0] == "batch" &&
         std::ranges::equal(type.shape, expected.shape,
                            [](std::int64_t size, std::int64_t wanted) { return wanted == 0 || size == wanted; });
}

bool fit(const graph::Function& function, const std::vector<graph::Port>& ports, const ExpectedPorts& expected) {
  return ports.size() == expected.size() && std::ranges::all_of(expected, [&](const ExpectedPort& each) {
           const auto port = std::ranges::find(ports, each.name, &graph::Port::name);
           return port != ports.end() && fits(function.values[port->value].type, each);
         });
}

std::string text_of(const graph::Function& function, const std::vector<graph::Port>& ports) {
  std::string text;
  for (const graph::Port& port : ports) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", port.name, to_string(function.values[port.value].type));
  }
  return text.empty() ? "none" : text;
}

std::string text_of(const ExpectedPorts& expected) {
  std::string text;
  for (const ExpectedPort& port : expected) {
    text += fmt::format("{}{} {}[batch {}", text.empty() ? "" : ", ", port.name, to_string(port.dtype), port.shape[0]);
    for (std::size_t d = 1; d < port.shape.size(); ++d) {
      text += port.shape[d] == 0 ? ", ..." : fmt::format(", {}", port.shape[d]);
    }
    text += "]";
  }
  return text.empty() ? "none" : text;
}

std::vector<ExpectedPorts> inputs_of_loss(std::uint32_t kinds, const ModelRequest& request, std::int64_t rows) {
  using graph::DType;
  std::vector<ExpectedPorts> found;
  if ((kinds & SR_DATA_TOKENS) != 0) {
    const std::int64_t seq = request.options.has("context") ? request.options.integer("context") : 0;
    found.push_back({{"inputs", DType::i32, {rows, seq}}, {"targets", DType::i32, {rows, seq}}});
  }
  if ((kinds & SR_DATA_ARRAYS) != 0) {
    found.push_back(
        {{"inputs", DType::f32, {rows, request.features}}, {"targets", DType::f32, {rows, request.outputs}}});
  }
  if ((kinds & SR_DATA_LABELS) != 0) {
    found.push_back({{"inputs", DType::f32, {rows, request.features}}, {"targets", DType::i32, {rows}}});
  }
  return found.empty() ? std::vector<ExpectedPorts>{{}} : found;
}

void require_one_of(const graph::Function& function, const char* what, const std::vector<graph::Port>& ports,
                    const std::vector<ExpectedPorts>& expected) {
  if (std::ranges::any_of(expected, [&](const ExpectedPorts& each) { return fit(function, ports, each); })) {
    return;
  }
  std::string text;
  for (const ExpectedPorts& each : expected) {
    text += (text.empty() ? "" : ", or ") + text_of(each);
  }
  refuse_with(fmt::format("the {} of the function '{}' are {}; expected {}", what, function.name,
                          text_of(function, ports), text));
}

}  // namespace

void check_ports(const graph::Function& function, std::string_view name, std::uint32_t kinds,
                 const ModelRequest& request, std::int64_t rows) {
  if (name == "loss") {
    require_one_of(function, "inputs", function.inputs, inputs_of_loss(kinds, request, rows));
  } else if (name == "iterate") {
    require_one_of(function, "inputs", function.inputs, {{}});
  } else if (name == "predict") {
    require_one_of(function, "inputs", function.inputs, {{{"inputs", graph::DType::i32, {1, 0}}}});
    require_one_of(function, "outputs", function.outputs, {{{"logits", graph::DType::f32, {1, 0}}}});
  }
}

}  // namespace shardrun::plugins
