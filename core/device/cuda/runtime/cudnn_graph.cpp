#include "core/device/cuda/runtime/cudnn_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace shardrun::device::cuda {
namespace {

void check_cudnn(const CudnnFunctions& library, cudnnStatus_t status, std::string_view call) {
  if (status != CUDNN_STATUS_SUCCESS) {
    throw CudnnError(library, status, call);
  }
}

std::string failure_text(const CudnnFunctions& library, cudnnStatus_t status, std::string_view call) {
  std::array<char, 1024> last = {};
  library.last_error(last.data(), last.size());
  last.back() = '\0';
  return fmt::format("{}: {} returned {}{}{} (SHARDRUN_CUDA_DNN=own computes without it)", library.name, call,
                     library.error_string(status), last.front() == '\0' ? "" : ": ", last.data());
}

std::vector<std::int64_t> packed_strides(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;) {
    strides[i - 1] = strides[i] * shape[i];
  }
  return strides;
}

CudnnDescriptor properties_of(const CudnnFunctions& library) { return {library, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR}; }

}  // namespace

CudnnError::CudnnError(const CudnnFunctions& library, cudnnStatus_t status, std::string_view call)
    : Error(ErrorCode::internal, failure_text(library, status, call)),
      is_unsupported(CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED) {}

CudnnDescriptor::CudnnDescriptor(const CudnnFunctions& library, cudnnBackendDescriptorType_t type)
    : library_(&library), owned_(nullptr, library.descriptor_destroy) {
  cudnnBackendDescriptor_t made = nullptr;
  check_cudnn(library, library.descriptor_create(type, &made), "cudnnBackendCreateDescriptor");
  owned_.reset(made);
}

CudnnDescriptor& CudnnDescriptor::set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value) {
  return set(name, std::vector<const CudnnDescriptor*>{&value});
}

CudnnDescriptor& CudnnDescriptor::set(cudnnBackendAttributeName_t name,
                                      const std::vector<const CudnnDescriptor*>& values) {
  std::vector<cudnnBackendDescriptor_t> raw;
  raw.reserve(values.size());
  for (const CudnnDescriptor* const value : values) {
    raw.push_back(value->get());
  }
  return set_raw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, raw.size(), raw.data());
}

CudnnDescriptor& CudnnDescriptor::set_raw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                          std::size_t count, const void* values) {
  const cudnnStatus_t status = library_->descriptor_set(get(), name, type, static_cast<std::int64_t>(count), values);
  if (status != CUDNN_STATUS_SUCCESS) {
    throw CudnnError(*library_, status, fmt::format("cudnnBackendSetAttribute ({})", static_cast<int>(name)));
  }
  return *this;
}

CudnnDescriptor& CudnnDescriptor::finalize() {
  check_cudnn(*library_, library_->descriptor_finalize(get()), "cudnnBackendFinalize");
  return *this;
}

std::size_t CudnnDescriptor::read_raw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                      std::size_t count, void* values) const {
  std::int64_t found = 0;
  const cudnnStatus_t status =
      library_->descriptor_get(get(), name, type, static_cast<std::int64_t>(count), &found, values);
  if (status != CUDNN_STATUS_SUCCESS) {
    throw CudnnError(*library_, status, fmt::format("cudnnBackendGetAttribute ({})", static_cast<int>(name)));
  }
  return static_cast<std::size_t>(found);
}

std::vector<std::unique_ptr<CudnnDescriptor>> CudnnDescriptor::read_descriptors(
    cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type) const {
  std::vector<std::unique_ptr<CudnnDescriptor>> made;
  std::vector<cudnnBackendDescriptor_t> raw;
  const std::size_t most = read_raw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, nullptr);
  for (std::size_t i = 0; i < most; ++i) {
    made.push_back(std::make_unique<CudnnDescriptor>(*library_, type));
    raw.push_back(made.back()->get());
  }
  made.resize(most == 0 ? 0 : std::min(most, read_raw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, most, raw.data())));
  return made;
}

cudnnDataType_t cudnn_type(graph::DType dtype) {
  return dtype == graph::DType::bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
}

CudnnTarget::CudnnTarget(const CudnnFunctions& library, const Gpu& gpu)
    : library_(library), properties_(properties_of(library)) {
  gpu.use();
  // This handle is never destroyed: at the end of the process, CUDA may already be gone.
  check_cudnn(library, library.create(&handle_), "cudnnCreate");
  properties_.set(CUDNN_ATTR_DEVICEPROP_HANDLE, handle_).finalize();
}

CudnnTarget::CudnnTarget(const CudnnFunctions& library, std::string_view json)
    : library_(library), properties_(properties_of(library)) {
  properties_.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, json).finalize();
}

void CudnnTarget::run(const CudnnDescriptor& plan, const CudnnDescriptor& memory, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  check_cudnn(library_, library_.set_stream(handle_, stream), "cudnnSetStream");
  check_cudnn(library_, library_.execute(handle_, plan.get(), memory.get()), "cudnnBackendExecute");
}

