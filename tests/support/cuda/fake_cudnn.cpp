#include "tests/support/cuda/fake_cudnn.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "tests/support/cuda/fake_cublaslt.h"
#include "tests/support/cuda/fake_cudnn_descriptors.h"
#include "tests/support/cuda/fake_cudnn_operations.h"

namespace fake = shardrun::test::fake_cuda;

struct cudnnContext {
  cudaStream_t stream = nullptr;
};

namespace shardrun::test::fake_cudnn {
namespace {

/// What a user holds. Other descriptors keep what they name.
struct Held {
  std::shared_ptr<Descriptor> descriptor;
};

/// An engine of the fake, and what it says about itself.
struct Engine {
  std::int64_t number;
  std::vector<cudnnBackendNumericalNote_t> notes;
  bool is_reproducible = true;
  unsigned dropped_bits = 0;   ///< of operands, to which they are rounded
  std::int64_t workspace = 0;  ///< instead of the graph's
};

std::mutex mutex;
const fake::Lent* lent = nullptr;
fake::CudnnCounts counts;
thread_local std::string last_error;

std::int64_t number_of(const char* variable, std::int64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoll(text, nullptr, 10);
}

/// Does `act()` unless the function is the one that fails.
template <class Act>
cudnnStatus_t with(const char* function, const Act& act) {
  const char* const fails = std::getenv("FAKE_CUDNN_FAIL");
  if (fails != nullptr && std::string(fails) == function) {
    last_error = "FAKE_CUDNN_FAIL";
    return static_cast<cudnnStatus_t>(number_of("FAKE_CUDNN_STATUS", CUDNN_STATUS_EXECUTION_FAILED));
  }
  const std::lock_guard lock(mutex);
  try {
    act();
    return CUDNN_STATUS_SUCCESS;
  } catch (const Refusal& refusal) {
    last_error = refusal.what();
    std::fprintf(stderr, "fake cuDNN: %s: %s\n", function, refusal.what());
    return refusal.status;
  }
}

Descriptor& of(cudnnBackendDescriptor_t descriptor) {
  require(descriptor != nullptr, "a descriptor is null", CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
  return *static_cast<Held*>(descriptor)->descriptor;
}

const Descriptor& finalized(cudnnBackendDescriptor_t descriptor, DescriptorType type) {
  const Descriptor& found = of(descriptor);
  require(found.is_finalized, "a descriptor is not finalized", CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
  require(found.type == type, "a descriptor has another type", CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE);
  return found;
}

std::span<const Reference> operations_of(const Descriptor& graph) {
  return graph.attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).descriptors;
}

/// Tensors of a graph that are in memory, by number.
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

/// As the true library wants for the gradient of attention: the probabilities of whole tiles in bfloat16, and products
/// of all heads that are added up in groups.
std::int64_t workspace_of_gradient(const Descriptor& graph) {
  const auto up_to = [](std::int64_t value, std::int64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
  };
  std::int64_t bytes = 0;
  for (const Reference& operation : operations_of(graph)) {
    if (operation->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR && bytes == 0) {
      const Sizes scores = Tensor(*operation->of(CUDNN_ATTR_OPERATION_MATMUL_CDESC)).sizes;
      bytes = scores[0] * scores[1] * up_to(scores[2], 64) * up_to(scores[3], 128) * 2;
    } else if (operation->type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR) {
      const Tensor x(*operation->of(CUDNN_ATTR_OPERATION_REDUCTION_XDESC));
      bytes += x.type == CUDNN_DATA_BFLOAT16 ? static_cast<std::int64_t>(x.bytes()) : 0;
    }
  }
  return bytes;
}

/// As the true library wants: for attention little, for others copies of tensors of another layout.
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

struct Plan {
  explicit Plan(const Descriptor& plan)
      : engine_descriptor(*plan.of(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->of(CUDNN_ATTR_ENGINECFG_ENGINE)),
        graph(*engine_descriptor.of(CUDNN_ATTR_ENGINE_OPERATION_GRAPH)) {
    const auto number = engine_descriptor.one<std::int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
    for (const Engine& each : engines_of(graph)) {
      if (each.number == number) {
        engine = each;
      }
    }
    require(engine.has_value(), "there is no such engine", CUDNN_STATUS_NOT_SUPPORTED);
  }
  [[nodiscard]] std::int64_t workspace() const {
    return engine->workspace > 0 ? engine->workspace : workspace_of(graph);
  }

  const Descriptor& engine_descriptor;
  const Descriptor& graph;
  std::optional<Engine> engine;
};

template <class Value>
void set_value(Descriptor& descriptor, AttributeName name, AttributeType type, const Value& value) {
  Attribute& to = descriptor.attributes[name];
  to = {.type = type, .count = 1, .bytes = std::vector<std::byte>(sizeof(value)), .descriptors = {}};
  std::memcpy(to.bytes.data(), &value, sizeof(value));
}
void set_value(Descriptor& descriptor, AttributeName name, Reference value) {
  descriptor.attributes[name] = {
      .type = CUDNN_TYPE_BACKEND_DESCRIPTOR, .count = 1, .bytes = {}, .descriptors = {std::move(value)}};
}

/// Gives the user's descriptors other contents.
class Filling {
 public:
  Filling(AttributeType type, std::int64_t asked, std::int64_t* found, void* to)
      : type_(type), asked_(asked), found_(found), to_(to) {}

  void descriptors(const std::vector<std::shared_ptr<Descriptor>>& all, DescriptorType type) const {
    require(type_ == CUDNN_TYPE_BACKEND_DESCRIPTOR, "descriptors are asked for as another type",
            CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
    fill(all.size(), [&](std::size_t i) {
      Held& held = *static_cast<Held*>(static_cast<cudnnBackendDescriptor_t*>(to_)[i]);
      require(held.descriptor->type == type, "another type of descriptors is given",
              CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE);
      held.descriptor = all[i];
    });
  }
  template <class Value>
  void values(const std::vector<Value>& all, AttributeType type) const {
    require(type_ == type, "an attribute is asked for as another type", CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
    fill(all.size(), [&](std::size_t i) { static_cast<Value*>(to_)[i] = all[i]; });
  }

 private:
  template <class Put>
  void fill(std::size_t count, const Put& put) const {
    if (asked_ == 0) {
      *found_ = static_cast<std::int64_t>(count) + 2;  // the true library says an upper bound
      return;
    }
    const std::size_t filled = std::min(count, static_cast<std::size_t>(asked_));
    for (std::size_t i = 0; i < filled; ++i) {
      put(i);
    }
    if (found_ != nullptr) {
      *found_ = static_cast<std::int64_t>(filled);
    }
  }

  AttributeType type_;
  std::int64_t asked_;
  std::int64_t* found_;
  void* to_;
};

std::vector<std::shared_ptr<Descriptor>> configurations_of(const Descriptor& heuristics) {
  const Reference& graph = heuristics.of(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  std::vector<std::shared_ptr<Descriptor>> all;
  if (std::getenv("FAKE_CUDNN_NONE") != nullptr) {
    return all;
  }
  for (const Engine& each : engines_of(*graph)) {
    auto engine = std::make_shared<Descriptor>(
        Descriptor{.type = CUDNN_BACKEND_ENGINE_DESCRIPTOR, .is_finalized = true, .attributes = {}});
    set_value(*engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph);
    set_value(*engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, each.number);
    auto configuration = std::make_shared<Descriptor>(
        Descriptor{.type = CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, .is_finalized = true, .attributes = {}});
    set_value(*configuration, CUDNN_ATTR_ENGINECFG_ENGINE, Reference(engine));
    all.push_back(std::move(configuration));
  }
  return all;
}

void get(const Descriptor& from, AttributeName name, const Filling& to) {
  if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS && from.type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR) {
    return to.descriptors(configurations_of(from), CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  }
  if (name == CUDNN_ATTR_ENGINECFG_ENGINE && from.type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR) {
    return to.descriptors({std::const_pointer_cast<Descriptor>(from.of(name))}, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  }
  if (from.type == CUDNN_BACKEND_ENGINE_DESCRIPTOR) {
    const Descriptor& graph = *from.of(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
    const std::vector<Engine> engines = engines_of(graph);
    const auto engine =
        std::ranges::find(engines, from.one<std::int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX), &Engine::number);
    require(engine != engines.end(), "there is no such engine");
    switch (name) {
      case CUDNN_ATTR_ENGINE_GLOBAL_INDEX: return to.values<std::int64_t>({engine->number}, CUDNN_TYPE_INT64);
      case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE: return to.values(engine->notes, CUDNN_TYPE_NUMERICAL_NOTE);
      case CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE:
        return to.values<cudnnBackendBehaviorNote_t>({CUDNN_BEHAVIOR_NOTE_SUPPORTS_CUDA_GRAPH_NATIVE_API},
                                                     CUDNN_TYPE_BEHAVIOR_NOTE);
      default: break;
    }
  }
  if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && from.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
    return to.values<std::int64_t>({Plan(from).workspace()}, CUDNN_TYPE_INT64);
  }
  throw Refusal(CUDNN_STATUS_NOT_SUPPORTED, "the fake does not tell attribute " + std::to_string(name));
}

bool is_aligned(const void* memory, std::int64_t to) {
  return reinterpret_cast<std::uintptr_t>(memory) % static_cast<std::uintptr_t>(to) == 0;
}

/// A run of a plan: with the memory of each tensor, and values that are passed.
struct Run {
  std::shared_ptr<const Descriptor> plan;
  std::map<std::int64_t, std::byte*> memory;
  Values passed;
  std::byte* workspace = nullptr;
  std::int64_t turn = 0;
};

/// Throws Refusal unless the memory is what the plan was made for.
Run checked_run(const std::shared_ptr<const Descriptor>& plan_descriptor, const Descriptor& pack) {
  const Plan plan(*plan_descriptor);
  Run run{.plan = plan_descriptor, .memory = {}, .passed = {}};
  const auto uids = pack.all<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack.all<std::byte*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  for (const auto& [uid, tensor] : tensors_in_memory(plan.graph)) {
    const auto at = std::ranges::find(uids, uid);
    const std::string name = "tensor " + std::to_string(uid);
    require(at != uids.end(), name + " has no memory");
    std::byte* const memory = pointers[static_cast<std::size_t>(at - uids.begin())];
    require(memory != nullptr, name + " has no memory", CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
    if (tensor.is_by_value) {
      run.passed[uid] = load(tensor, memory);
      continue;
    }
    require(is_aligned(memory, tensor.alignment), name + " is not aligned as was promised",
            CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER);
    require(lent->is_on_gpu(memory, tensor.bytes()), name + " is not on the GPU as a whole");
    run.memory[uid] = memory;
  }
  require(run.memory.size() + run.passed.size() == uids.size(), "memory is given for a tensor that there is not");
  const std::int64_t bytes = plan.workspace();
  run.workspace = pack.one<std::byte*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, nullptr);
  require(lent->is_on_gpu(run.workspace, static_cast<std::size_t>(bytes)) && is_aligned(run.workspace, 256),
          "the workspace is not on the GPU as a whole, or not aligned to 256 bytes");
  return run;
}

void execute(const Run& run) {
  const Plan plan(*run.plan);
  std::memset(run.workspace, static_cast<int>(run.turn % 251), static_cast<std::size_t>(plan.workspace()));
  const std::map<std::int64_t, Tensor> tensors = tensors_in_memory(plan.graph);
  std::vector<Reference> left(operations_of(plan.graph).begin(), operations_of(plan.graph).end());
  std::set<std::int64_t> to_make;
  for (const Reference& each : left) {
    to_make.insert(Tensor(*tensors_of(*each).made.front()).uid);
  }
  Values values = run.passed;
  for (const auto& [uid, memory] : run.memory) {
    // The engine rounds operands to fewer bits: TF32 has 13 fewer than float32, FP8 20.
    const unsigned dropped = to_make.contains(uid) ? 0 : plan.engine->dropped_bits;
    std::vector<double>& loaded = values[uid] = load(tensors.at(uid), memory);
    std::ranges::transform(loaded, loaded.begin(), [&](double each) { return without_bits(each, dropped); });
  }
  // An operation may stand before what makes its operands.
  while (!left.empty()) {
    const auto next = std::ranges::find_if(left, [&](const Reference& each) {
      return std::ranges::none_of(tensors_of(*each).read,
                                  [&](const Reference& read) { return to_make.contains(Tensor(*read).uid); });
    });
    if (next == left.end()) {
      std::fprintf(stderr, "fake cuDNN: the operations of a graph wait for each other\n");
      std::abort();
    }
    const Tensor made(*tensors_of(**next).made.front());
    compute(**next, values);
    to_make.erase(made.uid);
    if (!made.is_virtual) {
      if (!plan.engine->is_reproducible) {
        values[made.uid].front() += static_cast<double>(run.turn % 7 + 1);
      }
      store(made, values[made.uid], run.memory.at(made.uid));
    }
    left.erase(next);
  }
}

}  // namespace
}  // namespace shardrun::test::fake_cudnn

using namespace shardrun::test::fake_cudnn;

extern "C" {

void fake_cudnn_lend(const fake::Lent* from) { lent = from; }
void fake_cudnn_counts(fake::CudnnCounts* to) {
  const std::lock_guard lock(mutex);
  *to = counts;
}

std::size_t cudnnGetVersion() { return static_cast<std::size_t>(number_of("FAKE_CUDNN_VERSION", 91900)); }
std::size_t cudnnGetCudartVersion() { return 13000; }
const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_NOT_INITIALIZED: return "CUDNN_STATUS_NOT_INITIALIZED";
    case CUDNN_STATUS_BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED: return "CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED";
    case CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER: return "CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER";
    case CUDNN_STATUS_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_EXECUTION_FAILED: return "CUDNN_STATUS_EXECUTION_FAILED";
    default: return "a status that the fake does not know";
  }
}
void cudnnGetLastErrorString(char* message, std::size_t size) {
  std::snprintf(message, size, "%s", last_error.c_str());
  last_error.clear();
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  return with("cudnnCreate", [&] {
    require(lent != nullptr, "nothing is lent to the fake", CUDNN_STATUS_NOT_INITIALIZED);
    static std::vector<std::unique_ptr<cudnnContext>> all;  // nobody destroys them
    *handle = all.emplace_back(std::make_unique<cudnnContext>()).get();
  });
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  return with("cudnnSetStream", [&] { handle->stream = stream; });
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor) {
  return with("cudnnBackendCreateDescriptor", [&] {
    *descriptor = new Held{std::make_shared<Descriptor>(Descriptor{.type = type, .attributes = {}})};
  });
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete static_cast<Held*>(descriptor);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t count, const void* values) {
  return with("cudnnBackendSetAttribute", [&] {
    Descriptor& to = of(descriptor);
    require(!to.is_finalized, "an attribute is set after the descriptor was finalized");
    require(values != nullptr, "an attribute is null", CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
    require_attribute(to.type, name, type, count);
    Attribute made{.type = type, .count = count, .bytes = {}, .descriptors = {}};
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
      for (std::int64_t i = 0; i < count; ++i) {
        const auto each = static_cast<const cudnnBackendDescriptor_t*>(values)[i];
        require(of(each).is_finalized, "an attribute is a descriptor that is not finalized",
                CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
        made.descriptors.push_back(static_cast<Held*>(each)->descriptor);
      }
    } else {
      const auto* const bytes = static_cast<const std::byte*>(values);
      made.bytes.assign(bytes, bytes + static_cast<std::size_t>(count) * bytes_of(type));
    }
    to.attributes[name] = std::move(made);
  });
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  return with("cudnnBackendFinalize", [&] {
    Descriptor& made = of(descriptor);
    check(made);
    if (made.type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR) {
      ++counts.choices;
    }
    if (made.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
      static_cast<void>(Plan(made));
    }
    made.is_finalized = true;
  });
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t asked, std::int64_t* found,
                                       void* values) {
  return with("cudnnBackendGetAttribute", [&] {
    const Descriptor& from = of(descriptor);
    require(from.is_finalized, "an attribute is asked for before the descriptor was finalized",
            CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
    get(from, name, Filling(type, asked, found, values));
  });
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
  return with("cudnnBackendExecute", [&] {
    static_cast<void>(finalized(plan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR));
    Run run = checked_run(static_cast<Held*>(plan)->descriptor, finalized(pack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR));
    const void* const kernel = run.plan.get();
    if (lent->captures(handle->stream, kernel)) {
      return;
    }
    run.turn = ++counts.runs;
    lent->enqueue(handle->stream, kernel, [run = std::move(run)] { execute(run); });
  });
}
}
