#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/base/suggest.h"
#include "core/job/convert.h"
#include "core/job/free_sections.h"
#include "core/job/hints.h"
#include "core/job/job.h"
#include "core/job/rules.h"
#include "core/job/schema.h"
#include "core/job/section.h"
#include "core/job/text.h"

namespace shardrun::job {
namespace {

/// Before the name of a transport whose options a section holds.
constexpr std::string_view transport_prefix = "transport.";

/// The section that this one, [NAME.AXIS], says something about an axis for; null: it is no such section.
const Section* section_of_axis(std::string_view name) {
  const auto found = std::find_if(schema().begin(), schema().end(), [&](const Section& section) {
    return !section.of_axis.empty() && name.starts_with(section.name + ".");
  });
  return found == schema().end() ? nullptr : &*found;
}

void check_section_names(const RawJob& raw) {
  std::vector<std::string> names;
  for (const Section& section : schema()) {
    names.push_back(section.name);
  }
  for (const RawSection& section : raw.sections) {
    if (!section.name.starts_with(transport_prefix) && section_of_axis(section.name) == nullptr &&
        std::find(names.begin(), names.end(), section.name) == names.end()) {
      refuse_at(section.where, fmt::format("there is no section [{}]{}; the sections are {}", shown(section.name),
                                           hint_for_section(section.name), fmt::join(names, ", ")));
    }
  }
}

/// Where in `path` the part begins that comes from `text`, which started in `folder`. An absolute text may repeat the
/// folder, as a run's own job.ini does; that part is not counted either.
std::size_t begin_of_given(const std::filesystem::path& path, const std::filesystem::path& text,
                           const std::filesystem::path& folder) {
  const std::string& whole = path.native();
  if (text.is_absolute()) {
    const std::string above = (folder / "").string();
    return whole.starts_with(above) ? above.size() : 0;
  }
  if (path == folder / text) {
    return whole.size() - text.native().size();
  }
  // Each ".." at the beginning has taken a part of the folder away.
  std::filesystem::path rest;
  for (const std::filesystem::path& part : text.lexically_normal()) {
    if (part != "." && part != "..") {
      rest /= part;
    }
  }
  return whole.size() - std::min(whole.size(), rest.native().size());
}

class Reader {
 public:
  Reader(const RawJob& raw, const SchemaProviders* providers) : raw_(raw), providers_(providers) {
    job_.file = raw.file;
    job_.name = raw.name;
  }

  Job read() {
    check_section_names(raw_);
    for (const Section& section : schema()) {
      check_task(section);
      if (section.kind == SectionKind::mesh) {
        read_mesh(raw_, job_);
        resolve_ranks();
      } else if (section.kind == SectionKind::model) {
        read_model(section);
      } else if (section.kind == SectionKind::fixed) {
        read_fixed(section);
      }
    }
    read_cluster_axes();
    choose_output();
    check_mesh(job_);
    check_rules(job_, settings_);
    read_sharding(raw_, job_);
    read_axis_transports(raw_, job_);
    read_strategy();
    read_transports();
    return std::move(job_);
  }

  /// A section whose keys are all of the schema.
  void read_fixed(const Section& section) {
    std::vector<OptionSpec> specs;
    for (const Setting& setting : section.settings) {
      specs.push_back(setting.spec);
    }
    const bool required = !section.task || *section.task == text_of({"job", "task"});
    const OptionValues values = read_options(section.name, fmt::format("[{}]", section.name), specs, required);
    store(section, values);
  }

  const Job& job() const noexcept { return job_; }

 private:
  OptionValues read_options(const std::string& section, const std::string& owner, const std::vector<OptionSpec>& specs,
                            bool required) {
    const RawSection* const given = raw_.find(section);
    const SectionReader reader = {
        .file = raw_.file,
        .name = section,
        .owner = owner,
        .specs = specs,
        .required = required,
        .folder = [&](const OptionSpec& spec, const RawSetting* setting) -> const std::filesystem::path& {
          return folder(section, spec.name, setting);
        },
        .elsewhere = [this] { return all_keys(); }};
    OptionValues values = read_section(reader, given);
    remember(section, given, specs, values);
    return values;
  }

  const std::filesystem::path& folder(std::string_view section, std::string_view key, const RawSetting* setting) const {
    const bool of_schema = !section.starts_with(transport_prefix) && section_of_axis(section) == nullptr;
    const Setting* const setting_of_schema = of_schema ? find_setting(section_named(section), key) : nullptr;
    const bool from_working_folder = setting_of_schema != nullptr && setting_of_schema->from_working_folder;
    if (from_working_folder) {
      return raw_.working_folder;
    }
    return setting != nullptr ? setting->folder : raw_.job_folder;
  }

