#pragma once

#include <shardrun/sdk/strategy/border.hpp>
#include <shardrun/strategy.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/plan/plan.h"
#include "plugins/loader/plugin.h"
#include "plugins/loader/strategy.h"

namespace shardrun::plugins {

/// The C form of a hook's group. It points into the group, which must outlive it.
class HookTables {
 public:
  explicit HookTables(const plan::HookGroup& group);
  HookTables(const HookTables&) = delete;
  HookTables& operator=(const HookTables&) = delete;

  [[nodiscard]] const plan::HookGroup& group() const noexcept { return group_; }
  [[nodiscard]] const sr_hook_group& raw() const noexcept { return raw_; }

 private:
  const plan::HookGroup& group_;
  std::vector<sr_hook_tensor> tensors_;
  sr_hook_group raw_{};
};

/// The hooks of a plan, as functions of the opened strategy. Only one thread at a time may use it.
class Hooks {
 public:
  /// Throws Error{plugin} if the strategy lacks a function that the plan needs.
  Hooks(Plugin plugin, const StrategyRequest& request, const plan::Plan& plan);

  /// Asks which buffers a hook needs for a group, and which steps it takes. Throws Error{plugin} if the hook fails or
  /// its answer is invalid, Error{job} if it refuses the job.
  [[nodiscard]] plan::HookPlan ask(const plan::HookGroup& group) const;

  /// Runs a hook's function. Fills in the group and the job of `call`. Throws Error{plugin}.
  void run(const HookTables& tables, sr_hook_call call) const;

 private:
  Plugin plugin_;
  sdk::Job given_;
  OptionValues options_;
  std::vector<sr_option_value> raw_options_;
  sdk::detail::WrittenJob job_;
  sr_strategy functions_{};
  std::string name_;  ///< "strategy 'x'", the prefix of messages
};

}  // namespace shardrun::plugins
