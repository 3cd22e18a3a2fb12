#include <fmt/format.h>

#include <cmath>
#include <map>
#include <mutex>
#include <utility>

#include "core/base/error.h"
#include "core/base/standard_error.h"
#include "core/device/cuda/runtime/attention_graph.h"
#include "core/device/cuda/runtime/cudnn.h"
#include "core/device/cuda/runtime/library_attention.h"
#include "core/device/cuda/runtime/library_op.h"

namespace shardrun::device::cuda {
namespace {

/// A plan with its memory.
struct BoundAttention {
  std::shared_ptr<const CudnnPlan> plan;
  // By value: cuDNN reads them when the plan is run.
  float scale;
  float unseen = -HUGE_VALF;
  float one = 1;
  std::unique_ptr<const CudnnDescriptor> memory = nullptr;
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
  CudnnAttention(const CudnnFunctions& library, const Gpu& gpu) : target_(library, gpu), gpu_(gpu) {}

  AttentionRun find(const FusedAttention& attention, float scale, const AttentionMemory& memory) override {
    // Whether the bits of later GPUs' engines are the same in every run is not known.
    constexpr int last_capability = 90;
    if (attention.is_gradient && gpu_.capability() > last_capability) {
      return nullptr;
    }
    gpu_.use();
    const std::lock_guard lock(mutex_);
    if (const auto known = known_.find(attention); known != known_.end()) {
      return known->second == nullptr ? nullptr : bound(known->second, attention, scale, memory);
    }
    std::shared_ptr<const CudnnPlan> plan;
    AttentionRun run;
    with_name(attention, [&] { plan = find_attention_plan(target_, attention, memory.workspace.size()); });
    if (plan != nullptr) {
      run = bound(plan, attention, scale, memory);
      try {
        load_kernels(gpu_, run);
      } catch (const Error& error) {
        write_to_standard_error(
            fmt::format("shardrun: loading the kernels of {} failed, so our own kernels compute it: {}\n",
                        text_of(attention), error.message()));
        plan = nullptr;
        run = nullptr;
      }
    }
    known_.emplace(attention, std::move(plan));
    return run;
  }

 private:
  template <class Act>
  static void with_name(const FusedAttention& attention, const Act& act) {
    try {
      act();
    } catch (const CudnnError& error) {
      throw Error(error.code(), fmt::format("{}: {}", text_of(attention), error.message()));
    }
  }

  AttentionRun bound(const std::shared_ptr<const CudnnPlan>& plan, const FusedAttention& attention, float scale,
                     const AttentionMemory& memory) {
    auto made = std::make_shared<BoundAttention>(BoundAttention{.plan = plan, .scale = scale});
    with_name(attention, [&] {
      made->memory =
          std::make_unique<const CudnnDescriptor>(plan->bind(memory_of(attention, memory, *made), memory.workspace));
    });
    return [this, made, attention](cudaStream_t stream) {
      with_name(attention, [&] { target_.run(made->plan->descriptor(), *made->memory, stream); });
    };
  }

  CudnnTarget target_;
  const Gpu& gpu_;
  std::mutex mutex_;
  std::map<FusedAttention, std::shared_ptr<const CudnnPlan>> known_;
};

}  // namespace

std::unique_ptr<LibraryAttention> open_attention(const Gpu& gpu) {
  const FoundCudnn& found = find_cudnn();
  return found.is_used ? std::make_unique<CudnnAttention>(*found.functions, gpu) : nullptr;
}

}  // namespace shardrun::device::cuda
