#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "tests/support/cuda/fake_cudnn_descriptors.h"

/// The arithmetic of the fake cuDNN's operations (fake_cudnn.h).
namespace shardrun::test::fake_cudnn {

/// The tensors of a graph by number: their elements, row by row.
using Values = std::map<std::int64_t, std::vector<double>>;

/// The elements of a tensor in memory, and the contrary.
[[nodiscard]] std::vector<double> load(const Tensor& tensor, const std::byte* data);
void store(const Tensor& tensor, const std::vector<double>& values, std::byte* data);

/// As a float32 whose last bits are 0, rounded to nearest, ties to even.
[[nodiscard]] double without_bits(double value, unsigned count);
/// As the type of the tensor holds it.
[[nodiscard]] double rounded(double value, cudnnDataType_t type);

/// Computes what an operation makes. `values` has what it reads, and, if it adds to its result, that.
void compute(const Descriptor& operation, Values& values);

}  // namespace shardrun::test::fake_cudnn
