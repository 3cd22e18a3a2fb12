#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "tests/support/cuda/fake_cudnn_descriptors.h"

/// The arithmetic of the fake cuDNN's operations (fake_cudnn.h).
namespace shardrun::test::fake_cudnn {

/// The elements of each tensor of a graph, in row-major order, by the tensor's uid.
using Values = std::map<std::int64_t, std::vector<double>>;

/// load() reads the elements of a tensor from memory; store() writes them.
[[nodiscard]] std::vector<double> load(const Tensor& tensor, const std::byte* data);
void store(const Tensor& tensor, const std::vector<double>& values, std::byte* data);

/// Rounds a value to a float32 whose last `count` bits are 0, to nearest, ties to even.
[[nodiscard]] double without_bits(double value, unsigned count);
/// Rounds a value to the type of a tensor.
[[nodiscard]] double rounded(double value, cudnnDataType_t type);

/// Computes an operation. `values` has its operands and, if it adds to its result, the result so far.
void compute(const Descriptor& operation, Values& values);

}  // namespace shardrun::test::fake_cudnn