  /// The keys that the job's sections may have, for an error about one that stands in the wrong section.
  std::vector<KnownKeys> all_keys() const {
    std::vector<KnownKeys> all = known_keys();
    if (providers_ == nullptr) {
      return all;
    }
    const RawSection* const model = raw_.find("model");
    if (const RawSetting* const name = model != nullptr ? model->find("name") : nullptr) {
      if (const auto options = providers_->model_options(name->value)) {
        all.push_back({"model", *options});
      }
    }
    try {
      Job job;
      job.plugins.path = plugin_path(raw_);
      const RawSection* const section = raw_.find("job");
      const RawSetting* const name = section != nullptr ? section->find("strategy") : nullptr;
      const std::string& strategy =
          name != nullptr ? name->value : *find_setting(section_named("job"), "strategy")->spec.default_value;
      if (const auto options = providers_->strategy_options(strategy, job)) {
        all.push_back({"strategy", *options});
      }
    } catch (const Error&) {
      // An error there is not what the message is about.
    }
    return all;
  }

  void remember(const std::string& section, const RawSection* given, const std::vector<OptionSpec>& specs,
                const OptionValues& values) {
    if (given != nullptr) {
      job_.given.push_back({section, "", "", given->where});
    }
    for (const OptionValues::Entry& entry : values.entries()) {
      const auto spec =
          std::find_if(specs.begin(), specs.end(), [&](const OptionSpec& other) { return other.name == entry.name; });
      const std::string text = to_text(*spec, entry.value);
      settings_.push_back({section, entry.name, entry.value, text});
      if (const RawSetting* const setting = given != nullptr ? given->find(entry.name) : nullptr) {
        job_.given.push_back({section, entry.name, text, setting->where});
      }
    }
  }

  void store(const Section& section, const OptionValues& values) {
    for (const OptionValues::Entry& entry : values.entries()) {
      const Setting* const setting = find_setting(section, entry.name);
      setting->store(job_, setting->spec, entry.value);
    }
  }

  /// REQUIRES: the setting is of a section that has been read, and has a value.
  const std::string& text_of(const KeyName& name) const {
    const auto found = std::find_if(settings_.begin(), settings_.end(), [&](const EffectiveSetting& setting) {
      return setting.section == name.section && setting.key == name.key;
    });
    return found->text;
  }

  void check_task(const Section& section) const {
    const RawSection* const given = raw_.find(section.name);
    if (given == nullptr || !section.task || *section.task == text_of({"job", "task"})) {
      return;
    }
    refuse_at(given->where,
              fmt::format("[{}] has no effect with [job] task = {} ({}); remove the section, or set [job] task = {}",
                          section.name, text_of({"job", "task"}),
                          job_.is_given("job", "task") ? job_.where("job", "task") : "the default", *section.task));
  }

  /// `ranks = auto`: as many as the mesh has places; without one as many as there are here.
  void resolve_ranks() {
    if (job_.ranks != 0) {
      return;
    }
    job_.ranks = job_.mesh.empty() ? providers_->automatic_ranks() : places_of_mesh(job_);
    const std::string text = fmt::format("{}", job_.ranks);
    for (GivenSetting& setting : job_.given) {
      if (setting.section == "job" && setting.key == "ranks") {
        setting.value = text;
      }
    }
    for (EffectiveSetting& setting : settings_) {
      if (setting.section == "job" && setting.key == "ranks") {
        setting.value = job_.ranks;
        setting.text = text;
      }
    }
  }

  /// Whether the axes are the mesh's is known once the strategy has said which those are.
  void read_cluster_axes() {
    const Section& cluster = section_named("cluster");
    for (const RawSection& given : raw_.sections) {
      if (section_of_axis(given.name) != &cluster) {
        continue;
      }
      if (raw_.find(cluster.name) == nullptr) {
        refuse_at(given.where, fmt::format("[{}] has no effect without [{}]; remove it, or write [{}] too",
                                           shown(given.name), cluster.name, cluster.name));
      }
      if (!job_.is_given("cluster", "flops") && !job_.is_given("cluster", "measured")) {
        refuse_at(given.where,
                  fmt::format("[{}] has no effect without [cluster] flops or measured; remove it, or set one",
                              shown(given.name)));
      }
      const OptionValues values =
          read_options(given.name, fmt::format("[{}]", shown(given.name)), cluster.of_axis, true);
      job_.cluster.axes.push_back({given.name.substr(cluster.name.size() + 1), values.real("bandwidth"),
                                   values.has("latency") ? values.real("latency") : job_.cluster.latency});
    }
    if (job_.is_given("cluster", "latency") && job_.cluster.bandwidth == 0 && job_.cluster.axes.empty()) {
      refuse_at(job_.where("cluster", "latency"),
                "[cluster] latency has no effect without a bandwidth; remove it, or set [cluster] bandwidth");
    }
  }

