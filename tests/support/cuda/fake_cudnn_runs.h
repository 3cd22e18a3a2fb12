#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "tests/support/cuda/fake_cublaslt.h"
#include "tests/support/cuda/fake_cudnn_descriptors.h"

/// Runs of plans of the fake cuDNN (fake_cudnn.h), and the arithmetic of its operations.
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

/// A run of a plan: the memory of each tensor by uid, and the values that are passed directly.
struct Run {
  std::shared_ptr<const Descriptor> plan;
  std::map<std::int64_t, std::byte*> memory;
  Values passed;
  std::byte* workspace = nullptr;
  std::int64_t turn = 0;
};

/// Makes a run. Throws Refusal unless the memory is as the plan requires.
[[nodiscard]] Run checked_run(const fake_cuda::Lent& lent, const std::shared_ptr<const Descriptor>& plan,
                              const Descriptor& pack);
/// Computes the graph. The stream calls it when it gets to the run.
void execute(const Run& run);

}  // namespace shardrun::test::fake_cudnn
