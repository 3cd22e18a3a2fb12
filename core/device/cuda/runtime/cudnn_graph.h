#pragma once

#include <cudnn.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/device/cuda/runtime/gpu.h"
#include "core/graph/tensor_type.h"

/// The graph API of cuDNN: operations on tensors form a graph, which the plan of an engine computes.
namespace shardrun::device::cuda {

/// The functions of cuDNN, whose library is opened while the program runs.
struct CudnnFunctions {
  std::string name;  ///< "cuDNN 9.19.0"
  decltype(&cudnnGetVersion) version = nullptr;
  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnSetStream) set_stream = nullptr;
  decltype(&cudnnGetErrorString) error_string = nullptr;
  decltype(&cudnnGetLastErrorString) last_error = nullptr;
  decltype(&cudnnBackendCreateDescriptor) descriptor_create = nullptr;
  decltype(&cudnnBackendDestroyDescriptor) descriptor_destroy = nullptr;
  decltype(&cudnnBackendSetAttribute) descriptor_set = nullptr;
  decltype(&cudnnBackendGetAttribute) descriptor_get = nullptr;
  decltype(&cudnnBackendFinalize) descriptor_finalize = nullptr;
  decltype(&cudnnBackendExecute) execute = nullptr;
};

/// A cuDNN call that failed.
struct CudnnError : Error {
  CudnnError(const CudnnFunctions& library, cudnnStatus_t status, std::string_view call);
  bool is_unsupported;  ///< cuDNN does not support what was asked
};

/// A cuDNN descriptor. Its attributes are set, then it is finalized and never changed. Descriptors that it names must
/// outlive it. All members that call cuDNN throw CudnnError.
class CudnnDescriptor {
 public:
  CudnnDescriptor(const CudnnFunctions& library, cudnnBackendDescriptorType_t type);

  template <class Value>
  CudnnDescriptor& set(cudnnBackendAttributeName_t name, const Value& value) {
    return set_many(name, std::span<const Value>(&value, 1));
  }
  template <class Value>
  CudnnDescriptor& set(cudnnBackendAttributeName_t name, const std::vector<Value>& values) {
    return set_many(name, std::span<const Value>(values));
  }
  CudnnDescriptor& set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value);
  CudnnDescriptor& set(cudnnBackendAttributeName_t name, const std::vector<const CudnnDescriptor*>& values);
  CudnnDescriptor& set(cudnnBackendAttributeName_t name, std::string_view text) {
    return set_many(name, std::span<const char>(text));
  }
  CudnnDescriptor& finalize();

  /// Reads up to `values.size()` elements and returns their number. If `values` is empty, returns how many there are.
  template <class Value>
  std::size_t read(cudnnBackendAttributeName_t name, std::span<Value> values) const {
    return read_raw(name, type_of<Value>(), values.size(), values.data());
  }
  template <class Value>
  [[nodiscard]] Value read_one(cudnnBackendAttributeName_t name) const {
    Value value = {};
    read(name, std::span<Value>(&value, 1));
    return value;
  }
  /// Reads an attribute whose elements are descriptors of `type`. Returns copies of them.
  [[nodiscard]] std::vector<std::unique_ptr<CudnnDescriptor>> read_descriptors(cudnnBackendAttributeName_t name,
                                                                               cudnnBackendDescriptorType_t type) const;

  [[nodiscard]] cudnnBackendDescriptor_t get() const noexcept { return owned_.get(); }
  [[nodiscard]] const CudnnFunctions& library() const noexcept { return *library_; }

 private:
  template <class Value>
  static constexpr cudnnBackendAttributeType_t type_of();
  template <class Value>
  CudnnDescriptor& set_many(cudnnBackendAttributeName_t name, std::span<const Value> values) {
    return set_raw(name, type_of<Value>(), values.size(), values.data());
  }
  CudnnDescriptor& set_raw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::size_t count,
                           const void* values);
  std::size_t read_raw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::size_t count,
                       void* values) const;

  const CudnnFunctions* library_;
  std::unique_ptr<void, decltype(CudnnFunctions::descriptor_destroy)> owned_;
};

