#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "core/device/cuda/runtime/attention_graph.h"
#include "core/device/cuda/runtime/cudnn.h"
#include "core/device/cuda/runtime/cudnn_plans.h"
#include "core/device/cuda/runtime/library_attention.h"

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

class CudnnAttention final : public LibraryAttention {
 public:
  CudnnAttention(const std::shared_ptr<CudnnTarget>& target, const Gpu& gpu, AttentionOrder order)
      : plans_(target, gpu), gpu_(gpu), order_(order) {}

  AttentionRun find(const FusedAttention& attention, float scale, const AttentionMemory& memory) override {
    // For later GPUs it is not known whether the engines give the same bits in every run.
    constexpr int last_capability = 90;
    if (attention.is_gradient && gpu_.capability() > last_capability) {
      return nullptr;
    }
    const std::size_t sums =
        up_to_aligned(static_cast<std::size_t>(attention.rows() * attention.width) * sizeof(float));
    if (attention.is_gradient && order_ == AttentionOrder::any && sums < memory.workspace.size()) {
      AttentionMemory with_sums = memory;
      with_sums.dq_sums = memory.workspace.data();
      with_sums.workspace = memory.workspace.subspan(sums);
      if (AttentionRun run = find(attention, scale, with_sums, AttentionOrder::any)) {
        // The sums are set to zero first, because blocks add to them.
        return [this, run = std::move(run), memory = with_sums.dq_sums, sums](cudaStream_t stream) {
          gpu_.check(cudaMemsetAsync(memory, 0, sums, stream), "clearing the sums of an attention's gradient");
          run(stream);
        };
      }
    }
    return find(attention, scale, memory, AttentionOrder::fixed);
  }

 private:
  static std::size_t up_to_aligned(std::size_t bytes) {
    return (bytes + AttentionSteps::alignment - 1) / AttentionSteps::alignment * AttentionSteps::alignment;
  }

  AttentionRun find(const FusedAttention& attention, float scale, const AttentionMemory& memory, AttentionOrder order) {
    const bool is_any = order == AttentionOrder::any;
    return plans_.find(
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

  CudnnPlans<std::pair<FusedAttention, AttentionOrder>> plans_;
  const Gpu& gpu_;
  AttentionOrder order_;  ///< the order of the gradient's sums
};

}  // namespace

std::unique_ptr<LibraryAttention> open_attention(const std::shared_ptr<CudnnTarget>& target, const Gpu& gpu) {
  const FoundCudnn& found = find_cudnn();
  const AttentionOrder order = found.is_fastest ? AttentionOrder::any : AttentionOrder::fixed;
  return target != nullptr && found.attends ? std::make_unique<CudnnAttention>(target, gpu, order) : nullptr;
}

}  // namespace shardrun::device::cuda
