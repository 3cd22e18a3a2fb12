#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "core/graph/tensor_type.h"

namespace shardrun::conformance {

/// A tensor without a device, whole or a shard. Elements are doubles, in which all f32 and i32 values are exact.
struct Tensor {
  graph::TensorType type;
  std::vector<double> values;
  std::vector<std::int64_t> origin;  ///< index of the first element in the whole tensor
  std::vector<std::int64_t> global;  ///< shape of the whole tensor
};

/// A type whose axes are named "a0", "a1", …
[[nodiscard]] graph::TensorType type_of(std::vector<std::int64_t> shape, graph::DType dtype = graph::DType::f32);

/// A whole tensor of zeros.
[[nodiscard]] Tensor zeros(graph::TensorType type);

/// The shard with the indices [begin, end) of dimension `dim`.
[[nodiscard]] Tensor slice(const Tensor& tensor, std::size_t dim, std::int64_t begin, std::int64_t end);

/// Joins parts along `dim`: the inverse of slice(). The result has the type and place of the first part, except for
/// its extent along `dim`.
[[nodiscard]] Tensor concatenate(const std::vector<Tensor>& parts, std::size_t dim);

/// Random numbers that floats represent exactly. Normal draws are at least 0.01 from zero, where relu has a kink.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  void fill_normal(Tensor& tensor, double mean, double deviation);
  void fill_uniform(Tensor& tensor, double low, double high);
  void fill_integers(Tensor& tensor, std::int32_t limit);
  [[nodiscard]] std::int64_t below(std::int64_t limit);

 private:
  std::mt19937_64 engine_;
};

}  // namespace shardrun::conformance
