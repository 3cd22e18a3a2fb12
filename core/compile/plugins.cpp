#include "core/compile/plugins.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <shardrun/model.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <utility>

#include "core/base/error.h"
#include "core/base/suggest.h"
#include "core/checkpoint/given_weights.h"
#include "core/checkpoint/resume.h"
#include "core/checkpoint/weights.h"
#include "core/compile/cluster.h"
#include "core/compile/compile.h"
#include "core/compile/model.h"
#include "core/files/mapped_file.h"
#include "core/job/section.h"
#include "core/runtime/device_queue.h"
#include "plugins/loader/engine.h"

namespace shardrun::compile {
namespace {

/// The option values, with the names of files replaced by their contents. `setting`: returns an option's name and
/// place, for messages.
OptionValues with_contents(OptionValues values, const std::vector<OptionSpec>& specs,
                           const std::function<std::string(const std::string& name)>& setting) {
  constexpr std::size_t most = std::size_t{16} << 20U;
  const std::vector<OptionValues::Entry> entries = values.entries();
  for (const auto& [name, value] : entries) {
    const auto* const file = std::get_if<OptionFile>(&value);
    if (file == nullptr) {
      continue;
    }
    try {
      values.set(name, OptionFile{file->path, files::read_text_file(file->path, most)});
    } catch (const Error& error) {
      const std::vector<std::string>& choices = std::ranges::find(specs, name, &OptionSpec::name)->choices;
      throw Error(ErrorCode::job,
                  fmt::format("{}: {}; expected one of {}{}, or a text file of up to 16 MiB", setting(name),
                              error.message(), fmt::join(choices, ", "),
                              did_you_mean(std::filesystem::path(file->path).filename().string(), choices)));
    }
  }
  return values;
}

OptionValues with_contents(const job::Job& job, const std::string& section, const OptionValues& values,
                           const std::vector<OptionSpec>& specs) {
  return with_contents(values, specs, [&](const std::string& name) {
    return fmt::format("{}: [{}] {}", job.where(section, name), section, name);
  });
}

/// A number of ranks, converted to the type in the plugin interface.
std::uint32_t counted(const job::Job& job, std::string_view section, std::string_view key, std::int64_t number) {
  constexpr std::int64_t most = std::int64_t{1} << 24;
  if (number > most) {
    throw Error(ErrorCode::job,
                fmt::format("{}: [{}] {} = {}: at most {} ranks", job.where(section, key), section, key, number, most));
  }
  return static_cast<std::uint32_t>(number);
}

/// The options that the job gives to a transport.
OptionValues transport_options(const job::Job& job, const std::string& name, const std::vector<OptionSpec>& specs) {
  const auto chosen = std::ranges::find(job.transports, name, &job::Chosen::name);
  return chosen == job.transports.end() ? OptionValues()
                                        : with_contents(job, "transport." + chosen->name, chosen->options, specs);
}

/// Configures a transport. Its refusal is an error of the job, because no process has started yet.
void configure(const job::Job& job, plugins::Transport& transport) {
  const std::string& name = transport.manifest().name;
  OptionValues options = transport_options(job, name, transport.options());
  try {
    transport.configure({.options = std::move(options),
                         .world_size = static_cast<std::uint32_t>(job.ranks),
                         .options_of =
                             [&job](const std::string& wrapped) {
                               return transport_options(
                                   job, wrapped,
                                   plugins::Transport::load(directories_of(job.plugins.path), wrapped).options());
                             },
                         .checked = job.checks.transfers});
  } catch (const Error& error) {
    const std::string section = "transport." + name;
    const std::string where = job.is_given(section, "") ? job.where(section, "") : place_of_transport(job, name);
    throw Error(ErrorCode::job, fmt::format("{}: {}", where, error.message()));
  }
}

std::vector<std::string> automatic_transports(const job::Job& job) {
  const plugins::Directories directories = directories_of(job.plugins.path);
  std::vector<std::string> names = plugins::plugin_names(directories, plugins::PluginKind::transport);
  std::erase_if(names, [&](const std::string& name) {
    const plugins::Transport transport = plugins::Transport::load(directories, name);
    // A transport that wraps another one has the flags of the inner one, so it must not be chosen.
    return !transport.props().has(SR_TRANSPORT_AUTOMATIC) ||
           std::ranges::any_of(transport.options(), &OptionSpec::names_transport);
  });
  return names;
}

std::filesystem::path checkpoint_to_resume(const job::Job& job) {
  std::vector<std::string> notices;  // dropped here: the run chooses the checkpoint again, and reports them
  return job.checkpoints.used ? checkpoint::checkpoint_to_resume(job, notices) : std::filesystem::path();
}

}  // namespace

std::string place_of_transport(const job::Job& job, const std::string& name) {
  const auto axis = std::ranges::find(job.axis_transports, name, &job::AxisTransport::transport);
  return axis != job.axis_transports.end() && name != job.transport ? job.where("transport", axis->axis)
                                                                    : job.where("job", "transport");
}

plugins::Directories directories_of(const std::vector<std::filesystem::path>& configured) {
  return plugins::plugin_directories(configured, std::getenv("SHARDRUN_PLUGIN_PATH"));
}

job::SchemaProviders schema_providers() {
  return {
      .model_options = [](std::string_view name, const job::Job& job) -> std::optional<std::vector<OptionSpec>> {
        return plugins::Model::open(directories_of(job.plugins.path), name).options();
      },
      .model_names =
          [](const job::Job& job) {
            return plugins::plugin_names(directories_of(job.plugins.path), plugins::PluginKind::model);
          },
      .model_of_weights =
          [](const std::filesystem::path& weights, const job::Job& job) {
            const checkpoint::GivenWeights given(weights, models_in(directories_of(job.plugins.path)));
            return checkpoint::job_of(given.source()).sections.at(0).settings;
          },
      .checkpoint_to_resume = checkpoint_to_resume,
      .strategy_options = [](std::string_view name, const job::Job& job) -> std::optional<std::vector<OptionSpec>> {
        return plugins::Strategy::open(directories_of(job.plugins.path), name).options();
      },
      .strategy_names =
          [](const job::Job& job) {
            return plugins::plugin_names(directories_of(job.plugins.path), plugins::PluginKind::strategy);
          },
      .transport_options = [](std::string_view name, const job::Job& job) -> std::optional<std::vector<OptionSpec>> {
        return plugins::Transport::load(directories_of(job.plugins.path), name).options();
      },
      .transport_names =
          [](const job::Job& job) {
            return plugins::plugin_names(directories_of(job.plugins.path), plugins::PluginKind::transport);
          },
      .engine_options = [](std::string_view name, const job::Job& job) -> std::optional<std::vector<OptionSpec>> {
        return plugins::Engine::open(directories_of(job.plugins.path), name).options();
      },
      .engine_names =
          [](const job::Job& job) {
            return plugins::plugin_names(directories_of(job.plugins.path), plugins::PluginKind::engine);
          },
      .automatic_transports = automatic_transports,
      .automatic_ranks = ranks_of_machine,
  };
}

namespace {

/// Throws Error{job} unless the model declares the options by which a job sets the sizes of samples and vocabulary.
void require_options_for_tokens(const job::Job& job, const plugins::Model& model) {
  const auto require = [&](const char* option, const char* key, const char* meaning) {
    if (std::ranges::find(model.options(), option, &OptionSpec::name) == model.options().end()) {
      throw Error(
          ErrorCode::job,
          fmt::format("{}: [data] {}: model {} is trained on tokens and has no option '{}', by which a job says "
                      "{}: its author has to declare that, as integer_option(\"{}\", …)",
                      job.where("data", key), key, job.model.name, option, meaning, option));
    }
  };
  const bool is_text = !job.data.text.empty();
  if (job.task != job::Task::train || (!is_text && job.data.tokens.empty()) || (model.data() & SR_DATA_TOKENS) == 0) {
    return;
  }
  require("context", is_text ? "text" : "tokens", "how many tokens a sample has");
  if (!is_text) {
    require("vocab", "tokens", "how many distinct tokens there are");
  }
}

}  // namespace

workload::Model open_model(const job::Job& job) {
  plugins::Model model = plugins::Model::open(directories_of(job.plugins.path), job.model.name);
  require_options_for_tokens(job, model);
  return model_of(std::move(model));
}

plugins::Strategy open_strategy(const job::Job& job) {
  plugins::Strategy strategy = plugins::Strategy::open(directories_of(job.plugins.path), job.strategy.name);
  if (!job.sharding.empty() && !strategy.reads_sharding()) {
    throw Error(ErrorCode::job, fmt::format("{}: [sharding] has no effect with [job] strategy = {}, which splits by "
                                            "rules of its own: remove the section, or choose a strategy that reads it "
                                            "('shardrun plugins' lists them)",
                                            job.where("sharding", ""), job.strategy.name));
  }
  return strategy;
}

void add_job(plugins::StrategyRequest& request, const job::Job& job, const plugins::Strategy& strategy) {
  request.job.ranks = counted(job, "job", "ranks", job.ranks);
  for (const job::MeshAxis& axis : job.mesh) {
    request.job.mesh.push_back({axis.name, counted(job, "mesh", axis.name, axis.size)});
  }
  request.options = with_contents(job, "strategy", job.strategy.options, strategy.options());
  for (const job::Sharding& line : job.sharding) {
    request.job.sharding.push_back({line.key, line.value, job.where("sharding", line.key)});
  }
}

std::string strategy_files(const job::Job& job) {
  std::string files;
  for (const OptionValues::Entry& entry : job.strategy.options.entries()) {
    if (std::holds_alternative<OptionFile>(entry.value)) {
      files += fmt::format("{}: [strategy] {} = {}: ", job.where("strategy", entry.name), entry.name,
                           job.strategy.options.text(entry.name));
    }
  }
  return files;
}

bool chooses_transports(const job::Job& job) {
  return job.transport == job::automatic ||
         std::ranges::any_of(job.axis_transports,
                             [](const job::AxisTransport& axis) { return axis.transport == job::automatic; });
}

plugins::Transport load_transport(const job::Job& job, const std::string& name) {
  plugins::Transport transport = plugins::Transport::load(directories_of(job.plugins.path), name);
  configure(job, transport);
  return transport;
}

namespace {

/// Throws Error{job} if a transport moves neither host memory nor the device's memory.
void require_memory(const job::Job& job, const device::Device& device, const plugins::Transport& transport) {
  const sdk::Props props = transport.props();
  if (!props.moves(SR_MEMORY_HOST) && !runtime::moves_memory_of(device, props)) {
    const std::string& name = transport.manifest().name;
    throw Error(ErrorCode::job,
                device.is_addressable()
                    ? fmt::format("{}: transport {} does not move host memory, where this job's tensors are: choose "
                                  "another ('shardrun plugins' lists them)",
                                  place_of_transport(job, name), name)
                    : fmt::format("{}: transport {} moves neither host memory nor that of device {} in its queues, "
                                  "where this job's tensors are: choose another ('shardrun plugins' lists them)",
                                  place_of_transport(job, name), name, device.name()));
  }
}

}  // namespace

std::int64_t ranks_per_machine(const job::Job& job) {
  return job.machine_ranks > 0               ? job.machine_ranks
         : job.cluster.ranks_per_machine > 0 ? job.cluster.ranks_per_machine
                                             : job.ranks;
}

namespace {

/// Whether each group of ranks along the axis is on one machine.
bool is_within_machines(const job::Job& job, const mesh::Mesh& mesh, mesh::AxisId axis) {
  const std::int64_t shared = ranks_per_machine(job);
  for (std::int64_t rank = 0; rank < mesh.ranks(); ++rank) {
    const std::vector<std::int64_t> group = mesh::line_through(mesh, axis, rank);
    if (std::ranges::any_of(group, [&](std::int64_t other) { return other / shared != rank / shared; })) {
      return false;
    }
  }
  return true;
}

/// The transport that `transport = auto` chooses for an axis. Throws Error{job} if none is suitable.
std::string choose_transport(const job::Job& job, const mesh::Mesh& mesh, mesh::AxisId axis,
                             const device::Device& device) {
  const plugins::Directories directories = directories_of(job.plugins.path);
  const bool is_within = is_within_machines(job, mesh, axis);
  std::string chosen;
  int best = 0;
  for (const std::string& name : automatic_transports(job)) {
    const sdk::Props props = plugins::Transport::load(directories, name).props();
    const bool is_of_machine = props.has(SR_TRANSPORT_SAME_HOST);
    const bool moves_device = runtime::moves_memory_of(device, props);
    const int suits = (is_of_machine && !is_within) || (!moves_device && !props.moves(SR_MEMORY_HOST)) ? 0
                      : moves_device && !device.is_addressable()                                       ? 3
                      : is_of_machine                                                                  ? 2
                                                                                                       : 1;
    if (suits <= best) {
      continue;
    }
    try {
      static_cast<void>(load_transport(job, name));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::job && error.code() != ErrorCode::plugin) {
        throw;
      }
      continue;  // the transport does not work here: a library may be missing
    }
    chosen = name;
    best = suits;
  }
  if (chosen.empty()) {
    throw Error(
        ErrorCode::job,
        fmt::format("{}: [job] transport = auto: no transport that was found moves this job's tensors along mesh "
                    "axis {}, whose ranks are on {}: name one ('shardrun plugins' lists them)",
                    job.where("job", "transport"), mesh.axes[axis].name,
                    is_within ? "one machine" : "several machines"));
  }
  return chosen;
}

}  // namespace

