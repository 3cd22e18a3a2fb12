#pragma once

#include <shardrun/strategy.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plugins/loader/plugin.h"
#include "plugins/loader/request.h"
#include "plugins/loader/strategy.h"

namespace shardrun::plugins {

/// A buffer of a hook's own.
struct HookBuffer {
  bool whole_numbers = false;  ///< i32, otherwise f32
  std::uint64_t elements = 0;
};

/// A call of the hook's function, or an exchange between buffers, by their numbers (sr_exchange).
struct HookStep {
  enum class Kind : std::uint8_t { call, all_reduce, all_gather, reduce_scatter, all_to_all } kind = Kind::call;
  std::uint32_t call = 0;
  std::uint32_t send = 0;
  std::uint32_t receive = 0;
};

/// What a hook does with one group of tensors.
struct HookPlan {
  std::vector<HookBuffer> buffers;
  std::vector<HookStep> steps;
};

/// One of a group's tensors: this rank's part.
struct HookTensor {
  std::string name;
  std::vector<std::int64_t> shape;
};

/// Tensors that a hook processes together, in their C form.
class HookGroup {
 public:
  HookGroup(HookKind kind, std::uint32_t members, std::uint32_t states, std::vector<HookTensor> tensors);
  HookGroup(const HookGroup&) = delete;
  HookGroup& operator=(const HookGroup&) = delete;

  [[nodiscard]] HookKind kind() const noexcept { return kind_; }
  [[nodiscard]] const sr_hook_group& raw() const noexcept { return raw_; }
  /// "hook after_step of w and 3 more", for messages.
  [[nodiscard]] std::string name() const;

 private:
  HookKind kind_;
  std::vector<HookTensor> tensors_;
  std::vector<sr_hook_tensor> raw_tensors_;
  sr_hook_group raw_{};
};

/// The hooks of a plan, as functions of the opened strategy. One thread at a time uses it.
class Hooks {
 public:
  /// Throws Error{plugin} where the strategy lacks a function that the plan needs.
  Hooks(Plugin plugin, StrategyRequest request, const PlanDraft& plan);

  [[nodiscard]] std::shared_ptr<const HookGroup> group(HookKind kind, std::uint32_t members,
                                                       std::vector<HookTensor> tensors) const;

  /// What a hook does with a group. Throws Error{plugin} where it fails or its answer is invalid, Error{job} where it
  /// refuses the job.
  [[nodiscard]] HookPlan plan(const HookGroup& group) const;

  /// Fills in the group and the job. Throws Error{plugin}.
  void run(const HookGroup& group, sr_hook_call call) const;

 private:
  Plugin plugin_;
  StrategyRequest request_;
  OptionValues options_;
  RequestTables tables_;
  sr_strategy functions_{};
  std::string name_;              ///< "strategy 'x'", the prefix of its messages
  std::uint32_t states_[2] = {};  ///< for each kind of hook
};

}  // namespace shardrun::plugins
