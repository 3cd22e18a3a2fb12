#include "core/task/strategy_options.h"

#include <fmt/format.h>

#include <cstdlib>

#include "core/base/error.h"
#include "core/models/model.h"

namespace shardrun::task {
namespace {

job::OptionType type_of(const plugins::OptionSpec& spec) {
  switch (spec.type) {
    case plugins::OptionType::boolean: return job::OptionType::boolean;
    case plugins::OptionType::integer: return job::OptionType::integer;
    case plugins::OptionType::number: return job::OptionType::real;
    case plugins::OptionType::text: break;
  }
  return spec.choices.empty() ? job::OptionType::text : job::OptionType::choice;
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
                       .help = spec.help});
  }
  return options;
}

plugins::OptionValue in_plugin_words(const job::OptionValues::Entry& entry, const job::OptionValues& values) {
  switch (entry.type) {
    case job::OptionType::boolean: return values.boolean(entry.name);
    case job::OptionType::integer: return values.integer(entry.name);
    case job::OptionType::real: return values.real(entry.name);
    default: return values.text(entry.name);
  }
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

}  // namespace

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
  };
}

plugins::Strategy open_strategy(const job::Job& job) {
  return plugins::Strategy::open(directories_of(job.plugins.path), job.strategy.name);
}

void add_job(plugins::StrategyRequest& request, const job::Job& job) {
  request.ranks = counted(job, "job", "ranks", job.ranks);
  for (const job::MeshAxis& axis : job.mesh) {
    request.mesh.push_back({axis.name, counted(job, "mesh", axis.name, axis.size)});
  }
  for (const job::OptionValues::Entry& entry : job.strategy.options.entries()) {
    request.options[entry.name] = in_plugin_words(entry, job.strategy.options);
  }
}

}  // namespace shardrun::task