runtime::TransportSet load_transports(const job::Job& job, const mesh::Mesh& mesh, const device::Device& device) {
  for (const job::AxisTransport& each : job.axis_transports) {
    require_axis(mesh, each.axis, job.where("transport", each.axis));
    if (mesh.size(mesh.find(each.axis)) == 1) {
      throw Error(
          ErrorCode::job,
          fmt::format("{}: [transport] {} = {} has no effect: the axis has one rank, so nothing moves along it; "
                      "remove the line, or give the axis more ranks",
                      job.where("transport", each.axis), each.axis, each.transport));
    }
  }
  runtime::TransportSet set{.in_order = job.deterministic, .checked = job.checks.transfers};
  if (const device::DeviceApart* const apart = device::apart(device)) {
    set.device_memory = runtime::kinds_of(*apart).memory;
  }
  std::vector<std::string> names;
  for (const mesh::AxisId id : mesh.axes.ids()) {
    const mesh::Axis& axis = mesh.axes[id];
    if (axis.size == 1) {
      set.of_axis.push_back(0);
      set.moves_device_memory.push_back(false);
      continue;
    }
    std::string name = job.transport;
    for (const job::AxisTransport& each : job.axis_transports) {
      name = each.axis == axis.name ? each.transport : name;
    }
    name = name == job::automatic ? choose_transport(job, mesh, id, device) : name;
    const auto known = std::find(names.begin(), names.end(), name);
    set.of_axis.push_back(static_cast<std::size_t>(known - names.begin()));
    if (known == names.end()) {
      set.transports.push_back(load_transport(job, name));
      names.push_back(name);
      require_memory(job, device, set.transports.back());
    }
    set.moves_device_memory.push_back(runtime::moves_memory_of(device, set.transports[set.of_axis.back()].props()));
  }
  return set;
}

plugins::Transport load_transport(const plugins::Directories& directories, const std::string& name,
                                  const std::vector<std::pair<std::string, std::string>>& settings,
                                  std::uint32_t ranks) {
  plugins::Transport transport = plugins::Transport::load(directories, name);
  const auto place = [&](const std::string& key) { return fmt::format("--set transport.{}.{}", name, key); };
  job::RawSection section = {.name = "transport." + name, .where = "--set", .settings = {}};
  for (const auto& [key, value] : settings) {
    section.settings.push_back({key, value, place(key)});
  }
  const OptionValues values = job::read_section({.file = "--set",
                                                 .name = section.name,
                                                 .owner = fmt::format("the transport '{}'", name),
                                                 .specs = transport.options()},
                                                &section);
  OptionValues options = with_contents(values, transport.options(), place);
  try {
    transport.configure({.options = std::move(options), .world_size = ranks, .options_of = [](const std::string&) {
                           return OptionValues();
                         }});
  } catch (const Error& error) {
    throw Error(ErrorCode::job,
                fmt::format("{}transport.{}: {}", settings.empty() ? "" : "--set ", name, error.message()));
  }
  return transport;
}

}  // namespace shardrun::compile
