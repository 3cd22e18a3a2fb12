#pragma once

/// A strategy as a small C++ class:
///
///     class Rows {
///      public:
///       static std::vector<shardrun::sdk::Option> options();  // may be left out
///       void make_plan(const Job& job, const Graph& graph, PlanWriter& plan) const;
///     };
///     SHARDRUN_EXPORT_STRATEGY(Rows, "rows", "1.0")
///
/// Hooks do what a plan cannot express (strategy/hooks.hpp). A class that reads the job's section [sharding] declares
/// `static constexpr bool reads_sharding = true;`. The class is constructed without arguments or from a Host. make_plan
/// is pure and deterministic (see shardrun/strategy.h). It throws InvalidJob if the user has to change the job; other
/// exceptions fail the job as errors of the plugin. strategy/placements.hpp and strategy/pipeline.hpp have functions
/// from which make_plan can be built.

#include <shardrun/sdk/plugin.hpp>
#include <shardrun/sdk/strategy/border.hpp>
#include <shardrun/sdk/strategy/glob.hpp>
#include <shardrun/sdk/strategy/hooks.hpp>
#include <shardrun/sdk/strategy/pipeline.hpp>
#include <shardrun/sdk/strategy/placements.hpp>
#include <shardrun/sdk/strategy/plan.hpp>
#include <shardrun/strategy.h>

#include <cstdint>

namespace shardrun::sdk {

namespace detail {

template <class Class>
concept StrategyClass = requires(const Class& strategy, const Job& job, const Graph& graph, PlanWriter& plan) {
  strategy.make_plan(job, graph, plan);
};

template <class Class>
[[nodiscard]] constexpr std::uint32_t strategy_flags() noexcept {
  if constexpr (requires { Class::reads_sharding; }) {
    return Class::reads_sharding ? SR_STRATEGY_READS_SHARDING : 0;
  } else {
    return 0;
  }
}

template <StrategyClass Class>
std::int32_t make_plan(void* self, const sr_job* job, const sr_graph* graph, const sr_plan_writer* writer,
                       sr_error* error) noexcept {
  return guarded(error, [&] {
    PlanWriter plan(*writer);
    Instance<Class>::object(self).make_plan(read(*job), read(*graph), plan);
  });
}

using PlanHookFunction = std::int32_t (*)(void* self, const sr_job* job, const sr_hook_group* group,
                                          const sr_hook_writer* writer, sr_error* error);

/// The function that calls plan_hook; null for a class without hooks.
template <class Class>
[[nodiscard]] constexpr PlanHookFunction plan_hook_of() noexcept {
  if constexpr (requires(const Class& strategy, const Job& job, const HookGroup& group, HookWriter& writer) {
                  strategy.plan_hook(job, group, writer);
                }) {
    return [](void* self, const sr_job* job, const sr_hook_group* raw, const sr_hook_writer* writer, sr_error* error) {
      return guarded(error, [&] {
        const HookGroup group = read(*raw);
        HookWriter to(*writer, group);
        Instance<Class>::object(self).plan_hook(read(*job), group, to);
      });
    };
  } else {
    return nullptr;
  }
}

template <StrategyClass Class>
inline constexpr sr_strategy strategy_functions = {sizeof(sr_strategy),
                                                   0,
                                                   make_plan<Class>,
                                                   strategy_flags<Class>(),
                                                   0,
                                                   plan_hook_of<Class>(),
                                                   sync_gradients_of<Class>(),
                                                   after_step_of<Class>()};

}  // namespace detail

}  // namespace shardrun::sdk

/// Exports `Class` as the plugin `plugin_name`. Use it once, at namespace scope. The file is shardrun_strategy_NAME.so.
/// A fourth argument lists the plugin's names in other programs, separated by spaces, as in sr_manifest.
#define SHARDRUN_EXPORT_STRATEGY(Class, plugin_name, plugin_version, ...)                                         \
  SHARDRUN_EXPORT_PLUGIN(Class, SR_KIND_STRATEGY, &shardrun::sdk::detail::strategy_functions<Class>, plugin_name, \
                         plugin_version, "" __VA_ARGS__)
