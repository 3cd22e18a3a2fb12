#include "core/compile/model.h"

#include <fmt/format.h>
#include <shardrun/model.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "plugins/loader/call.h"

namespace shardrun::compile {
namespace {

/// The constant SR_DATA_... for this kind of data.
std::uint32_t kind_of(const workload::DataShape& data) {
  if (data.features == 0) {
    return data.vocab > 0 ? SR_DATA_TOKENS : 0;
  }
  return data.vocab > 0 ? SR_DATA_LABELS : SR_DATA_ARRAYS;
}

plugins::ModelRequest request_of(const workload::ModelSettings& settings) {
  return {.options = settings.options,
          .data = kind_of(settings.data),
          .vocab = settings.data.vocab,
          .features = settings.data.features,
          .outputs = settings.data.outputs,
          .caches = settings.caches};
}

/// Calls `act` and returns its result. Adds to the plugin's errors the place of the setting that they name.
template <class Act>
auto placing(const workload::ModelSettings& settings, Act act) {
  try {
    return act();
  } catch (const plugins::Invalid& invalid) {
    const std::string& setting = invalid.setting();
    const std::size_t dot = std::min(setting.find('.'), setting.size());
    const std::string section = dot == 0 ? "model" : setting.substr(0, dot);
    workload::refuse(settings, section, setting.substr(std::min(dot + 1, setting.size())), invalid.reason());
  }
}

void require_data(const plugins::Model& plugin, const workload::ModelSettings& settings) {
  const std::uint32_t kind = kind_of(settings.data);
  if (kind != 0 && (plugin.data() & kind) == 0) {
    workload::refuse(settings, "data", "",
                     fmt::format("model {} does not take {}", plugin.manifest().name,
                                 kind == SR_DATA_TOKENS   ? "tokens"
                                 : kind == SR_DATA_LABELS ? "arrays of which the second holds integer labels"
                                                          : "arrays of which the second holds real numbers"));
  }
}

}  // namespace

workload::Model model_of(plugins::Model plugin) {
  workload::Model model{.name = plugin.manifest().name,
                        .help = plugin.help(),
                        .options = plugin.options(),
                        .takes_data = plugin.data() != 0,
                        .takes_tokens = (plugin.data() & SR_DATA_TOKENS) != 0,
                        .takes_arrays = (plugin.data() & (SR_DATA_ARRAYS | SR_DATA_LABELS)) != 0,
                        .takes_labels_alone = plugin.data() == SR_DATA_LABELS};
  model.declare = [plugin](graph::Graph& graph, const workload::ModelSettings& settings) {
    require_data(plugin, settings);
    placing(settings, [&] { plugin.declare(graph, request_of(settings)); });
  };
  const auto write = [plugin](graph::FunctionBuilder& builder, const workload::ModelSettings& settings,
                              std::string_view function, std::int64_t rows, bool training, std::int64_t length) {
    return placing(settings, [&] {
      return plugin.write_function(builder, request_of(settings), function, rows, training, length);
    });
  };
  const auto for_rows = [write](std::string_view function) {
    return [write, function](graph::FunctionBuilder& builder, const workload::ModelSettings& settings,
                             std::int64_t rows) { write(builder, settings, function, rows, false, 0); };
  };
  if (plugin.has("loss")) {
    model.losses = [write](graph::FunctionBuilder& builder, const workload::ModelSettings& settings, std::int64_t rows,
                           bool training) { return write(builder, settings, "loss", rows, training, 0); };
  }
  if (plugin.has("predict")) {
    model.predict = [write](graph::FunctionBuilder& builder, const workload::ModelSettings& settings) {
      write(builder, settings, "predict", 1, false, 0);
    };
  }
  if (plugin.has("decode")) {
    model.decode = [write](graph::FunctionBuilder& builder, const workload::ModelSettings& settings, std::int64_t rows,
                           std::int64_t length) { write(builder, settings, "decode", rows, false, length); };
  }
  if (plugin.has("forward")) {
    model.forward = for_rows("forward");
  }
  if (plugin.has("iterate")) {
    model.iterate = for_rows("iterate");
  }
  if (!plugin.architectures().empty()) {
    model.architectures = plugin.architectures();
    model.read_config = [plugin](const std::vector<sdk::ConfigValue>& config) { return plugin.read_config(config); };
    model.write_config = [plugin](const workload::ModelSettings& settings) {
      return placing(settings, [&] { return plugin.write_config(request_of(settings)); });
    };
    model.tensor_names = [plugin](const graph::Graph& graph, const workload::ModelSettings& settings) {
      return placing(settings, [&] { return plugin.tensor_names(graph, request_of(settings)); });
    };
  }
  return model;
}

workload::Models models_in(plugins::Directories directories) {
  const auto names = [directories] { return plugins::plugin_names(directories, plugins::PluginKind::model); };
  return {.names = names, .find = [directories, names](const std::string& name) -> std::optional<workload::Model> {
            if (!std::ranges::binary_search(names(), name)) {
              return std::nullopt;
            }
            return model_of(plugins::Model::open(directories, name));
          }};
}

}  // namespace shardrun::compile
