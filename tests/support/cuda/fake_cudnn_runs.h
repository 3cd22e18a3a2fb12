#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "tests/support/cuda/fake_cublaslt.h"
#include "tests/support/cuda/fake_cudnn_operations.h"

/// Runs of plans of the fake cuDNN (fake_cudnn.h).
namespace shardrun::test::fake_cudnn {

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
