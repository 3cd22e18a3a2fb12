#pragma once

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/standard_error.h"
#include "core/device/cuda/runtime/attention_steps.h"
#include "core/device/cuda/runtime/convolution_steps.h"
#include "core/device/cuda/runtime/cudnn_graph.h"
#include "core/device/cuda/runtime/library_op.h"

namespace shardrun::device::cuda {

/// The numbers of the graph's tensors. The scale, the score of unseen keys and the constant 1 are passed by value.
struct AttentionNumbers {
  enum : std::int64_t { q = 1, k, v, out, log_sum_exp, scale, unseen, dout, dq, dk, dv, sums, one, dq_sums };
};

/// The order in which the gradient adds up the parts of dq.
enum class AttentionOrder : std::uint8_t {
  fixed,  ///< each dq is written once
  any,    ///< blocks add to float32 sums in no fixed order, which is faster; the bits differ from run to run
};

/// Finds the first plan, in the order of cuDNN's heuristics, that needs no more workspace than allowed and, unless
/// `order` is any, adds up in a fixed order. Null: there is none. Throws CudnnError.
/// Attention: q, k, v -> out, log-sum-exp (natural logarithm) of the scaled scores.
/// Gradient: q, k, v, out, log-sum-exp, dout -> dq, dk, dv, and the row sums of dout * out in float32. If `order` is
/// any, also dq_sums: [batch, heads, queries, width] in float32, which the caller sets to 0 before each run.
[[nodiscard]] std::shared_ptr<const CudnnPlan> find_attention_plan(const CudnnTarget& target,
                                                                   const FusedAttention& attention,
                                                                   std::size_t workspace_bytes,
                                                                   AttentionOrder order = AttentionOrder::fixed,
                                                                   CudnnGpu gpu = CudnnGpu::by_properties);

/// The alignment of the memory of x, w and y, in bytes.
using ConvolutionAlignments = std::array<std::int64_t, 3>;

/// Finds the first plan, in the order of cuDNN's heuristics, that multiplies exactly, sums in float32 in a fixed order,
/// and needs no more workspace than allowed. Null: there is none. Tensors x, w and y have the numbers 1, 2 and 3.
/// Throws CudnnError.
[[nodiscard]] std::shared_ptr<const CudnnPlan> find_convolution_plan(const CudnnTarget& target,
                                                                     const Convolution& convolution, bool adds,
                                                                     const ConvolutionAlignments& alignments,
                                                                     std::size_t workspace_bytes,
                                                                     CudnnGpu gpu = CudnnGpu::by_properties);

/// Plans of cuDNN on one GPU. Each is chosen once, and its kernels are loaded. A `Key` identifies the work of a plan.
template <class Key>
class CudnnPlans {
 public:
  using Run = std::function<void(cudaStream_t stream)>;
  using Choose = std::function<std::shared_ptr<const CudnnPlan>(const CudnnTarget& target, CudnnGpu gpu)>;
  /// Binds a plan to its memory (CudnnPlan::bind).
  using Bind = std::function<std::shared_ptr<const CudnnDescriptor>(const CudnnPlan& plan)>;

  /// `gpu` outlives this object.
  CudnnPlans(std::shared_ptr<CudnnTarget> target, const Gpu& gpu) : target_(std::move(target)), gpu_(gpu) {}

  /// Returns a function that enqueues the key's plan, bound to memory. Does not read or write that memory yet. Any
  /// thread may call the function. This object outlives it. Returns an empty function if `choose` finds no plan or its
  /// kernels cannot be loaded. stderr then says once per key that `otherwise` computes instead. Throws Error{internal}
  /// whose message begins with `name`, as the returned function does.
  [[nodiscard]] Run find(const Key& key, const std::string& name, const Choose& choose, const Bind& bind,
                         const char* otherwise = "our own kernel") {
    gpu_.use();
    const std::lock_guard lock(mutex_);
    const auto [known, is_new] = known_.try_emplace(key);
    std::shared_ptr<const CudnnPlan>& plan = known->second;
    std::shared_ptr<const CudnnDescriptor> memory;
    try {
      if (is_new) {
        plan = make(name, choose, bind, otherwise);
      }
      memory = plan == nullptr ? nullptr : bind(*plan);
    } catch (const CudnnError& error) {
      known_.erase(known);
      throw named(error, name);
    }
    if (plan == nullptr) {
      return nullptr;
    }
    return [this, made = plan, memory, name](cudaStream_t stream) {
      try {
        target_->run(made->descriptor(), *memory, stream);
      } catch (const CudnnError& error) {
        throw named(error, name);
      }
    };
  }

 private:
  static Error named(const CudnnError& error, const std::string& name) {
    return {error.code(), fmt::format("{}: {}", name, error.message())};
  }

  /// Makes a plan and loads its kernels. It is first made with the GPU's properties, in the same way as plans are made
  /// and tested without a GPU. Once a plan has needed the handle, all later ones are made with it.
  std::shared_ptr<const CudnnPlan> make(const std::string& name, const Choose& choose, const Bind& bind,
                                        const char* otherwise) {
    std::string why;
    if (!needs_handle_) {
      try {
        if (auto plan = loaded(CudnnGpu::by_properties, choose, bind, why); plan != nullptr) {
          return plan;
        }
      } catch (const CudnnError& error) {
        why = error.message();
      }
    }
    std::string why_by_handle;
    auto plan = loaded(CudnnGpu::by_handle, choose, bind, why_by_handle);
    if (plan == nullptr) {
      if (!why.empty() && why != why_by_handle) {
        why_by_handle = fmt::format("by the GPU's properties {}; by its handle {}", why, why_by_handle);
      }
      write_to_standard_error(fmt::format("shardrun: {} computes {}: {}\n", otherwise, name, why_by_handle));
    } else if (!needs_handle_) {
      needs_handle_ = true;
      write_to_standard_error(
          fmt::format("shardrun: {} computes {} by a plan made with its handle, as all from now on. The plan made with "
                      "the GPU's properties: {}\n",
                      target_->library().name, name, why));
    }
    return plan;
  }

  /// Chooses a plan and loads its kernels. Null if there is no plan or its kernels cannot be loaded; `why` is then the
  /// reason.
  std::shared_ptr<const CudnnPlan> loaded(CudnnGpu described, const Choose& choose, const Bind& bind,
                                          std::string& why) {
    std::shared_ptr<const CudnnPlan> plan = choose(*target_, described);
    if (plan == nullptr) {
      why = fmt::format("{} has no engine for it that keeps our limits", target_->library().name);
      return nullptr;
    }
    const std::shared_ptr<const CudnnDescriptor> memory = bind(*plan);
    try {
      load_kernels(gpu_, [&](cudaStream_t stream) { target_->run(plan->descriptor(), *memory, stream); });
    } catch (const Error& error) {
      why = fmt::format("loading the kernels failed: {}", error.message());
      return nullptr;
    }
    return plan;
  }

  std::shared_ptr<CudnnTarget> target_;
  const Gpu& gpu_;
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<const CudnnPlan>> known_;
  bool needs_handle_ = false;
};

}  // namespace shardrun::device::cuda
