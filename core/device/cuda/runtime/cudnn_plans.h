#pragma once

#include <fmt/format.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/standard_error.h"
#include "core/device/cuda/runtime/cudnn_graph.h"
#include "core/device/cuda/runtime/library_op.h"

namespace shardrun::device::cuda {

/// Plans of cuDNN on one GPU, each chosen once, with its kernels loaded. `Key`: what a plan is made for.
template <class Key>
class CudnnPlans {
 public:
  using Run = std::function<void(cudaStream_t stream)>;
  using Choose = std::function<std::shared_ptr<const CudnnPlan>(const CudnnTarget& target)>;
  /// Gives a plan its memory (CudnnPlan::bind).
  using Bind = std::function<std::shared_ptr<const CudnnDescriptor>(const CudnnPlan& plan)>;

  /// `gpu` outlives it.
  CudnnPlans(std::shared_ptr<CudnnTarget> target, const Gpu& gpu) : target_(std::move(target)), gpu_(gpu) {}

  /// Enqueues the key's plan, bound to memory of which it reads and writes nothing yet. Any thread may call it. Empty:
  /// `choose` finds none, or its kernels cannot be loaded. Either is said on stderr, once for a key. Throws
  /// Error{internal} that begins with `name`, as the result does.
  [[nodiscard]] Run find(const Key& key, const std::string& name, const Choose& choose, const Bind& bind) {
    gpu_.use();
    const std::lock_guard lock(mutex_);
    const auto [known, is_new] = known_.try_emplace(key);
    std::shared_ptr<const CudnnPlan>& plan = known->second;
    std::shared_ptr<const CudnnDescriptor> memory;
    try {
      plan = is_new ? choose(*target_) : plan;
      memory = plan == nullptr ? nullptr : bind(*plan);
    } catch (const CudnnError& error) {
      known_.erase(known);
      throw named(error, name);
    }
    if (is_new && !is_loaded(plan.get(), memory.get(), name)) {
      plan = nullptr;
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

  /// Loads a plan's kernels. Says on stderr why there are none.
  bool is_loaded(const CudnnPlan* plan, const CudnnDescriptor* memory, const std::string& name) {
    std::string why = fmt::format("{} has no engine for it that keeps our limits", target_->library().name);
    if (plan != nullptr) {
      try {
        load_kernels(gpu_, [&](cudaStream_t stream) { target_->run(plan->descriptor(), *memory, stream); });
        return true;
      } catch (const Error& error) {
        why = fmt::format("loading the kernels failed: {}", error.message());
      }
    }
    write_to_standard_error(fmt::format("shardrun: our own kernel computes {}: {}\n", name, why));
    return false;
  }

  std::shared_ptr<CudnnTarget> target_;
  const Gpu& gpu_;
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<const CudnnPlan>> known_;
};

}  // namespace shardrun::device::cuda