/// A tensor of a graph.
struct CudnnTensor {
  cudnnDataType_t dtype = CUDNN_DATA_FLOAT;
  std::vector<std::int64_t> shape = {};
  std::vector<std::int64_t> strides = {};  ///< in elements; empty: no gaps between rows
  bool is_virtual = false;                 ///< it has no memory of its own: only operations of the graph read it
  bool is_by_value = false;                ///< one element, in the host's memory
  std::int64_t alignment = 16;             ///< of its memory, in bytes
};

[[nodiscard]] cudnnDataType_t cudnn_type(graph::DType dtype);

/// How a plan is told which GPU it is for.
enum class CudnnGpu : std::uint8_t {
  by_properties,  ///< by CUDNN_ATTR_..._DEVICEPROP: also possible for a GPU that is absent
  by_handle,      ///< by CUDNN_ATTR_..._HANDLE, of the GPU that will run it
};

/// The GPU for which plans are made, and which runs them.
class CudnnTarget {
 public:
  /// `library` and `gpu` outlive this object. Throws CudnnError if cuDNN does not start, and as Gpu::use() does.
  CudnnTarget(const CudnnFunctions& library, const Gpu& gpu);
  /// A GPU described by cuDNN's own JSON. Plans can be made for it, but not run. Throws CudnnError.
  CudnnTarget(const CudnnFunctions& library, std::string_view json);

  [[nodiscard]] const CudnnFunctions& library() const noexcept { return library_; }
  [[nodiscard]] const CudnnDescriptor& properties() const noexcept { return properties_; }
  /// Null if the GPU is described by JSON.
  [[nodiscard]] cudnnHandle_t handle() const noexcept { return handle_; }
  /// Enqueues a plan. Any thread may call it. Throws CudnnError.
  void run(const CudnnDescriptor& plan, const CudnnDescriptor& memory, cudaStream_t stream);

 private:
  const CudnnFunctions& library_;
  CudnnDescriptor properties_;
  cudnnHandle_t handle_ = nullptr;
  std::mutex mutex_;  ///< because a handle has one stream at a time
};

/// A graph under construction. Its operations keep the order of their addition. Tensors are numbered from 1.
class CudnnGraph {
 public:
  explicit CudnnGraph(const CudnnFunctions& library) : library_(&library) {}

  /// Returns the tensor's number.
  std::int64_t add(const CudnnTensor& tensor);
  [[nodiscard]] const CudnnDescriptor& tensor(std::int64_t number) const;
  /// Adds a descriptor that operations name, such as that of a pointwise function. It is not finalized.
  CudnnDescriptor& add(cudnnBackendDescriptorType_t type);
  /// Adds an operation. The caller finalizes it.
  CudnnDescriptor& add_operation(cudnnBackendDescriptorType_t type);

  [[nodiscard]] const std::vector<const CudnnDescriptor*>& operations() const noexcept { return operations_; }
  [[nodiscard]] const CudnnFunctions& library() const noexcept { return *library_; }

 private:
  const CudnnFunctions* library_;
  std::vector<std::unique_ptr<CudnnDescriptor>> descriptors_;
  std::vector<const CudnnDescriptor*> tensors_;
  std::vector<const CudnnDescriptor*> operations_;
};

/// Requirements on a plan.
struct CudnnLimits {
  std::size_t workspace_bytes = 0;
  bool is_ordered = true;  ///< refuse plans that sum in no fixed order
  std::vector<cudnnBackendNumericalNote_t> refused = {};
};

/// The memory of tensors, by their numbers. Tensors by value have memory of the host.
using CudnnMemory = std::vector<std::pair<std::int64_t, void*>>;

/// A graph together with the plan that computes it.
class CudnnPlan {
 public:
  /// Finds the first plan, in the order of cuDNN's heuristics, that meets the limits. Null: there is none. Throws
  /// CudnnError. REQUIRES: the target has a handle if `gpu` is by_handle.
  [[nodiscard]] static std::shared_ptr<const CudnnPlan> find(const CudnnTarget& target, CudnnGraph graph,
                                                             const CudnnLimits& limits,
                                                             CudnnGpu gpu = CudnnGpu::by_properties);