  /// The name first: it decides which other keys there are.
  void read_model(const Section& section) {
    const OptionSpec& name_spec = section.settings.front().spec;
    const RawSection* const given = raw_.find(section.name);
    const RawSetting* const name = given != nullptr ? given->find(name_spec.name) : nullptr;
    if (name == nullptr) {
      const std::vector<OptionSpec> specs = {
          {.name = name_spec.name, .type = OptionType::choice, .choices = providers_->model_names()}};
      refuse_missing({.file = raw_.file, .name = section.name, .owner = "[model]", .specs = specs}, given, specs[0]);
    }
    const std::optional<std::vector<OptionSpec>> options = providers_->model_options(name->value);
    if (!options) {
      const std::vector<std::string> known = providers_->model_names();
      refuse_at(name->where, fmt::format("there is no model '{}'{}; the models are {}", shown(name->value),
                                         did_you_mean(name->value, known), fmt::join(known, ", ")));
    }
    std::vector<OptionSpec> specs = {name_spec};
    specs.insert(specs.end(), options->begin(), options->end());
    const std::string owner = fmt::format("the model '{}'", shown(name->value));
    check_declared(owner, specs);
    const OptionValues values = read_options(section.name, owner, specs, true);
    for (const OptionValues::Entry& entry : values.entries()) {
      if (entry.name == name_spec.name) {
        job_.model.name = std::get<std::string>(entry.value);
      } else {
        job_.model.options.add(entry);
      }
    }
  }

  /// Reads a plugin's options. Errors get the place that names the plugin.
  template <class Ask>
  static std::optional<std::vector<OptionSpec>> asked_of(const std::string& where, const Ask& ask) {
    try {
      return ask();
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}: {}", where, error.message()));
    }
  }

  void read_strategy() {
    const std::string& name = job_.strategy.name;
    const std::string where = job_.where("job", "strategy");
    const std::optional<std::vector<OptionSpec>> options =
        asked_of(where, [&] { return providers_->strategy_options(name, job_); });
    if (!options) {
      const std::vector<std::string> known = providers_->strategy_names(job_);
      refuse_at(where, fmt::format("there is no strategy '{}'{}; found were {}. [plugins] path says where else to look",
                                   shown(name), did_you_mean(name, known),
                                   known.empty() ? std::string("none") : fmt::format("{}", fmt::join(known, ", "))));
    }
    const std::string owner = fmt::format("the strategy '{}'", shown(name));
    check_declared(owner, *options);
    job_.strategy.options = read_options("strategy", owner, *options, true);
  }

  void read_transports() {
    if (job_.ranks > 1 || job_.is_given("job", "transport")) {
      add_transport(job_.transport, job_.where("job", "transport"));
    }
    for (const AxisTransport& axis : job_.axis_transports) {
      add_transport(axis.transport, job_.where("transport", axis.axis));
    }
    for (const RawSection& section : raw_.sections) {
      if (!section.name.starts_with(transport_prefix)) {
        continue;
      }
      const std::string name = section.name.substr(transport_prefix.size());
      std::vector<std::string> used;
      for (const Chosen& transport : job_.transports) {
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

  void add_transport(const std::string& name, const std::string& where) {
    const bool known = std::any_of(job_.transports.begin(), job_.transports.end(),
                                   [&](const Chosen& transport) { return transport.name == name; });
    if (!known) {
      read_transport(name, where);
    }
  }

  /// Also reads the transports that it opens.
  void read_transport(const std::string& name, const std::string& where) {
    const std::optional<std::vector<OptionSpec>> options =
        asked_of(where, [&] { return providers_->transport_options(name, job_); });
    if (!options) {
      const std::vector<std::string> known = providers_->transport_names(job_);
      refuse_at(where,
                fmt::format("there is no transport '{}'{}; found were {}. [plugins] path says where else to look",
                            shown(name), did_you_mean(name, known),
                            known.empty() ? std::string("none") : fmt::format("{}", fmt::join(known, ", "))));
    }
    const std::string owner = fmt::format("the transport '{}'", shown(name));
    check_declared(owner, *options);
    const std::string section = std::string(transport_prefix) + name;
    const OptionValues values = read_options(section, owner, *options, true);
    job_.transports.push_back({name, values});
    for (const OptionSpec& option : *options) {
      if (option.names_transport && values.has(option.name)) {
        add_transport(values.text(option.name), job_.where(section, option.name));
      }
    }
  }

  void choose_output() {
    if (job_.is_given("job", "output")) {
      job_.output_given = begin_of_given(job_.output, raw_.find("job")->find("output")->value, raw_.working_folder);
      return;
    }
    if (job_.name == "." || job_.name == "..") {
      refuse_at(job_.file, "no folder of results can be named after this file; set [job] output");
    }
    const OptionSpec spec = {.name = "output", .type = OptionType::path};
    const Place place = {job_.file + " (default)", setting_name("job", "output")};
    job_.output = std::get<std::string>(convert(spec, "runs/" + job_.name, place, raw_.working_folder));
    job_.output_given = job_.output.native().size();
  }

  const RawJob& raw_;
  const SchemaProviders* providers_;
  Job job_;
  std::vector<EffectiveSetting> settings_;
};

}  // namespace

Job parse_job(const RawJob& raw, const SchemaProviders& providers) { return Reader(raw, &providers).read(); }

std::vector<std::filesystem::path> plugin_path(const RawJob& raw) {
  Reader reader(raw, nullptr);
  reader.read_fixed(section_named("plugins"));
  return reader.job().plugins.path;
}

}  // namespace shardrun::job
