#include "tests/support/cuda/fake_cudnn.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "tests/support/cuda/fake_cublaslt.h"
#include "tests/support/cuda/fake_cudnn_descriptors.h"
#include "tests/support/cuda/fake_cudnn_engines.h"
#include "tests/support/cuda/fake_cudnn_runs.h"

namespace fake = shardrun::test::fake_cuda;

struct cudnnContext {
  cudaStream_t stream = nullptr;
};

namespace shardrun::test::fake_cudnn {
namespace {

/// A descriptor as the user holds it. Descriptors that refer to it keep it alive.
struct Held {
  std::shared_ptr<Descriptor> descriptor;
};

std::mutex mutex;
const fake::Lent* lent = nullptr;
fake::CudnnCounts counts;
thread_local std::string last_error;

std::int64_t number_of(const char* variable, std::int64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoll(text, nullptr, 10);
}

/// Calls `act()`, unless FAKE_CUDNN_FAIL names this function.
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

/// Returns results by filling the user's descriptors.
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
      *found_ = static_cast<std::int64_t>(count) + 2;  // the real library returns an upper bound, too
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

/// Whether FAKE_CUDNN_WANTS_HANDLE says that this function refuses plans without a handle, and the plan has none.
bool is_refused(const char* function, const Descriptor& plan) {
  const char* const refuses = std::getenv("FAKE_CUDNN_WANTS_HANDLE");
  return refuses != nullptr && std::string(refuses) == function && !plan.has(CUDNN_ATTR_EXECUTION_PLAN_HANDLE);
}

/// Requires that a plan and its graph name the GPU in the same way: both by a handle or both by properties.
void check_gpu(const Descriptor& plan) {
  const Descriptor& graph = Plan(plan).graph;
  require(plan.has(CUDNN_ATTR_EXECUTION_PLAN_HANDLE) != plan.has(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP),
          "a plan has either a handle or a GPU's properties");
  require(plan.has(CUDNN_ATTR_EXECUTION_PLAN_HANDLE) == graph.has(CUDNN_ATTR_OPERATIONGRAPH_HANDLE),
          "a plan has a handle, and its graph has none, or the reverse");
  require(!is_refused("cudnnBackendFinalize", plan), "FAKE_CUDNN_WANTS_HANDLE", CUDNN_STATUS_NOT_SUPPORTED);
}

void get(const Descriptor& from, AttributeName name, const Filling& to) {
  if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS && from.type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR) {
    return to.descriptors(configurations_of(from), CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  }
  if (name == CUDNN_ATTR_ENGINECFG_ENGINE && from.type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR) {
    return to.descriptors({std::const_pointer_cast<Descriptor>(from.of(name))}, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  }
  if (from.type == CUDNN_BACKEND_ENGINE_DESCRIPTOR) {
    const Engine engine = engine_of(from);
    switch (name) {
      case CUDNN_ATTR_ENGINE_GLOBAL_INDEX: return to.values<std::int64_t>({engine.number}, CUDNN_TYPE_INT64);
      case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE: return to.values(engine.notes, CUDNN_TYPE_NUMERICAL_NOTE);
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
    static std::vector<std::unique_ptr<cudnnContext>> all;  // never destroyed
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
      require(made.has(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP) !=
                  made.of(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)->has(CUDNN_ATTR_OPERATIONGRAPH_HANDLE),
              "heuristics have either a GPU's properties or a graph with a handle");
      ++counts.choices;
    }
    if (made.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
      check_gpu(made);
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
    require(!is_refused("cudnnBackendExecute", finalized(plan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)),
            "FAKE_CUDNN_WANTS_HANDLE", CUDNN_STATUS_EXECUTION_FAILED);
    Run run = checked_run(*lent, static_cast<Held*>(plan)->descriptor,
                          finalized(pack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR));
    const void* const kernel = run.plan.get();
    if (lent->captures(handle->stream, kernel)) {
      return;
    }
    run.turn = ++counts.runs;
    lent->enqueue(handle->stream, kernel, [run = std::move(run)] { execute(run); });
  });
}
}