  [[nodiscard]] std::size_t workspace_bytes() const noexcept { return workspace_bytes_; }
  /// Makes the descriptor of the memory that CudnnTarget::run takes. REQUIRES: workspace.size() >= workspace_bytes().
  [[nodiscard]] CudnnDescriptor bind(const CudnnMemory& memory, std::span<std::byte> workspace) const;
  [[nodiscard]] const CudnnDescriptor& descriptor() const noexcept { return *plan_; }

 private:
  CudnnPlan(const CudnnTarget& target, CudnnGraph graph, CudnnGpu gpu);
  [[nodiscard]] bool take_first(const CudnnTarget& target, cudnnBackendHeurMode_t mode, const CudnnLimits& limits);
  [[nodiscard]] bool take(const CudnnTarget& target, std::unique_ptr<CudnnDescriptor> configuration,
                          const CudnnLimits& limits);

  CudnnGraph graph_;
  CudnnGpu gpu_;
  CudnnDescriptor operations_;
  std::unique_ptr<CudnnDescriptor> configuration_;
  std::unique_ptr<CudnnDescriptor> plan_;
  std::size_t workspace_bytes_ = 0;
};

template <class Value>
constexpr cudnnBackendAttributeType_t CudnnDescriptor::type_of() {
  if constexpr (std::is_same_v<Value, bool>) {
    return CUDNN_TYPE_BOOLEAN;
  } else if constexpr (std::is_same_v<Value, std::int64_t>) {
    return CUDNN_TYPE_INT64;
  } else if constexpr (std::is_same_v<Value, float>) {
    return CUDNN_TYPE_FLOAT;
  } else if constexpr (std::is_same_v<Value, char>) {
    return CUDNN_TYPE_CHAR;
  } else if constexpr (std::is_same_v<Value, cudnnHandle_t>) {
    return CUDNN_TYPE_HANDLE;
  } else if constexpr (std::is_same_v<Value, cudnnDataType_t>) {
    return CUDNN_TYPE_DATA_TYPE;
  } else if constexpr (std::is_same_v<Value, cudnnPointwiseMode_t>) {
    return CUDNN_TYPE_POINTWISE_MODE;
  } else if constexpr (std::is_same_v<Value, cudnnReduceTensorOp_t>) {
    return CUDNN_TYPE_REDUCTION_OPERATOR_TYPE;
  } else if constexpr (std::is_same_v<Value, cudnnConvolutionMode_t>) {
    return CUDNN_TYPE_CONVOLUTION_MODE;
  } else if constexpr (std::is_same_v<Value, cudnnBackendHeurMode_t>) {
    return CUDNN_TYPE_HEUR_MODE;
  } else if constexpr (std::is_same_v<Value, cudnnBackendNumericalNote_t>) {
    return CUDNN_TYPE_NUMERICAL_NOTE;
  } else {
    static_assert(std::is_same_v<Value, void*>, "no attribute has this type");
    return CUDNN_TYPE_VOID_PTR;
  }
}

// Functions that add operations to a graph. Tensors are given by their numbers.

/// Adds a tensor that only operations of the graph read, without gaps between rows. Returns its number.
[[nodiscard]] std::int64_t add_virtual(CudnnGraph& graph, std::vector<std::int64_t> shape,
                                       cudnnDataType_t dtype = CUDNN_DATA_FLOAT);

struct CudnnPointwise {
  cudnnPointwiseMode_t mode;
  std::int64_t x = 0;
  std::int64_t b = 0;          ///< the second operand; 0: none
  std::int64_t condition = 0;  ///< the condition of a selection; 0: none
  cudnnDataType_t computes = CUDNN_DATA_FLOAT;
  std::optional<std::int64_t> axis = {};  ///< the axis of an index
};
/// The following functions return `to`.
std::int64_t add_pointwise(CudnnGraph& graph, const CudnnPointwise& of, std::int64_t to);
/// A matrix product with sums in float32.
std::int64_t add_matmul(CudnnGraph& graph, std::int64_t a, std::int64_t b, std::int64_t to);
/// Reduces, in float32, the dimensions whose size is 1 in `to`.
std::int64_t add_reduction(CudnnGraph& graph, cudnnReduceTensorOp_t mode, std::int64_t x, std::int64_t to);
/// Gives the same memory another shape and other strides.
std::int64_t add_reshape(CudnnGraph& graph, std::int64_t x, std::int64_t to);

}  // namespace shardrun::device::cuda
