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

  /// `library` and `gpu` outlive it. Throws Error{internal} when cuDNN does not start.
  CudnnPlans(const CudnnFunctions& library, const Gpu& gpu) : target_(library, gpu), gpu_(gpu) {}

  /// Enqueues the key's plan, bound to memory of which it reads and writes nothing yet. Any thread may call it. Empty:
  /// `choose` finds none, or its kernels cannot be loaded, which is said on stderr. Throws Error{internal} that begins
  /// with `name`, as the result does.
  [[nodiscard]] Run find(const Key& key, const std::string& name, const Choose& choose, const Bind& bind) {
    gpu_.use();
    const std::lock_guard lock(mutex_);
    if (const auto known = known_.find(key); known != known_.end()) {
      return known->second == nullptr ? nullptr : bound(known->second, name, bind);
    }
    std::shared_ptr<const CudnnPlan> plan;
    Run run;
    with_name(name, [&] { plan = choose(target_); });
    if (plan != nullptr) {
      run = bound(plan, name, bind);
      try {
        load_kernels(gpu_, run);
      } catch (const Error& error) {
        write_to_standard_error(fmt::format(
            "shardrun: loading the kernels of {} failed, so our own kernel computes it: {}\n", name, error.message()));
        plan = nullptr;
        run = nullptr;
      }
    }
    known_.emplace(key, std::move(plan));
    return run;
  }

 private:
  template <class Act>
  static void with_name(const std::string& name, const Act& act) {
    try {
      act();
    } catch (const CudnnError& error) {
      throw Error(error.code(), fmt::format("{}: {}", name, error.message()));
    }
  }

  Run bound(const std::shared_ptr<const CudnnPlan>& plan, const std::string& name, const Bind& bind) {
    std::shared_ptr<const CudnnDescriptor> memory;
    with_name(name, [&] { memory = bind(*plan); });
    return [this, plan, memory, name](cudaStream_t stream) {
      with_name(name, [&] { target_.run(plan->descriptor(), *memory, stream); });
    };
  }

  CudnnTarget target_;
  const Gpu& gpu_;
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<const CudnnPlan>> known_;
};

}  // namespace shardrun::device::cuda
