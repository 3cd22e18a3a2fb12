#pragma once

#include <cudnn_graph.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

/// Descriptors of the fake cuDNN (fake_cudnn.h).
namespace shardrun::test::fake_cudnn {

using AttributeName = cudnnBackendAttributeName_t;
using AttributeType = cudnnBackendAttributeType_t;
using DescriptorType = cudnnBackendDescriptorType_t;
using Sizes = std::vector<std::int64_t>;

/// The status with which a call is refused, and why.
struct Refusal : std::runtime_error {
  Refusal(cudnnStatus_t of, const std::string& why) : std::runtime_error(why), status(of) {}
  cudnnStatus_t status;
};
inline void require(bool condition, const std::string& why, cudnnStatus_t status = CUDNN_STATUS_BAD_PARAM) {
  if (!condition) {
    throw Refusal(status, why);
  }
}

struct Descriptor;
using Reference = std::shared_ptr<const Descriptor>;

struct Attribute {
  AttributeType type = CUDNN_TYPE_INT64;
  std::int64_t count = 0;
  std::vector<std::byte> bytes;
  std::vector<Reference> descriptors;
};

struct Descriptor {
  DescriptorType type;
  bool is_finalized = false;
  std::map<AttributeName, Attribute> attributes;
  std::int64_t engine = 0;  ///< for engines and engine configurations: the engine's number

  [[nodiscard]] bool has(AttributeName name) const { return attributes.contains(name); }
  template <class Value>
  [[nodiscard]] std::vector<Value> all(AttributeName name) const {
    const Attribute& of = attributes.at(name);
    std::vector<Value> values(static_cast<std::size_t>(of.count));
    std::memcpy(values.data(), of.bytes.data(), of.bytes.size());
    return values;
  }
  template <class Value>
  [[nodiscard]] Value one(AttributeName name) const {
    Value value;
    std::memcpy(&value, attributes.at(name).bytes.data(), sizeof(value));
    return value;
  }
  template <class Value>
  [[nodiscard]] Value one(AttributeName name, Value otherwise) const {
    return has(name) ? one<Value>(name) : otherwise;
  }
  [[nodiscard]] const Reference& of(AttributeName name) const { return attributes.at(name).descriptors.front(); }
};

/// The size in bytes of an attribute's element.
[[nodiscard]] std::size_t bytes_of(AttributeType type);
/// Throws Refusal unless descriptors of type `of` have this attribute, with this type and count.
void require_attribute(DescriptorType of, AttributeName name, AttributeType type, std::int64_t count);
/// Throws Refusal unless all required attributes are set and fit each other.
void check(const Descriptor& descriptor);

/// The attributes of a tensor descriptor.
struct Tensor {
  explicit Tensor(const Descriptor& descriptor);

  std::int64_t uid;
  cudnnDataType_t type;
  Sizes sizes;
  Sizes strides;
  std::int64_t alignment;
  bool is_virtual;
  bool is_by_value;

  [[nodiscard]] std::size_t elements() const;
  [[nodiscard]] std::size_t element_bytes() const;
  /// The bytes from the first element to the end of the last one.
  [[nodiscard]] std::size_t bytes() const;
  /// For each element, in row-major order, its offset from the first one, in elements.
  [[nodiscard]] std::vector<std::size_t> offsets() const;
};

/// Strides, dilations and padding of a convolution, for each dimension.
struct Sliding {
  explicit Sliding(const Descriptor& convolution);

  Sizes strides;
  Sizes dilations;
  Sizes before;
  Sizes after;
};

/// The tensors that an operation reads and those that it makes.
struct OperationTensors {
  std::vector<Reference> read;
  std::vector<Reference> made;
};
[[nodiscard]] OperationTensors tensors_of(const Descriptor& operation);

/// The attributes of a convolution that are its x, w and y. `made`: the one of them that it computes.
struct ConvolutionTensors {
  explicit ConvolutionTensors(const Descriptor& operation);

  AttributeName made;
  AttributeName x;
  AttributeName w;
  AttributeName y;
  AttributeName convolution;
  AttributeName alpha;
  AttributeName beta;
};

}  // namespace shardrun::test::fake_cudnn