CudnnDescriptor& CudnnGraph::add(cudnnBackendDescriptorType_t type) {
  return *descriptors_.emplace_back(std::make_unique<CudnnDescriptor>(*library_, type));
}

std::int64_t CudnnGraph::add(const CudnnTensor& tensor) {
  CudnnDescriptor& made = add(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const auto number = static_cast<std::int64_t>(tensors_.size()) + 1;
  made.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, number)
      .set(CUDNN_ATTR_TENSOR_DATA_TYPE, tensor.dtype)
      .set(CUDNN_ATTR_TENSOR_DIMENSIONS, tensor.shape)
      .set(CUDNN_ATTR_TENSOR_STRIDES, tensor.strides.empty() ? packed_strides(tensor.shape) : tensor.strides)
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, tensor.alignment)
      .set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, tensor.is_virtual)
      .set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, tensor.is_by_value)
      .finalize();
  tensors_.push_back(&made);
  return number;
}

const CudnnDescriptor& CudnnGraph::tensor(std::int64_t number) const {
  return *tensors_.at(static_cast<std::size_t>(number) - 1);
}

CudnnDescriptor& CudnnGraph::add_operation(cudnnBackendDescriptorType_t type) {
  CudnnDescriptor& made = add(type);
  operations_.push_back(&made);
  return made;
}

CudnnPlan::CudnnPlan(const CudnnTarget& target, CudnnGraph graph, CudnnGpu gpu)
    : graph_(std::move(graph)), gpu_(gpu), operations_(graph_.library(), CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) {
  operations_.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, graph_.operations());
  if (gpu_ == CudnnGpu::by_handle) {
    operations_.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, target.handle());
  }
  operations_.finalize();
}

std::shared_ptr<const CudnnPlan> CudnnPlan::find(const CudnnTarget& target, CudnnGraph graph, const CudnnLimits& limits,
                                                 CudnnGpu gpu) {
  try {
    std::shared_ptr<CudnnPlan> plan(new CudnnPlan(target, std::move(graph), gpu));
    for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
      if (plan->take_first(target, mode, limits)) {
        return plan;
      }
    }
  } catch (const CudnnError& error) {
    if (!error.is_unsupported) {
      throw;
    }
  }
  return nullptr;
}

bool CudnnPlan::take_first(const CudnnTarget& target, cudnnBackendHeurMode_t mode, const CudnnLimits& limits) {
  CudnnDescriptor heuristics(target.library(), CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operations_).set(CUDNN_ATTR_ENGINEHEUR_MODE, mode);
  if (gpu_ == CudnnGpu::by_properties) {
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, target.properties());
  }
  try {
    heuristics.finalize();
  } catch (const CudnnError& error) {
    if (!error.is_unsupported) {
      throw;
    }
    return false;
  }
  for (auto& each : heuristics.read_descriptors(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)) {
    if (take(target, std::move(each), limits)) {
      return true;
    }
  }
  return false;
}

bool CudnnPlan::take(const CudnnTarget& target, std::unique_ptr<CudnnDescriptor> configuration,
                     const CudnnLimits& limits) {
  const auto engine = configuration->read_descriptors(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes = {};
  const std::size_t count =
      engine.at(0)->read(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, std::span<cudnnBackendNumericalNote_t>(notes));
  for (std::size_t i = 0; i < std::min(count, notes.size()); ++i) {
    if ((limits.is_ordered && notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) ||
        std::find(limits.refused.begin(), limits.refused.end(), notes[i]) != limits.refused.end()) {
      return false;
    }
  }
  auto plan = std::make_unique<CudnnDescriptor>(target.library(), CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  plan->set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, *configuration);
  if (gpu_ == CudnnGpu::by_handle) {
    plan->set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, target.handle());
  } else {
    plan->set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, target.properties());
  }
  try {
    plan->finalize();
  } catch (const CudnnError&) {
    return false;  // cuDNN proposes configurations that cannot be built; the caller tries the next one
  }
  const auto bytes = plan->read_one<std::int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
  if (static_cast<std::size_t>(bytes) > limits.workspace_bytes) {
    return false;
  }
  configuration_ = std::move(configuration);
  plan_ = std::move(plan);
  workspace_bytes_ = static_cast<std::size_t>(bytes);
  return true;
}

CudnnDescriptor CudnnPlan::bind(const CudnnMemory& memory, std::span<std::byte> workspace) const {
  std::vector<std::int64_t> numbers;
  std::vector<void*> addresses;
  for (const auto& [number, address] : memory) {
    numbers.push_back(number);
    addresses.push_back(address);
  }
  CudnnDescriptor pack(graph_.library(), CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, numbers)
      .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, addresses)
      .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, static_cast<void*>(workspace.data()))
      .finalize();
  return pack;
}

}  // namespace shardrun::device::cuda
