#include <cmath>
#include <memory>
#include <optional>

#include "core/device/cuda/runtime/attention_graph.h"
#include "core/device/cuda/runtime/cudnn.h"
#include "core/device/cuda/runtime/cudnn_plans.h"
#include "core/device/cuda/runtime/library_attention.h"

namespace shardrun::device::cuda {
namespace {

/// Memory of a plan, and what it holds by value: cuDNN reads that when the plan is run.
struct BoundAttention {
  float scale;
  float unseen = -HUGE_VALF;
  float one = 1;
  std::optional<CudnnDescriptor> memory = {};
};

CudnnMemory memory_of(const FusedAttention& attention, const AttentionMemory& memory, BoundAttention& bound) {
  using Numbers = AttentionNumbers;
  CudnnMemory all = {{Numbers::q, memory.q},
                     {Numbers::k, memory.k},
                     {Numbers::v, memory.v},
                     {Numbers::out, memory.out},
                     {Numbers::log_sum_exp, memory.log_sum_exp},
                     {Numbers::scale, &bound.scale}};
  if (attention.is_causal) {
    all.emplace_back(Numbers::unseen, &bound.unseen);
  }
  if (attention.is_gradient) {
    all.insert(all.end(), {{Numbers::dout, memory.dout},
                           {Numbers::dq, memory.dq},
                           {Numbers::dk, memory.dk},
                           {Numbers::dv, memory.dv},
                           {Numbers::sums, memory.sums},
                           {Numbers::one, &bound.one}});
  }
  return all;
}

class CudnnAttention final : public LibraryAttention {
 public:
  CudnnAttention(const std::shared_ptr<CudnnTarget>& target, const Gpu& gpu) : plans_(target, gpu), gpu_(gpu) {}

  AttentionRun find(const FusedAttention& attention, float scale, const AttentionMemory& memory) override {
    // Whether the bits of later GPUs' engines are the same in every run is not known.
    constexpr int last_capability = 90;
    if (attention.is_gradient && gpu_.capability() > last_capability) {
      return nullptr;
    }
    return plans_.find(
        attention, text_of(attention),
        [&](const CudnnTarget& target) { return find_attention_plan(target, attention, memory.workspace.size()); },
        [&](const CudnnPlan& plan) {
          const auto bound = std::make_shared<BoundAttention>(BoundAttention{.scale = scale});
          bound->memory = plan.bind(memory_of(attention, memory, *bound), memory.workspace);
          return std::shared_ptr<const CudnnDescriptor>(bound, &*bound->memory);
        });
  }

 private:
  CudnnPlans<FusedAttention> plans_;
  const Gpu& gpu_;
};

}  // namespace

std::unique_ptr<LibraryAttention> open_attention(const std::shared_ptr<CudnnTarget>& target, const Gpu& gpu) {
  return target != nullptr && find_cudnn().attends ? std::make_unique<CudnnAttention>(target, gpu) : nullptr;
}

}  // namespace shardrun::device::cuda
