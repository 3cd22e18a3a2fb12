#include "tests/support/cuda/fake_cudnn_runs.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tests/support/cuda/fake_cudnn_engines.h"

namespace shardrun::test::fake_cudnn {
namespace {

bool is_aligned(const void* memory, std::int64_t to) {
  return reinterpret_cast<std::uintptr_t>(memory) % static_cast<std::uintptr_t>(to) == 0;
}

}  // namespace

Run checked_run(const fake_cuda::Lent& lent, const std::shared_ptr<const Descriptor>& plan_descriptor,
                const Descriptor& pack) {
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
    require(lent.is_on_gpu(memory, tensor.bytes()), name + " is not on the GPU as a whole");
    run.memory[uid] = memory;
  }
  require(run.memory.size() + run.passed.size() == uids.size(), "memory is given for a tensor that there is not");
  const std::int64_t bytes = plan.workspace();
  run.workspace = pack.one<std::byte*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, nullptr);
  require(lent.is_on_gpu(run.workspace, static_cast<std::size_t>(bytes)) && is_aligned(run.workspace, 256),
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
    const unsigned dropped = to_make.contains(uid) ? 0 : plan.engine.dropped_bits;
    std::vector<double>& loaded = values[uid] = load(tensors.at(uid), memory);
    std::ranges::transform(loaded, loaded.begin(), [&](double each) { return without_bits(each, dropped); });
  }
  // Operations need not be listed after those that make their operands.
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
    // A product that another operation reads from memory is a sum to which the blocks of an engine add.
    const bool adds = (*next)->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR && !made.is_virtual &&
                      std::ranges::any_of(left, [&](const Reference& each) {
                        return std::ranges::any_of(tensors_of(*each).read, [&](const Reference& read) {
                          return Tensor(*read).uid == made.uid;
                        });
                      });
    const std::vector<double> before = adds ? values[made.uid] : std::vector<double>();
    compute(**next, values);
    if (adds) {
      std::ranges::transform(values[made.uid], before, values[made.uid].begin(), std::plus<>());
    }
    to_make.erase(made.uid);
    if (!made.is_virtual) {
      std::vector<double> stored = values[made.uid];
      if (!plan.engine.is_reproducible) {
        stored.front() += static_cast<double>(run.turn % 7 + 1);
      }
      store(made, stored, run.memory.at(made.uid));
    }
    left.erase(next);
  }
}

}  // namespace shardrun::test::fake_cudnn
