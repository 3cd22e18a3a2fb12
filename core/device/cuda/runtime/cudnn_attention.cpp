#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "core/device/cuda/runtime/cudnn.h"
#include "core/device/cuda/runtime/cudnn_library.h"
#include "core/device/cuda/runtime/cudnn_plans.h"

namespace shardrun::device::cuda {
namespace {

/// A plan's memory, with values that cuDNN reads when the plan runs.
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
  if (memory.dq_sums != nullptr) {
    all.emplace_back(Numbers::dq_sums, memory.dq_sums);
  }
  return all;
}

using Plans = CudnnPlans<std::pair<FusedAttention, AttentionOrder>>;

AttentionRun find(Plans& plans, const FusedAttention& attention, float scale, const AttentionMemory& memory,
                  AttentionOrder order) {
  const bool is_any = order == AttentionOrder::any;
  return plans.find(
      {attention, order}, text_of(attention) + (is_any ? ", in no fixed order" : ""),
      [&](const CudnnTarget& target, CudnnGpu gpu) {
        return find_attention_plan(target, attention, memory.workspace.size(), order, gpu);
      },
      [&](const CudnnPlan& plan) {
        const auto bound = std::make_shared<BoundAttention>(BoundAttention{.scale = scale});
        bound->memory = plan.bind(memory_of(attention, memory, *bound), memory.workspace);
        return std::shared_ptr<const CudnnDescriptor>(bound, &*bound->memory);
      },
      is_any ? "cuDNN in a fixed order" : "our own kernel");
}

/// The bytes of the sums of dq, rounded up to a multiple of the alignment.
std::size_t bytes_of_sums(const FusedAttention& attention) {
  const std::size_t bytes = static_cast<std::size_t>(attention.rows() * attention.width) * sizeof(float);
  return (bytes + AttentionSteps::alignment - 1) / AttentionSteps::alignment * AttentionSteps::alignment;
}

}  // namespace

FindAttention open_attention(const std::shared_ptr<CudnnTarget>& target, const Gpu& gpu) {
  const FoundCudnn& found = find_cudnn();
  if (target == nullptr || !found.attends) {
    return nullptr;
  }
  return [plans = std::make_shared<Plans>(target, gpu), &gpu, in_any_order = found.is_fastest](
             const FusedAttention& attention, float scale, const AttentionMemory& memory) -> AttentionRun {
    // For later GPUs it is not known whether the engines give the same bits in every run.
    constexpr int last_capability = 90;
    if (attention.is_gradient && gpu.capability() > last_capability) {
      return nullptr;
    }
    const std::size_t sums = bytes_of_sums(attention);
    if (attention.is_gradient && in_any_order && sums < memory.workspace.size()) {
      AttentionMemory with_sums = memory;
      with_sums.dq_sums = memory.workspace.data();
      with_sums.workspace = memory.workspace.subspan(sums);
      if (AttentionRun run = find(*plans, attention, scale, with_sums, AttentionOrder::any)) {
        // The sums are set to zero first, because blocks add to them.
        return [&gpu, run = std::move(run), to = with_sums.dq_sums, sums](cudaStream_t stream) {
          gpu.check(cudaMemsetAsync(to, 0, sums, stream), "clearing the sums of an attention's gradient");
          run(stream);
        };
      }
    }
    return find(*plans, attention, scale, memory, AttentionOrder::fixed);
  };
}

}  // namespace shardrun::device::cuda
