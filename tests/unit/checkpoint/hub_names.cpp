// How a model's states are put together from the tensors of a folder, and the other way round.

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "core/checkpoint/hub_folder.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace shardrun;
using namespace shardrun::checkpoint;
using namespace shardrun::test;
using Catch::Matchers::Contains;
using sdk::TensorName;

namespace {

using Floats = std::vector<float>;
using Values = std::vector<std::pair<TensorInfo, Floats>>;

TensorSource source_of(const Values& values) {
  TensorSource source;
  source.path = "model.safetensors";
  for (const auto& [info, numbers] : values) {
    source.tensors.push_back(info);
  }
  source.read = [values](std::size_t tensor, std::int64_t first, std::span<std::byte> to) {
    std::memcpy(to.data(), values[tensor].second.data() + first, to.size());
  };
  return source;
}

Floats floats_of(const TensorSource& source, const char* name) {
  const std::size_t tensor = source.index_of(name);
  const std::vector<std::int64_t>& shape = source.tensors[tensor].shape;
  Floats values(std::accumulate(shape.begin(), shape.end(), std::size_t{1}, [](std::size_t count, std::int64_t size) {
    return count * static_cast<std::size_t>(size);
  }));
  source.read(tensor, 0, std::as_writable_bytes(std::span(values)));
  return values;
}

Floats counted(float first, std::size_t count) {
  Floats values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

/// A model with these parameters, whose tensors a folder calls by `names`.
workload::Model model_of(const std::vector<TensorInfo>& parameters, std::vector<TensorName> names) {
  workload::Model model;
  model.name = "m";
  model.takes_data = false;
  model.architectures = {"M"};
  model.declare = [parameters](graph::Graph& graph, const workload::ModelSettings&) {
    for (const TensorInfo& parameter : parameters) {
      graph.add_state({.name = parameter.name, .type = {graph::DType::f32, parameter.shape}});
    }
  };
  model.tensor_names = [names](const graph::Graph&, const workload::ModelSettings&) { return names; };
  return model;
}

}  // namespace

TEST_CASE("parts of tensors, and transposed ones, become states, and are written as they were", "[checkpoint]") {
  const workload::Model model = model_of(
      {{"first", DType::f32, {2, 3}},
       {"last", DType::f32, {2, 3}},
       {"turned", DType::f32, {3, 2}},
       {"wide", DType::f32, {2, 3}}},
      {{.state = "first", .name = "base.both", .shape = {4, 3}, .part = {.first = 0, .size = 2}},
       {.state = "last", .name = "base.both", .shape = {4, 3}, .part = {.first = 2, .size = 2}},
       {.state = "turned", .name = "base.turned", .shape = {2, 3}, .transposed = true},
       {.state = "wide", .name = "base.left", .shape = {2, 1}, .state_part = {.dim = 1, .first = 0, .size = 1}},
       {.state = "wide",
        .name = "base.right",
        .shape = {2, 2},
        .transposed = true,
        .state_part = {.dim = 1, .first = 1, .size = 2}}});
  const std::string before = GENERATE("base.", "");  // a folder without the model's head leaves out the first word
  const TensorSource folder = source_of({{{before + "both", DType::f32, {4, 3}}, counted(0, 12)},
                                         {{before + "left", DType::f32, {2, 1}}, {20, 21}},
                                         {{before + "right", DType::f32, {2, 2}}, {30, 31, 32, 33}},
                                         {{before + "turned", DType::f32, {2, 3}}, counted(40, 6)}});

  const TensorSource states = states_of_hub(folder, model, {});

  CHECK(floats_of(states, "first") == counted(0, 6));
  CHECK(floats_of(states, "last") == counted(6, 6));
  CHECK(floats_of(states, "turned") == Floats{40, 43, 41, 44, 42, 45});
  CHECK(floats_of(states, "wide") == Floats{20, 30, 32, 21, 31, 33});
  const TensorSource again = hub_tensors(states, model, {});
  CHECK(floats_of(again, "base.both") == counted(0, 12));
  CHECK(floats_of(again, "base.left") == Floats{20, 21});
  CHECK(floats_of(again, "base.right") == Floats{30, 31, 32, 33});
  CHECK(floats_of(again, "base.turned") == counted(40, 6));
}

TEST_CASE("names that fill a state twice, or in part, are refused", "[checkpoint]") {
  const TensorSource folder = source_of({{{"a", DType::f32, {2, 3}}, counted(0, 6)}, {{"b", DType::f32, {1}}, {0}}});
  const auto refused = [&](std::vector<TensorName> names) {
    names.push_back({.name = "b"});
    return error_of([&] {
      static_cast<void>(states_of_hub(folder, model_of({{"state", DType::f32, {4, 3}}}, std::move(names)), {}));
    });
  };
  const TensorName half{.state = "state", .name = "a", .shape = {2, 3}, .state_part = {.first = 1, .size = 2}};
  CHECK_THAT(refused({half, half}), Contains("the model gives two names to elements of its parameter state"));
  CHECK_THAT(
      refused({half, {.state = "state", .name = "a", .shape = {2, 3}, .part = {.size = 1}, .state_part = {.size = 1}}}),
      Contains("the model gives names to 9 of the 12 elements of its parameter state"));
}
