#pragma once

#include <shardrun/sdk/strategy/plan.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/options/options.h"
#include "core/plan/plan.h"
#include "plugins/loader/plugin.h"

namespace shardrun::plugins {

struct StrategyRequest {
  sdk::Job job{};
  sdk::Graph graph{};
  OptionValues options{};  ///< used instead of those of `job`; a declared option that is missing here gets its default
};

/// Whether a strategy uses the job's section [sharding].
[[nodiscard]] bool reads_sharding(const Plugin& strategy);

class Hooks;

/// An opened strategy. Copyable. Only one thread at a time may use it.
class Strategy {
 public:
  /// Finds, loads and opens the strategy `name`. Throws Error{plugin}.
  [[nodiscard]] static Strategy open(const Directories& directories, std::string_view name, LogSink log = {});

  [[nodiscard]] const Manifest& manifest() const noexcept { return plugin_.manifest(); }
  [[nodiscard]] const std::vector<OptionSpec>& options() const noexcept { return plugin_.options(); }

  [[nodiscard]] bool reads_sharding() const { return plugins::reads_sharding(plugin_); }

  /// Makes the plan. Throws Error{job} if the strategy cannot split this job, Error{plugin} if the strategy fails or
  /// writes an invalid plan. Both name the plugin and what is wrong.
  [[nodiscard]] plan::Plan make_plan(const StrategyRequest& request) const;

  /// The hooks of the plan that the strategy wrote for this request. They keep the strategy open. Null for a plan
  /// without hooks.
  [[nodiscard]] std::shared_ptr<const Hooks> hooks(const StrategyRequest& request, const plan::Plan& plan) const;

 private:
  explicit Strategy(Plugin plugin) : plugin_(std::move(plugin)) {}

  Plugin plugin_;
};

}  // namespace shardrun::plugins
