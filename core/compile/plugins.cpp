#include "core/compile/plugins.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "core/base/error.h"
#include "core/base/suggest.h"
#include "core/device/cores.h"
#include "core/files/text_file.h"
#include "core/job/section.h"
#include "core/models/model.h"

namespace shardrun::compile {
namespace {

job::OptionType type_of(const plugins::OptionSpec& spec) {
  switch (spec.type) {
    case plugins::OptionType::boolean: return job::OptionType::boolean;
    case plugins::OptionType::integer: return job::OptionType::integer;
    case plugins::OptionType::number: return job::OptionType::real;
    case plugins::OptionType::text: break;
  }
  if (spec.choices.empty()) {
    return job::OptionType::text;
  }
  return spec.file ? job::OptionType::choice_or_path : job::OptionType::choice;
}

std::optional<double> limit(const std::optional<plugins::OptionValue>& value) {
  if (!value) {
    return std::nullopt;
  }
  if (const auto* integer = std::get_if<std::int64_t>(&*value)) {
    return static_cast<double>(*integer);
  }
  const auto* real = std::get_if<double>(&*value);
  return real == nullptr ? std::nullopt : std::optional<double>(*real);
}

std::vector<job::OptionSpec> in_job_words(const std::vector<plugins::OptionSpec>& specs) {
  std::vector<job::OptionSpec> options;
  for (const plugins::OptionSpec& spec : specs) {
    options.push_back({.name = spec.name,
                       .type = type_of(spec),
                       .default_value = plugins::to_string(spec.default_value),
                       .minimum = limit(spec.minimum),
                       .maximum = limit(spec.maximum),
                       .choices = spec.choices,
                       .help = spec.help,
                       .names_transport = spec.transport,
                       .aliases = {spec.aliases.begin(), spec.aliases.end()}});
  }
  return options;
}

/// The file that stands where a choice may.
plugins::TextFile read_file(const std::string& path, const plugins::OptionSpec& spec, const std::string& setting) {
  constexpr std::size_t most = std::size_t{16} << 20U;
  try {
    return {path, files::read_text_file(path, most)};
  } catch (const Error& error) {
    throw Error(ErrorCode::job,
                fmt::format("{}: {}; expected one of {}{}, or a text file of up to 16 MiB", setting, error.message(),
                            fmt::join(spec.choices, ", "),
                            did_you_mean(std::filesystem::path(path).filename().string(), spec.choices)));
  }
}

plugins::OptionValue in_plugin_words(const job::OptionValues::Entry& entry, const job::OptionValues& values) {
  switch (entry.type) {
    case job::OptionType::boolean: return values.boolean(entry.name);
    case job::OptionType::integer: return values.integer(entry.name);
    case job::OptionType::real: return values.real(entry.name);
    default: return values.text(entry.name);
  }
}

/// `setting`: how an option is called in messages, with its place.
plugins::OptionValues plugin_options(const job::OptionValues& values, const std::vector<plugins::OptionSpec>& specs,
                                     const std::function<std::string(const std::string& name)>& setting) {
  plugins::OptionValues options;
  for (const job::OptionValues::Entry& entry : values.entries()) {
    if (entry.type == job::OptionType::path) {
      const auto spec = std::ranges::find(specs, entry.name, &plugins::OptionSpec::name);
      options[entry.name] = read_file(values.text(entry.name), *spec, setting(entry.name));
    } else {
      options[entry.name] = in_plugin_words(entry, values);
    }
  }
  return options;
}

plugins::OptionValues plugin_options(const job::Job& job, const std::string& section, const job::OptionValues& values,
                                     const std::vector<plugins::OptionSpec>& specs) {
  return plugin_options(values, specs, [&](const std::string& name) {
    return fmt::format("{}: [{}] {}", job.where(section, name), section, name);
  });
}

/// A number of ranks as the border has it.
std::uint32_t counted(const job::Job& job, std::string_view section, std::string_view key, std::int64_t number) {
  constexpr std::int64_t most = std::int64_t{1} << 24;
  if (number > most) {
    throw Error(ErrorCode::job,
                fmt::format("{}: [{}] {} = {}: at most {} ranks", job.where(section, key), section, key, number, most));
  }
  return static_cast<std::uint32_t>(number);
}

/// What the job says to a transport.
plugins::OptionValues transport_options(const job::Job& job, const std::string& name,
                                        const std::vector<plugins::OptionSpec>& specs) {
  const auto chosen = std::ranges::find(job.transports, name, &job::Chosen::name);
  return chosen == job.transports.end() ? plugins::OptionValues()
                                        : plugin_options(job, "transport." + chosen->name, chosen->options, specs);
}

/// Before any process starts: what it refuses is the job's fault.
void configure(const job::Job& job, plugins::Transport& transport) {
  const std::string& name = transport.manifest().name;
  plugins::OptionValues options = transport_options(job, name, transport.options());
  try {
    transport.configure({.options = std::move(options),
                         .world_size = static_cast<std::uint32_t>(job.ranks),
                         .options_of = [&job](const std::string& wrapped) {
                           return transport_options(
                               job, wrapped,
                               plugins::Transport::load(directories_of(job.plugins.path), wrapped).options());
                         }});
  } catch (const Error& error) {
    const std::string section = "transport." + name;
    const std::string where = job.is_given(section, "") ? job.where(section, "") : place_of_transport(job, name);
    throw Error(ErrorCode::job, fmt::format("{}: {}", where, error.message()));
  }
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
      .model_options = [](std::string_view name) -> std::optional<std::vector<job::OptionSpec>> {
        const models::Model* model = models::find_model(name);
        return model == nullptr ? std::nullopt : std::optional(model->options);
      },
      .model_names = models::model_names,
      .strategy_options = [](std::string_view name,
                             const job::Job& job) -> std::optional<std::vector<job::OptionSpec>> {
        return in_job_words(plugins::Strategy::open(directories_of(job.plugins.path), name).options());
      },
      .strategy_names =
          [](const job::Job& job) {
            return plugins::plugin_names(directories_of(job.plugins.path), plugins::PluginKind::strategy);
          },
      .transport_options = [](std::string_view name,
                              const job::Job& job) -> std::optional<std::vector<job::OptionSpec>> {
        return in_job_words(plugins::Transport::load(directories_of(job.plugins.path), name).options());
      },
      .transport_names =
          [](const job::Job& job) {
            return plugins::plugin_names(directories_of(job.plugins.path), plugins::PluginKind::transport);
          },
      .automatic_ranks = [] { return device::usable_cores(); },
  };
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
  request.ranks = counted(job, "job", "ranks", job.ranks);
  for (const job::MeshAxis& axis : job.mesh) {
    request.mesh.push_back({axis.name, counted(job, "mesh", axis.name, axis.size)});
  }
  request.options = plugin_options(job, "strategy", job.strategy.options, strategy.options());
  for (const job::Sharding& line : job.sharding) {
    request.sharding.push_back({line.key, line.value, job.where("sharding", line.key)});
  }
}

std::string strategy_files(const job::Job& job) {
  std::string files;
  for (const job::OptionValues::Entry& entry : job.strategy.options.entries()) {
    if (entry.type == job::OptionType::path) {
      files += fmt::format("{}: [strategy] {} = {}: ", job.where("strategy", entry.name), entry.name,
                           job.strategy.options.text(entry.name));
    }
  }
  return files;
}

plugins::Transport load_transport(const job::Job& job, const std::string& name) {
  plugins::Transport transport = plugins::Transport::load(directories_of(job.plugins.path), name);
  configure(job, transport);
  return transport;
}

runtime::TransportSet load_transports(const job::Job& job, const mesh::Mesh& mesh) {
  for (const job::AxisTransport& each : job.axis_transports) {
    const mesh::AxisId found = mesh.find(each.axis);
    if (found < 0) {
      std::vector<std::string> axes;
      for (const mesh::Axis& axis : mesh.axes) {
        axes.push_back(axis.name);
      }
      throw Error(ErrorCode::job,
                  fmt::format("{}: the mesh has no axis '{}'{}; it has {}", job.where("transport", each.axis),
                              each.axis, did_you_mean(each.axis, axes),
                              axes.empty() ? std::string("none") : fmt::format("{}", fmt::join(axes, ", "))));
    }
    if (mesh.axes[static_cast<std::size_t>(found)].size == 1) {
      throw Error(
          ErrorCode::job,
          fmt::format("{}: [transport] {} = {} has no effect: the axis has one rank, so nothing moves along it; "
                      "remove the line, or give the axis more ranks",
                      job.where("transport", each.axis), each.axis, each.transport));
    }
  }
  runtime::TransportSet set{.in_order = job.deterministic};
  std::vector<std::string> names;
  for (const mesh::Axis& axis : mesh.axes) {
    if (axis.size == 1) {
      set.of_axis.push_back(0);
      continue;
    }
    std::string name = job.transport;
    for (const job::AxisTransport& each : job.axis_transports) {
      name = each.axis == axis.name ? each.transport : name;
    }
    const auto known = std::find(names.begin(), names.end(), name);
    set.of_axis.push_back(static_cast<std::size_t>(known - names.begin()));
    if (known == names.end()) {
      set.transports.push_back(load_transport(job, name));
      names.push_back(name);
      if (!set.transports.back().props().moves_host_memory) {
        throw Error(ErrorCode::job, fmt::format("{}: transport {} does not move host memory, where this job's tensors "
                                                "are: choose another ('shardrun plugins' lists them)",
                                                place_of_transport(job, name), name));
      }
    }
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
  const std::vector<job::OptionSpec> specs = in_job_words(transport.options());
  const job::OptionValues values = job::read_section(
      {.file = "--set", .name = section.name, .owner = fmt::format("the transport '{}'", name), .specs = specs},
      &section);
  plugins::OptionValues options = plugin_options(values, transport.options(), place);
  try {
    transport.configure({.options = std::move(options), .world_size = ranks, .options_of = [](const std::string&) {
                           return plugins::OptionValues();
                         }});
  } catch (const Error& error) {
    throw Error(ErrorCode::job,
                fmt::format("{}transport.{}: {}", settings.empty() ? "" : "--set ", name, error.message()));
  }
  return transport;
}

}  // namespace shardrun::compile
