#include "core/conformance/model_member.h"

#include <fmt/format.h>
#include <shardrun/model.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "core/base/error.h"
#include "core/compile/model.h"
#include "core/conformance/conformance.h"
#include "core/conformance/plugin_options.h"
#include "core/options/convert.h"
#include "core/options/options.h"
#include "plugins/loader/find.h"

namespace shardrun::conformance {
namespace {

constexpr const char* data_settings[] = {"data.vocab", "data.features", "data.outputs"};

/// Numbers of features that are tried until the model accepts one. 784 and 3072 are those of MNIST and CIFAR images.
constexpr std::int64_t feature_counts[] = {5, 12, 64, 784, 3072};

std::vector<workload::DataShape> shapes_of(std::uint32_t data) {
  if (data == SR_DATA_TOKENS) {
    return {{.vocab = 11}};
  }
  if (data == 0) {
    return {{}};
  }
  std::vector<workload::DataShape> shapes;
  for (const std::int64_t features : feature_counts) {
    shapes.push_back(data == SR_DATA_LABELS ? workload::DataShape{.vocab = 3, .features = features}
                                            : workload::DataShape{.features = features, .outputs = 3});
  }
  return shapes;
}

std::int64_t microbatches(const ModelJob& job) { return std::min<std::int64_t>(job.batch, 2); }
std::int64_t eval_rows(const ModelJob& job) { return std::min<std::int64_t>(job.batch, 2); }
std::int64_t eval_samples(const ModelJob& job) { return std::min<std::int64_t>(job.batch, 3); }

workload::TrainingSettings training(const plugins::Model& model, const ModelJob& job) {
  return {.batch = job.batch,
          .microbatches = microbatches(job),
          .eval_rows = eval_rows(job),
          .eval_samples = eval_samples(job),
          .predict = model.has("predict"),
          .optimizer = {.weight_decay = 0.1, .clip = 1}};
}

/// The number in a setting such as "data.features=784". Throws Error{usage} unless it is from 1 to 2^24.
std::int64_t size_from(const std::string& setting) {
  const std::string text = setting.substr(std::min(setting.find('=') + 1, setting.size()));
  std::int64_t size = 0;
  const auto [rest, problem] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (problem != std::errc() || rest != text.data() + text.size() || size < 1 || size > 1 << 24) {
    throw Error(ErrorCode::usage, fmt::format("expected a number from 1 to {}", 1 << 24));
  }
  return size;
}

/// The sizes of the data. Sizes that are not 0 are replaced by those in `settings`. Throws Error{usage}.
workload::DataShape with_settings(workload::DataShape shape, const std::vector<std::string>& settings) {
  std::int64_t* const sizes[] = {&shape.vocab, &shape.features, &shape.outputs};
  for (const std::string& setting : settings) {
    for (std::size_t s = 0; s < std::size(sizes); ++s) {
      if (setting.starts_with(fmt::format("{}=", data_settings[s])) && *sizes[s] != 0) {
        *sizes[s] = size_from(setting);
      }
    }
  }
  return shape;
}

/// The job with a batch of 1, in which sizes of data and integer options are 1 if settings and limits allow it.
ModelJob of_ones(ModelJob job, const std::vector<OptionSpec>& specs, const OptionValues& given,
                 const std::vector<std::string>& settings) {
  for (std::int64_t* const size : {&job.settings.data.vocab, &job.settings.data.features, &job.settings.data.outputs}) {
    *size = std::min<std::int64_t>(*size, 1);
  }
  job.settings.data = with_settings(job.settings.data, settings);
  for (const OptionSpec& option : specs) {
    if (option.type == OptionType::integer && !given.has(option.name)) {
      job.settings.options.set(
          option.name,
          static_cast<std::int64_t>(std::min(std::max(1.0, option.minimum.value_or(1)), option.maximum.value_or(1))));
    }
  }
  job.name += ", every size 1";
  job.batch = 1;
  return job;
}

/// The options that are set, as text such as "hidden = 8, mistake = 3".
std::string text_of(const OptionValues& options, const std::vector<OptionSpec>& specs) {
  std::string text;
  for (const OptionValues::Entry& entry : options.entries()) {
    const auto spec = std::ranges::find(specs, entry.name, &OptionSpec::name);
    text += fmt::format("{}{} = {:.60}", text.empty() ? "" : ", ", entry.name, to_text(*spec, entry.value));
  }
  return text.empty() ? "its defaults" : text;
}

/// The job with the first options and sizes that the model accepts. Throws Failure if it accepts none.
ModelJob accepted(const plugins::Model& model, ModelJob job, std::uint32_t data, const OptionValues& given,
                  const std::vector<std::string>& settings) {
  std::string refusal;
  bool is_of_model = false;
  const auto refused = [&](std::string_view why, bool by_model) {
    if (refusal.empty()) {
      is_of_model = by_model;
      refusal = fmt::format("({}): {}", text_of(job.settings.options, model.options()), why);
    }
  };
  for (const workload::DataShape& shape : shapes_of(data)) {
    job.settings.data = with_settings(shape, settings);
    for (OptionValues& options : small_options(model.options(), given)) {
      job.settings.options = std::move(options);
      try {
        (void)build_graph(model, job);
        return job;
      } catch (const Error& error) {
        refused(error.message(), dynamic_cast<const workload::Refusal*>(&error) != nullptr);
      } catch (const Failure& failure) {
        refused(failure.what(), false);
      }
    }
  }
  throw Failure(fmt::format("{}{}: it accepts none of the small jobs that this suite tries, the first one {}",
                            is_of_model ? fmt::format("{}; ", only_with_options) : "", job.name, refusal));
}

}  // namespace

bool is_data_setting(const std::string& setting) {
  const std::string key = setting.substr(0, setting.find('='));
  if (std::ranges::find(data_settings, key) == std::end(data_settings)) {
    return false;
  }
  (void)size_from(setting);
  return true;
}

graph::Graph build_graph(const plugins::Model& model, const ModelJob& job) {
  try {
    const workload::Model asked = compile::model_of(model);
    if (!job.trains) {
      return workload::build_iteration(asked, job.settings, iterated_rows_of(job));
    }
    graph::Graph graph = workload::build_training(asked, job.settings, training(model, job));
    if (model.has("forward")) {
      workload::add_forward(graph, asked, job.settings, evaluation_rows_of(job));
    }
    return graph;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::job) {
      throw Failure(error.message());
    }
    if (error.message().empty()) {
      throw Failure("it refuses the job and gives no reason");
    }
    throw;
  }
}

