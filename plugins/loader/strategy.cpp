#include "plugins/loader/strategy.h"

#include <fmt/format.h>
#include <shardrun/strategy.h>

#include <algorithm>
#include <vector>

#include "core/base/error.h"
#include "plugins/loader/call.h"
#include "plugins/loader/find.h"
#include "plugins/loader/guard.h"
#include "plugins/loader/hooks.h"
#include "plugins/loader/raw_attributes.h"
#include "plugins/loader/recorder.h"
#include "plugins/loader/structs.h"

namespace shardrun::plugins {
namespace {

/// The first ABI minor in which a hook's axis may have a single rank.
constexpr std::uint32_t minor_of_single_members = 8;

/// Removes the hooks along mesh axes of one rank, with a notice. Older plugins do not expect to be called for these.
void leave_out_single_members(plan::Plan& plan, const Manifest& manifest) {
  std::erase_if(plan.hooks, [&](const plan::Hook& hook) {
    const bool is_single = std::ranges::find(plan.mesh, hook.mesh_axis, &plan::MeshAxis::name)->size == 1;
    if (is_single) {
      plan.notices.push_back(fmt::format(
          "strategy {} was built for plugin interface {}.{}: its hook {} is left out, because mesh axis '{}' "
          "has one rank; built again, it is called there, too",
          manifest.name, manifest.abi_major, manifest.abi_minor, to_string(hook.kind), hook.mesh_axis));
    }
    return is_single;
  });
}

/// Calls `step` and returns its result. Puts the prefix before the message of an Error that it throws.
template <class Step>
auto naming(std::string_view prefix, Step step) {
  try {
    return step();
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", prefix, error.message()));
  }
}

}  // namespace

Strategy Strategy::open(const Directories& directories, std::string_view name, LogSink log) {
  Plugin plugin = Plugin::open(directories, PluginKind::strategy, name, std::move(log));
  const std::string what = fmt::format("the function table of {}", plugin.path().string());
  if (read_struct<sr_strategy>(plugin.table().functions, SR_STRATEGY_SIZE_1_0, what).make_plan == nullptr) {
    throw Error(ErrorCode::plugin, fmt::format("{} has no make_plan", what));
  }
  return Strategy(std::move(plugin));
}

bool reads_sharding(const Plugin& strategy) {
  const std::string what = fmt::format("the function table of {}", strategy.path().string());
  const auto functions = read_struct<sr_strategy>(strategy.table().functions, SR_STRATEGY_SIZE_1_0, what);
  return (functions.flags & SR_STRATEGY_READS_SHARDING) != 0;
}

plan::Plan Strategy::make_plan(const StrategyRequest& request) const {
  const std::string name = fmt::format("strategy '{}'", manifest().name);
  const sr_plugin& plugin = plugin_.table();
  const auto functions = read_struct<sr_strategy>(plugin.functions, SR_STRATEGY_SIZE_1_0, name);
  const OptionValues options = naming(name, [&] { return checked_with_defaults(plugin_.options(), request.options); });
  const std::vector<sr_option_value> raw = raw_options(options);
  const sdk::detail::WrittenJob job(request.job, raw_view(raw));
  const sdk::detail::WrittenGraph graph(request.graph);
  PlanRecorder recorder(request);
  try {
    const CallGuard guard(label_of(plugin_), "make_plan", call_limit());
    call_plugin(name, ErrorCode::job, [&](sr_error* error) {
      return functions.make_plan(plugin.self, &job.raw(), &graph.raw(), &recorder.writer(), error);
    });
  } catch (const Error&) {
    if (!recorder.refusal()) {
      throw;
    }
  }
  plan::Plan plan = naming(fmt::format("{} ({}) wrote a plan that cannot be", name, plugin_.path().string()),
                           [&] { return recorder.finish(); });
  plan.strategy = manifest().name;
  if (manifest().abi_minor < minor_of_single_members) {
    leave_out_single_members(plan, manifest());
  }
  return plan;
}

std::shared_ptr<const Hooks> Strategy::hooks(const StrategyRequest& request, const plan::Plan& plan) const {
  return plan.hooks.empty() ? nullptr : std::make_shared<const Hooks>(plugin_, request, plan);
}

}  // namespace shardrun::plugins
