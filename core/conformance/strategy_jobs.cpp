#include "core/conformance/strategy_jobs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "core/base/error.h"

namespace shardrun::conformance {
namespace {

using sdk::Graph;
using sdk::MeshAxis;

constexpr std::int64_t batch = 10;  // not divisible by most numbers of ranks, so that splits are uneven
constexpr std::int64_t layers = 3;

std::uint64_t bytes_of(const std::vector<std::int64_t>& shape) {
  std::uint64_t bytes = 4;
  for (const std::int64_t size : shape) {
    bytes *= static_cast<std::uint64_t>(size);
  }
  return bytes;
}

void add_tensor(Graph& graph, const std::string& name, std::vector<std::int64_t> shape, std::vector<std::string> axes,
                std::int32_t layer, std::uint32_t kind = SR_TENSOR_PARAMETER) {
  const std::uint64_t bytes = bytes_of(shape);
  if (layer >= 0) {
    graph.layers[static_cast<std::size_t>(layer)].parameter_bytes += bytes;
  }
  graph.tensors.push_back({kind, name, std::move(shape), std::move(axes), bytes, layer, 0});
}

void add_cut_point(Graph& graph, const std::string& name, std::vector<std::int64_t> shape,
                   std::vector<std::string> axes, std::int32_t layer) {
  const std::uint64_t bytes = bytes_of(shape);
  graph.cut_points.push_back({name, std::move(shape), std::move(axes), bytes, layer});
}

Graph gpt() {
  constexpr std::int64_t heads = 4, head_dim = 8, embed = 32, mlp = 128, seq = 16, vocab = 65;
  Graph graph;
  graph.axes = {{"batch", batch}, {"embed", embed}, {"head_dim", head_dim}, {"heads", heads},
                {"mlp", mlp},     {"qkv", 3},       {"seq", seq},           {"vocab", vocab}};
  for (std::int64_t i = 0; i < layers; ++i) {
    graph.layers.push_back({fmt::format("layer.{}", i), 0, 4'000'000, 4'000'000, 4'000'000});
  }
  add_tensor(graph, "embedding/tokens", {vocab, embed}, {"vocab", "embed"}, -1);
  add_tensor(graph, "embedding/positions", {seq, embed}, {"seq", "embed"}, -1);
  add_cut_point(graph, "residual", {batch, seq, embed}, {"batch", "seq", "embed"}, -1);
  for (std::int32_t i = 0; i < layers; ++i) {
    const std::string at = fmt::format("layer.{}/", i);
    add_tensor(graph, at + "attention_norm/gain", {embed}, {"embed"}, i);
    add_tensor(graph, at + "attention/qkv/weights", {embed, 3, heads, head_dim}, {"embed", "qkv", "heads", "head_dim"},
               i);
    add_tensor(graph, at + "attention/qkv/bias", {3, heads, head_dim}, {"qkv", "heads", "head_dim"}, i);
    add_tensor(graph, at + "attention/output/weights", {heads, head_dim, embed}, {"heads", "head_dim", "embed"}, i);
    add_tensor(graph, at + "mlp/up/weights", {embed, mlp}, {"embed", "mlp"}, i);
    add_tensor(graph, at + "mlp/down/weights", {mlp, embed}, {"mlp", "embed"}, i);
    add_cut_point(graph, at + "residual", {batch, seq, embed}, {"batch", "seq", "embed"}, i);
  }
  add_tensor(graph, "head/weights", {vocab, embed}, {"vocab", "embed"}, -1);
  graph.tensors.front().tied_set = 1;
  graph.tensors.back().tied_set = 1;
  return graph;
}

Graph mlp() {
  Graph graph;
  graph.axes = {{"batch", batch}, {"features", 12}, {"mlp", 20}, {"outputs", 3}};
  graph.layers = {{"layer.0", 0, 4800, 0, 4800}, {"layer.1", 0, 1200, 1200, 1200}};
  add_tensor(graph, "layer_0/weights", {12, 20}, {"features", "mlp"}, 0);
  add_tensor(graph, "layer_1/weights", {20, 3}, {"mlp", "outputs"}, 1);
  add_cut_point(graph, "layer.0/residual", {batch, 20}, {"batch", "mlp"}, 0);
  add_cut_point(graph, "layer.1/residual", {batch, 3}, {"batch", "outputs"}, 1);
  return graph;
}

Graph field() {
  Graph graph;
  graph.axes = {{"x", 1000}};
  add_tensor(graph, "temperature", {1000}, {"x"}, -1, SR_TENSOR_STATE);
  return graph;
}

Graph program(const std::string& name) {
  if (name == "gpt") {
    return gpt();
  }
  if (name == "mlp") {
    return mlp();
  }
  if (name == "field") {
    return field();
  }
  throw Error(ErrorCode::internal, fmt::format("no program is called '{}'", name));
}

std::vector<std::vector<MeshAxis>> meshes(std::uint32_t ranks) {
  std::vector<std::vector<MeshAxis>> all = {{}, {{"data", ranks}}, {{"lanes", 1}, {"model", ranks}}};
  if (ranks % 2 == 0) {
    all.push_back({{"data", 2}, {"model", ranks / 2}});
  }
  if (ranks % 4 == 0) {
    all.push_back({{"data", ranks / 4}, {"model", 2}, {"pipe", 2}});
  }
  return all;
}

std::string text_of(const std::vector<MeshAxis>& mesh) {
  std::vector<std::string> sizes;
  for (const MeshAxis& axis : mesh) {
    sizes.push_back(fmt::format("{} = {}", axis.name, axis.size));
  }
  return mesh.empty() ? "no [mesh]" : fmt::format("[mesh] {}", fmt::join(sizes, ", "));
}

}  // namespace

const std::vector<std::string>& program_names() {
  static const std::vector<std::string> names = {"gpt", "mlp", "field"};
  return names;
}

const std::vector<std::uint32_t>& rank_counts() {
  static const std::vector<std::uint32_t> counts = {1, 2, 3, 4, 8};
  return counts;
}

std::vector<StrategyJob> jobs_of(const std::string& name, std::uint32_t ranks) {
  std::vector<StrategyJob> jobs;
  for (const std::vector<MeshAxis>& mesh : meshes(ranks)) {
    StrategyJob& job = jobs.emplace_back(StrategyJob{text_of(mesh), {.graph = program(name)}});
    job.request.job.ranks = ranks;
    job.request.job.mesh = mesh;
  }
  return jobs;
}

}  // namespace shardrun::conformance
