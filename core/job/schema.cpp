#include "core/job/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "core/base/error.h"

namespace shardrun::job {
namespace {

template <class Field>
Field as(const OptionSpec& spec, const OptionValue& value) {
  if constexpr (std::is_enum_v<Field>) {
    const auto choice = std::find(spec.choices.begin(), spec.choices.end(), std::get<std::string>(value));
    return static_cast<Field>(choice - spec.choices.begin());
  } else if constexpr (std::is_same_v<Field, std::filesystem::path>) {
    return std::get<std::string>(value);
  } else if constexpr (std::is_same_v<Field, std::vector<std::filesystem::path>>) {
    const auto& elements = std::get<std::vector<std::string>>(value);
    return {elements.begin(), elements.end()};
  } else {
    return std::get<Field>(value);
  }
}

template <class Field>
auto into(Field Job::*field) {
  return [field](Job& job, const OptionSpec& spec, const OptionValue& value) { job.*field = as<Field>(spec, value); };
}

template <class Group, class Field>
auto into(Group Job::*group, Field Group::*field) {
  return [group, field](Job& job, const OptionSpec& spec, const OptionValue& value) {
    (job.*group).*field = as<Field>(spec, value);
  };
}

using enum OptionType;

Section job_section() {
  return {
      .name = "job",
      .help = "What is run, and where its results go.",
      .settings =
          {
              {{.name = "ranks",
                .type = integer,
                .default_value = "1",
                .minimum = 1,
                .help =
                    "Processes that share the work: started here, or as many as mpirun, srun or another launcher has "
                    "started."},
               into(&Job::ranks)},
              {{.name = "strategy",
                .type = text,
                .default_value = SHARDRUN_DEFAULT_STRATEGY,
                .help = "The plugin that decides how the work is split; [strategy] holds its options."},
               into(&Job::strategy, &Chosen::name)},
              {{.name = "transport",
                .type = text,
                .default_value = SHARDRUN_DEFAULT_TRANSPORT,
                .help = "The plugin that moves data between ranks; [transport] may name others for some mesh axes."},
               into(&Job::transport)},
              {{.name = "timeout",
                .type = real,
                .default_value = "60",
                .minimum = 0.1,
                .maximum = 1e6,
                .help = "Seconds after which a rank that does not answer, or an operation between ranks that does not "
                        "end, fails the job."},
               into(&Job::timeout)},
              {{.name = "deterministic",
                .type = boolean,
                .default_value = "false",
                .help = "Whether what ranks add up is added in their order, one after the other: a job then has the "
                        "same bits over every transport. A transport that adds in another order has its sums made of "
                        "sends and receives, which takes more memory and may take longer; without this, a job has the "
                        "same bits in each run over one transport."},
               into(&Job::deterministic)},
              {{.name = "seed",
                .type = seed,
                .default_value = "1337",
                .help = "Where every random number of the job comes from."},
               into(&Job::seed)},
              {{.name = "threads",
                .type = integer,
                .default_value = "0",
                .minimum = 0,
                .help = "Threads of each rank; 0 divides this machine's cores among its ranks."},
               into(&Job::threads)},
              {.spec = {.name = "output",
                        .type = path,
                        .help = "The folder that the run writes to. A relative path starts in the working directory, "
                                "also when the job file says it. {time} stands for when the run begins (UTC, "
                                "20261122-141503), the same on all ranks.",
                        .optional = true},
               .store = into(&Job::output),
               .default_note = "runs/<name of the job file>",
               .from_working_folder = true},
              {{.name = "task",
                .type = choice,
                .default_value = "train",
                .choices = {"train", "iterate"},
                .help = "Train the model, or iterate its step function."},
               into(&Job::task)},
              {{.name = "trace",
                .type = choice,
                .default_value = "none",
                .choices = {"none", "steps"},
                .help = "Whether every rank writes when it computed, moved data and waited in some steps: trace.json, "
                        "for ui.perfetto.dev or chrome://tracing."},
               into(&Job::trace)},
              {{.name = "trace_first",
                .type = integer,
                .default_value = "3",
                .minimum = 1,
                .help = "The first of these steps, counted from 1; a run that is too short for all of them traces its "
                        "last ones."},
               into(&Job::trace_first)},
              {{.name = "trace_steps",
                .type = integer,
                .default_value = "3",
                .minimum = 1,
                .maximum = 1000,
                .help = "How many steps."},
               into(&Job::trace_steps)},
          },
  };
}

Section mesh_section() {
  return {
      .name = "mesh",
      .help =
          "The ranks as a grid: axis = size, in order from the slowest to the fastest changing. Axis names are "
          "made of a-z, 0-9 and _, and begin with a letter; sizes are at least 1 and their product is "
          "[job] ranks. A strategy with one axis needs no [mesh].",
      .kind = SectionKind::mesh,
  };
}

Section transport_section() {
  return {
      .name = "transport",
      .help =
          "Transports of single mesh axes: axis = transport. Options of a transport stand in a section of its own, "
          "[transport.NAME]; 'shardrun plugins' lists them.",
      .kind = SectionKind::transport,
  };
}

Section plugins_section() {
  return {
      .name = "plugins",
      .help = "Where plugins are looked for, before the usual places.",
      .settings =
          {{{.name = "path", .type = path_list, .help = "Folders with plugins.", .optional = true, .separator = ':'},
            into(&Job::plugins, &PluginSettings::path)}},
  };
}

Section model_section() {
  return {
      .name = "model",
      .help = "What is computed. Its other keys are the options of the model that is named.",
      .settings = {{{.name = "name", .type = text, .help = "The model."}, into(&Job::model, &Chosen::name)}},
      .kind = SectionKind::model,
  };
}

Section data_section() {
  return {
      .name = "data",
      .help = "What is trained on.",
      .settings =
          {
              {{.name = "text",
                .type = path,
                .help = "A text file, of which the tokenizer makes tokens.",
                .optional = true},
               into(&Job::data, &DataSettings::text)},
              {{.name = "tokens", .type = path, .help = "A file of tokens, little-endian uint16.", .optional = true},
               into(&Job::data, &DataSettings::tokens)},
              {{.name = "arrays",
                .type = path_list,
                .help = "NumPy files (.npy) with a sample in each row.",
                .optional = true},
               into(&Job::data, &DataSettings::arrays)},
              {{.name = "tokenizer",
                .type = choice,
                .default_value = "char",
                .choices = {"char", "byte"},
                .help = "What a token of the text is: a character that occurs in it, or a byte."},
               into(&Job::data, &DataSettings::tokenizer)},
              {{.name = "split",
                .type = real,
                .default_value = "0.9",
                .minimum = 0,
                .maximum = 1,
                .help = "The fraction, from the start of the data, that is trained on; the rest is for validation.",
                .minimum_excluded = true},
               into(&Job::data, &DataSettings::split)},
              {{.name = "batch",
                .type = integer,
                .default_value = "12",
                .minimum = 1,
                .maximum = 2147483647,
                .help = "Sequences or samples of an optimizer step, over all ranks."},
               into(&Job::data, &DataSettings::batch)},
              {{.name = "microbatches",
                .type = integer,
                .default_value = "1",
                .minimum = 1,
                .maximum = 10000,
                .help = "Parts into which a batch is divided, one computed after the other."},
               into(&Job::data, &DataSettings::microbatches)},
              {{.name = "eval_batch",
                .type = integer,
                .default_value = "0",
                .minimum = 0,
                .help = "Sequences or samples of an evaluation step, over all ranks; 0: as many as a microbatch."},
               into(&Job::data, &DataSettings::eval_batch)},
          },
      .task = "train",
  };
}

/// The part of [train] that says how the parameters move.
std::vector<Setting> optimizer_settings() {
  return {
      {{.name = "optimizer",
        .type = choice,
        .default_value = "adamw",
        .choices = {"adamw", "sgd"},
        .help = "How gradients become updates."},
       into(&Job::train, &TrainSettings::optimizer)},
      {{.name = "learning_rate",
        .type = real,
        .default_value = "1e-3",
        .minimum = 0,
        .help = "The learning rate after warm-up.",
        .minimum_excluded = true},
       into(&Job::train, &TrainSettings::learning_rate)},
      {{.name = "min_learning_rate",
        .type = real,
        .default_value = "0",
        .minimum = 0,
        .help = "Where the schedule ends."},
       into(&Job::train, &TrainSettings::min_learning_rate)},
      {{.name = "schedule",
        .type = choice,
        .default_value = "cosine",
        .choices = {"cosine", "linear", "constant"},
        .help = "How the learning rate falls from warm-up to the last step."},
       into(&Job::train, &TrainSettings::schedule)},
      {{.name = "warmup",
        .type = integer,
        .default_value = "0",
        .minimum = 0,
        .help = "Steps in which the learning rate rises linearly from 0."},
       into(&Job::train, &TrainSettings::warmup)},
      {{.name = "weight_decay",
        .type = real,
        .default_value = "0",
        .minimum = 0,
        .help = "Decay of the weights: apart from the gradient with adamw, added to it with sgd."},
       into(&Job::train, &TrainSettings::weight_decay)},
      {{.name = "beta1",
        .type = real,
        .default_value = "0.9",
        .minimum = 0,
        .maximum = 1,
        .help = "Decay of the mean of gradients.",
        .maximum_excluded = true},
       into(&Job::train, &TrainSettings::beta1)},
      {{.name = "beta2",
        .type = real,
        .default_value = "0.999",
        .minimum = 0,
        .maximum = 1,
        .help = "Decay of the mean of squared gradients.",
        .maximum_excluded = true},
       into(&Job::train, &TrainSettings::beta2)},
      {{.name = "epsilon",
        .type = real,
        .default_value = "1e-8",
        .minimum = 0,
        .help = "Added to the root of the mean of squares.",
        .minimum_excluded = true},
       into(&Job::train, &TrainSettings::epsilon)},
      {{.name = "momentum",
        .type = real,
        .default_value = "0",
        .minimum = 0,
        .maximum = 1,
        .help = "How much of the last update is kept.",
        .maximum_excluded = true},
       into(&Job::train, &TrainSettings::momentum)},
      {{.name = "clip",
        .type = real,
        .default_value = "0",
        .minimum = 0,
        .help = "The largest norm that the gradient may have; 0: it is not clipped."},
       into(&Job::train, &TrainSettings::clip)},
  };
}

Section train_section() {
  Section section = {
      .name = "train",
      .help = "How the model is trained.",
      .settings = {{{.name = "steps", .type = integer, .minimum = 0, .help = "Optimizer steps."},
                    into(&Job::train, &TrainSettings::steps)}},
      .task = "train",
  };
  for (Setting& setting : optimizer_settings()) {
    section.settings.push_back(std::move(setting));
  }
  section.settings.push_back({{.name = "remat",
                               .type = choice,
                               .default_value = "none",
                               .choices = {"none", "layer", "selective"},
                               .help = "What backward computes again, so that it takes no memory until then: nothing; "
                                       "of each layer all but its inputs; or cheap results alone, such as "
                                       "normalisations and activation functions. The numbers stay the same."},
                              into(&Job::train, &TrainSettings::remat)});
  section.settings.push_back(
      {{.name = "precision",
        .type = choice,
        .default_value = "float32",
        .choices = {"float32", "mixed"},
        .help = "What tensors are made of. mixed is for 'shardrun plan' alone: 2 bytes an element "
                "of parameters, gradients and activations, 4 of the optimizer's states and of its "
                "copy of the parameters. Runs compute in float32."},
       into(&Job::train, &TrainSettings::precision)});
  section.settings.push_back({{.name = "eval_every",
                               .type = integer,
                               .default_value = "0",
                               .minimum = 0,
                               .help = "Steps between evaluations; 0: only at the end."},
                              into(&Job::train, &TrainSettings::eval_every)});
  section.settings.push_back({{.name = "sample",
                               .type = integer,
                               .default_value = "0",
                               .minimum = 0,
                               .help = "Tokens of text to sample at the end."},
                              into(&Job::train, &TrainSettings::sample)});
  section.settings.push_back({{.name = "log_every",
                               .type = integer,
                               .default_value = "0",
                               .minimum = 0,
                               .help = "Steps between lines of progress; 0: as suits the terminal."},
                              into(&Job::train, &TrainSettings::log_every)});
  return section;
}

Section iterate_section() {
  return {
      .name = "iterate",
      .help = "How long the model is iterated, and from where.",
      .settings =
          {
              {{.name = "steps", .type = integer, .minimum = 0, .help = "Times that the step function is applied."},
               into(&Job::iterate, &IterateSettings::steps)},
              {{.name = "from",
                .type = path,
                .help = "The state to start from, instead of the model's own: a file state.safetensors or "
                        "state-000100.safetensors of a run, or a run's folder. It may have been split in another way. "
                        "Steps are counted on from its own.",
                .optional = true},
               into(&Job::iterate, &IterateSettings::from)},
              {{.name = "save_every",
                .type = integer,
                .default_value = "0",
                .minimum = 0,
                .help = "Steps between states that are saved under way, each in a file of its own, as "
                        "state-000100.safetensors; 0: only the last."},
               into(&Job::iterate, &IterateSettings::save_every)},
          },
      .task = "iterate",
  };
}

Section strategy_section() {
  return {
      .name = "strategy",
      .help = "The options of the strategy that [job] strategy names.",
      .kind = SectionKind::strategy,
  };
}

Section sharding_section() {
  return {
      .name = "sharding",
      .help =
          "What is split over which mesh axes, for a strategy that takes it from here ('shardrun plugins' says which "
          "do). A key is the name of an axis of the model, as in batch = data; or it matches names of tensors and of "
          "places that the model names, with * for any run of characters and ? for one, as in layer.*/mlp/up/weights = "
          "- | model. Mesh axes stand in order from the slowest to the fastest changing with a comma between them, - "
          "is "
          "none; of a tensor every dimension is given, with | between them. Behind a tensor's name stands the role "
          "that "
          "is meant: @store (the default) where it is kept, @use as it is computed with, @gradient, or @optimizer, as "
          "in embedding/* @optimizer = data | -. What is said of a role holds for those behind it of which nothing is. "
          "Of two lines about one thing the later counts. Where two dimensions of a value are over one mesh axis, it "
          "splits the first; a tensor of which that is so needs a line of its own.",
      .kind = SectionKind::sharding,
  };
}

constexpr double most_rate = 1e24;

OptionSpec bandwidth_spec(std::string help) {
  return {.name = "bandwidth", .type = real, .minimum = 1, .maximum = most_rate, .help = std::move(help)};
}

OptionSpec optional_spec(OptionSpec spec) {
  spec.optional = true;
  return spec;
}

OptionSpec latency_spec(std::string help) {
  return {.name = "latency", .type = real, .minimum = 0, .maximum = 1e6, .help = std::move(help), .optional = true};
}

Section cluster_section() {
  return {
      .name = "cluster",
      .help =
          "What the ranks run on, for 'shardrun plan': with memory it says whether each rank fits, with the other keys "
          "it predicts the time of a step. It changes nothing of a run, which compares memory with what this machine "
          "has and says where they differ. bandwidth and latency of single mesh axes stand in sections of their own, "
          "[cluster.AXIS].",
      .settings =
          {
              {{.name = "memory",
                .type = bytes,
                .minimum = 1,
                .help = "Bytes that each rank has for what 'shardrun plan' counts, such as 80G or 64GiB.",
                .optional = true},
               into(&Job::cluster, &ClusterSettings::memory)},
              {{.name = "flops",
                .type = real,
                .minimum = 1,
                .maximum = most_rate,
                .help = "Floating-point operations that a rank does in a second, as it reaches them.",
                .optional = true},
               into(&Job::cluster, &ClusterSettings::flops)},
              {{.name = "memory_bandwidth",
                .type = real,
                .minimum = 1,
                .maximum = most_rate,
                .help = "Bytes that a rank reads and writes in its memory in a second.",
                .optional = true},
               into(&Job::cluster, &ClusterSettings::memory_bandwidth)},
              {optional_spec(bandwidth_spec("Bytes that a rank sends in a second over a mesh axis. Each axis of more "
                                            "than one rank needs one with flops; with measured, transfers take what "
                                            "was measured where none is given.")),
               into(&Job::cluster, &ClusterSettings::bandwidth)},
              {.spec = latency_spec("Seconds that each message over such an axis takes beside its bytes."),
               .store = into(&Job::cluster, &ClusterSettings::latency),
               .default_note = "0"},
              {{.name = "measured",
                .type = path,
                .help = "The output folder of a run of this job with [job] trace = steps, or its trace: what "
                        "instructions took there is what they take.",
                .optional = true},
               into(&Job::cluster, &ClusterSettings::measured)},
          },
      .of_axis = {bandwidth_spec("Bytes that a rank sends in a second over this axis."),
                  latency_spec("Instead of that of [cluster].")},
  };
}

}  // namespace

const std::vector<Section>& schema() {
  static const std::vector<Section> sections = {
      job_section(),     mesh_section(),     plugins_section(),  model_section(),     data_section(),   train_section(),
      iterate_section(), strategy_section(), sharding_section(), transport_section(), cluster_section()};
  return sections;
}

const Section& section_named(std::string_view name) {
  const auto found =
      std::find_if(schema().begin(), schema().end(), [&](const Section& section) { return section.name == name; });
  if (found == schema().end()) {
    throw Error(ErrorCode::internal, fmt::format("the job file's schema has no section [{}]", name));
  }
  return *found;
}

const Setting* find_setting(const Section& section, std::string_view key) noexcept {
  const auto found = std::find_if(section.settings.begin(), section.settings.end(),
                                  [&](const Setting& setting) { return setting.spec.name == key; });
  return found == section.settings.end() ? nullptr : &*found;
}

const Rules& rules() {
  static const Rules all = {
      .order =
          {
              {{"train", "warmup"}, {"train", "steps"}},
              {{"train", "min_learning_rate"}, {"train", "learning_rate"}},
              {{"data", "microbatches"}, {"data", "batch"}},
          },
      .effect =
          {
              {{"job", "trace_first"}, {"job", "trace"}, "none"},
              {{"job", "trace_steps"}, {"job", "trace"}, "none"},
              {{"train", "momentum"}, {"train", "optimizer"}, "adamw"},
              {{"train", "beta1"}, {"train", "optimizer"}, "sgd"},
              {{"train", "beta2"}, {"train", "optimizer"}, "sgd"},
              {{"train", "epsilon"}, {"train", "optimizer"}, "sgd"},
              {{"train", "min_learning_rate"}, {"train", "schedule"}, "constant"},
              {{"data", "tokenizer"}, {"data", "text"}, std::nullopt},
              {{"train", "sample"}, {"data", "text"}, std::nullopt},
              {{"data", "eval_batch"}, {"data", "split"}, "1"},
              {{"train", "eval_every"}, {"data", "split"}, "1"},
              {{"cluster", "memory_bandwidth"}, {"cluster", "flops"}, std::nullopt},
          },
      .exclusive = {{"data", {"text", "tokens", "arrays"}}, {"cluster", {"flops", "measured"}}},
      .content = {{"cluster", {"flops", "measured", "memory"}}},
      .need = {{{"cluster", "flops"}, {{"cluster", "memory_bandwidth"}}},
               {{"cluster", "bandwidth"}, {{"cluster", "flops"}, {"cluster", "measured"}}}},
  };
  return all;
}

std::string setting_name(std::string_view section, std::string_view key) {
  return fmt::format("[{}] {}", section, key);
}

std::string to_string(const KeyName& name) { return setting_name(name.section, name.key); }

}  // namespace shardrun::job