std::vector<std::int64_t> microbatch_rows_of(const ModelJob& job) {
  return job.trains ? workload::microbatch_rows(job.batch, microbatches(job)) : std::vector<std::int64_t>();
}

std::int64_t iterated_rows_of(const ModelJob& job) {
  const workload::DataShape& data = job.settings.data;
  return job.trains || (data.features == 0 && data.vocab == 0) ? 0 : job.batch;
}

std::vector<std::int64_t> evaluation_rows_of(const ModelJob& job) {
  return job.trains ? workload::evaluation_rows(eval_samples(job), eval_rows(job)) : std::vector<std::int64_t>();
}

ModelMember::ModelMember(Store& store, const plugins::Directories& directories, std::string model, std::uint32_t rank,
                         std::vector<std::string> settings)
    : Peer(store, rank), directories_(directories), name_(std::move(model)), settings_(std::move(settings)) {
  // Launchers set this variable for their ranks. Graphs must not depend on it.
  setenv("RANK", fmt::format("{}", rank).c_str(), 1);
}

plugins::Model ModelMember::open_another() const {
  return plugins::Model::open(directories_, name_, [](plugins::LogLevel, std::string_view, std::string_view) {});
}

const plugins::Model& ModelMember::model() {
  if (!model_) {
    model_.emplace(open_another());
  }
  return *model_;
}

std::filesystem::path ModelMember::file() const {
  return plugins::find_plugin(directories_, plugins::PluginKind::model, name_);
}

void ModelMember::add_jobs(ModelJob job, std::uint32_t data, const OptionValues& given) {
  const ModelJob usual = accepted(model(), std::move(job), data, given, settings_);
  jobs_.push_back(usual);
  if (usual.trains) {
    jobs_.push_back(usual);
    jobs_.back().name += ", a batch of 1";
    jobs_.back().batch = 1;
  }
  ModelJob ones = of_ones(usual, model().options(), given, settings_);
  try {
    (void)build_graph(model(), ones);
    jobs_.push_back(std::move(ones));
  } catch (const Error& refusal) {
    note(fmt::format("not checked, {}: {}", ones.name, refusal.message()));
  }
}

const std::vector<ModelJob>& ModelMember::jobs() {
  if (!jobs_.empty()) {
    return jobs_;
  }
  const OptionValues given = given_options(model().options(), settings_);
  const auto add = [&](const std::string& name, bool trains, std::uint32_t data) {
    add_jobs({.name = name, .trains = trains, .settings = {}}, data, given);
  };
  const bool has_loss = model().has("loss");
  const std::uint32_t data = model().data();
  const bool takes_data = data != 0;
  for (const auto& [kind, name] : {std::pair(SR_DATA_TOKENS, "tokens"), std::pair(SR_DATA_ARRAYS, "arrays"),
                                   std::pair(SR_DATA_LABELS, "labels")}) {
    if ((data & kind) != 0) {
      add(fmt::format("{} on {}", has_loss ? "trained" : "iterated", name), has_loss, kind);
    }
  }
  if (has_loss && !takes_data) {
    add("trained", true, 0);
  }
  if (model().has("iterate") && (has_loss || !takes_data)) {
    add("iterated", false, 0);
  }
  return jobs_;
}

}  // namespace shardrun::conformance
