#include "core/job/declared_sections.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/base/error.h"
#include "core/base/suggest.h"
#include "core/base/text.h"
#include "core/job/section.h"
#include "core/options/convert.h"

namespace shardrun::job {
namespace {

/// The checked options that a plugin declares. Throws Error{job} if there is no such plugin, and what `options_of`
/// throws, both with `where`, the place of the setting that names the plugin. `kind`: for example "strategy".
std::vector<OptionSpec> plugin_options(
    std::string_view kind, const std::string& name, const std::string& where, const Job& job,
    const std::function<std::optional<std::vector<OptionSpec>>(std::string_view name, const Job& job)>& options_of,
    const std::function<std::vector<std::string>(const Job& job)>& names) {
  std::optional<std::vector<OptionSpec>> options;
  try {
    options = options_of(name, job);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", where, error.message()));
  }
  if (!options) {
    const std::vector<std::string> known = names(job);
    refuse_at(where, fmt::format("there is no {} '{}'{}; found were {}. [plugins] path says where else to look", kind,
                                 shown(name), did_you_mean(name, known),
                                 known.empty() ? std::string("none") : fmt::format("{}", fmt::join(known, ", "))));
  }
  check_declared(fmt::format("the {} '{}'", kind, shown(name)), *options);
  return *options;
}

/// Adds the transport and those that it opens, unless the job has them already.
void add_transport(Reading& reading, const std::string& name, const std::string& where) {
  Job& job = reading.job;
  if (std::any_of(job.transports.begin(), job.transports.end(),
                  [&](const Chosen& transport) { return transport.name == name; })) {
    return;
  }
  const std::vector<OptionSpec> options = plugin_options(
      "transport", name, where, job, reading.providers->transport_options, reading.providers->transport_names);
  const std::string section = std::string(transport_prefix) + name;
  const OptionValues values =
      read_settings(reading, section, fmt::format("the transport '{}'", shown(name)), options, true);
  job.transports.push_back({name, values});
  for (const OptionSpec& option : options) {
    if (option.names_transport && values.has(option.name)) {
      add_transport(reading, values.text(option.name), job.where(section, option.name));
    }
  }
}

}  // namespace

void read_model(Reading& reading, const Section& section) {
  const OptionSpec& name_spec = section.settings.front().spec;
  const RawSection* const given = reading.raw.find(section.name);
  const RawSetting* const name = given != nullptr ? given->find(name_spec.name) : nullptr;
  if (name == nullptr) {
    const std::vector<OptionSpec> specs = {
        {.name = name_spec.name, .type = OptionType::choice, .choices = reading.providers->model_names(reading.job)}};
    refuse_missing({.file = reading.raw.file, .name = section.name, .owner = "[model]", .specs = specs}, given,
                   specs[0]);
  }
  const std::vector<OptionSpec> options = plugin_options(
      "model", name->value, name->where, reading.job, reading.providers->model_options, reading.providers->model_names);
  std::vector<OptionSpec> specs;
  for (const Setting& setting : section.settings) {
    specs.push_back(setting.spec);
  }
  specs.insert(specs.end(), options.begin(), options.end());
  const std::string owner = fmt::format("the model '{}'", shown(name->value));
  check_declared(owner, specs);
  const OptionValues values = read_settings(reading, section.name, owner, specs, true);
  for (const OptionValues::Entry& entry : values.entries()) {
    if (entry.name == name_spec.name) {
      reading.job.model.name = std::get<std::string>(entry.value);
    } else if (entry.name == "from") {
      reading.job.weights = std::get<std::string>(entry.value);
    } else {
      reading.job.model.options.set(entry.name, entry.value);
    }
  }
}

void read_engine(Reading& reading) {
  Job& job = reading.job;
  const std::string& name = job.engine.name;
  const std::vector<OptionSpec> options =
      plugin_options("engine", name, job.where("job", "engine"), job, reading.providers->engine_options,
                     reading.providers->engine_names);
  job.engine.options = read_settings(reading, "engine", fmt::format("the engine '{}'", shown(name)), options, true);
}

void read_strategy(Reading& reading) {
  Job& job = reading.job;
  const std::string& name = job.strategy.name;
  const std::vector<OptionSpec> options =
      plugin_options("strategy", name, job.where("job", "strategy"), job, reading.providers->strategy_options,
                     reading.providers->strategy_names);
  job.strategy.options =
      read_settings(reading, "strategy", fmt::format("the strategy '{}'", shown(name)), options, true);
}

void read_transports(Reading& reading) {
  const Job& job = reading.job;
  const auto add = [&](const std::string& name, const std::string& where) {
    for (const std::string& each :
         name == automatic ? reading.providers->automatic_transports(job) : std::vector<std::string>{name}) {
      add_transport(reading, each, where);
    }
  };
  if (job.ranks > 1 || job.is_given("job", "transport")) {
    add(job.transport, job.where("job", "transport"));
  }
  for (const AxisTransport& axis : job.axis_transports) {
    add(axis.transport, job.where("transport", axis.axis));
  }
  for (const RawSection& section : reading.raw.sections) {
    if (!section.name.starts_with(transport_prefix)) {
      continue;
    }
    const std::string name = section.name.substr(transport_prefix.size());
    std::vector<std::string> used;
    for (const Chosen& transport : job.transports) {
      used.push_back(transport.name);
    }
    if (std::find(used.begin(), used.end(), name) == used.end()) {
      refuse_at(
          section.where,
          fmt::format("[{}] has no effect: the job does not use that transport{}; remove the section, or name the "
                      "transport in [job] transport, in [transport], or in an option of one that wraps others",
                      shown(section.name), did_you_mean(name, used)));
    }
  }
}

}  // namespace shardrun::job
