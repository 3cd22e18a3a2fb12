#include "tests/support/cuda/fake_cudnn_engines.h"

#include <algorithm>

namespace shardrun::test::fake_cudnn {
namespace {

/// Whether the graph is the gradient of attention, with sums of dq in memory.
bool adds_to_sums(const Descriptor& graph) {
  return std::ranges::any_of(operations_of(graph), [](const Reference& each) {
    return each->type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR &&
           each->of(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR)
                   ->one<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE) == CUDNN_POINTWISE_IDENTITY;
  });
}

/// The workspace, in bytes, that the real library requests for the gradient of attention. It is for the probabilities
/// of whole tiles in bfloat16 (unless sums of dq are in memory), and the products of all heads,
/// which are added in groups.
std::int64_t workspace_of_gradient(const Descriptor& graph) {
  const auto up_to = [](std::int64_t value, std::int64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
  };
  std::int64_t bytes = 0;
  for (const Reference& operation : operations_of(graph)) {
    if (operation->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR && bytes == 0 && !adds_to_sums(graph)) {
      const Sizes scores = Tensor(*operation->of(CUDNN_ATTR_OPERATION_MATMUL_CDESC)).sizes;
      bytes = scores[0] * scores[1] * up_to(scores[2], 64) * up_to(scores[3], 128) * 2;
    } else if (operation->type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR) {
      const Tensor x(*operation->of(CUDNN_ATTR_OPERATION_REDUCTION_XDESC));
      bytes += x.type == CUDNN_DATA_BFLOAT16 ? static_cast<std::int64_t>(x.bytes()) : 0;
    }
  }
  return bytes;
}

/// The workspace, in bytes, that the real library requests: little for attention; for other operations, copies of
/// tensors in another layout.
std::int64_t workspace_of(const Descriptor& graph) {
  const auto has = [&](DescriptorType type) {
    return std::ranges::any_of(operations_of(graph), [&](const Reference& each) { return each->type == type; });
  };
  if (has(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)) {
    return 256 + (has(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR) ? workspace_of_gradient(graph) : 0);
  }
  std::int64_t bytes = 16;
  for (const auto& [uid, tensor] : tensors_in_memory(graph)) {
    bytes += static_cast<std::int64_t>(tensor.bytes());
  }
  return bytes;
}

const Descriptor& engine_descriptor_of(const Descriptor& plan) {
  return *plan.of(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->of(CUDNN_ATTR_ENGINECFG_ENGINE);
}

}  // namespace

std::span<const Reference> operations_of(const Descriptor& graph) {
  return graph.attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).descriptors;
}

std::map<std::int64_t, Tensor> tensors_in_memory(const Descriptor& graph) {
  std::map<std::int64_t, Tensor> found;
  for (const Reference& operation : operations_of(graph)) {
    const OperationTensors all = tensors_of(*operation);
    for (const auto* const each : {&all.read, &all.made}) {
      for (const Reference& descriptor : *each) {
        const Tensor tensor(*descriptor);
        if (!tensor.is_virtual) {
          found.try_emplace(tensor.uid, tensor);
        }
      }
    }
  }
  return found;
}

std::vector<Engine> engines_of(const Descriptor& graph) {
  bool is_float32 = true;
  for (const auto& [uid, tensor] : tensors_in_memory(graph)) {
    is_float32 = is_float32 && tensor.type != CUDNN_DATA_BFLOAT16;
  }
  const std::vector<cudnnBackendNumericalNote_t> tensor_core = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE};
  std::vector<Engine> engines = {
      {.number = 1, .notes = {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}, .is_reproducible = false},
      {.number = 2, .notes = {}, .workspace = std::int64_t{1} << 40}};
  if (is_float32) {
    engines.push_back({.number = 3,
                       .notes = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS},
                       .dropped_bits = 20});
    engines.push_back({.number = 4, .notes = tensor_core, .dropped_bits = 13});
  }
  engines.push_back({.number = 5, .notes = is_float32 ? std::vector<cudnnBackendNumericalNote_t>{} : tensor_core});
  return engines;
}

Engine engine_of(const Descriptor& descriptor) {
  const std::vector<Engine> engines = engines_of(*descriptor.of(CUDNN_ATTR_ENGINE_OPERATION_GRAPH));
  const auto found =
      std::ranges::find(engines, descriptor.one<std::int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX), &Engine::number);
  require(found != engines.end(), "there is no such engine", CUDNN_STATUS_NOT_SUPPORTED);
  return *found;
}

Plan::Plan(const Descriptor& plan)
    : graph(*engine_descriptor_of(plan).of(CUDNN_ATTR_ENGINE_OPERATION_GRAPH)),
      engine(engine_of(engine_descriptor_of(plan))) {}

std::int64_t Plan::workspace() const { return engine.workspace > 0 ? engine.workspace : workspace_of(graph); }

}  // namespace shardrun::test::fake_cudnn
