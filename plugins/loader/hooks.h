#pragma once

#include <shardrun/strategy.h>

#include <cstdint>
#include <string>
#include <vector>

#include "plugins/loader/plugin.h"
#include "plugins/loader/request.h"
#include "plugins/loader/strategy.h"

namespace shardrun::plugins {

/// Room of a hook's own.
struct HookBuffer {
  bool whole_numbers = false;  ///< i32, else f32
  std::uint64_t elements = 0;
};

/// A call of the hook's function, or an exchange between buffers by their numbers (sr_exchange).
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

/// The functions of an opened strategy that do what its plan's hooks announce. Used by one thread at a time.
class Hooks {
 public:
  /// Throws Error{plugin} where the strategy lacks a function that the plan needs.
  Hooks(Plugin plugin, StrategyRequest request, const PlanDraft& plan);

  /// What a hook does with `elements` of its tensors on each of `members` ranks. Throws Error{plugin} where it fails or
  /// says what cannot be done.
  [[nodiscard]] HookPlan plan(HookKind kind, std::uint64_t elements, std::uint32_t members) const;

  /// The group, and the job, are filled in here. Throws Error{plugin}.
  void run(HookKind kind, std::uint64_t elements, std::uint32_t members, sr_hook_call call) const;

 private:
  [[nodiscard]] sr_hook_group group(HookKind kind, std::uint64_t elements, std::uint32_t members) const noexcept;

  Plugin plugin_;
  StrategyRequest request_;
  OptionValues options_;
  RequestTables tables_;
  sr_strategy functions_{};
  std::string name_;              ///< "strategy 'x'", before what it says
  std::uint32_t states_[2] = {};  ///< of each kind of hook
};

}  // namespace shardrun::plugins
