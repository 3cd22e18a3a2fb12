#include "core/job/schema.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/job/schema_sections.h"

namespace shardrun::job {
namespace {

using enum OptionType;

Section mesh_section() {
  return {
      .name = "mesh",
      .help =
          "The ranks as a grid: axis = size, in order from the slowest to the fastest changing. Axis names are "
          "made of a-z, 0-9 and _, and begin with a letter; sizes are at least 1 and their product is "
          "[job] ranks. A strategy with one axis needs no [mesh].",
      .kind = SectionKind::mesh,
      .aliases = {"parallel", "parallelism", "parallel_dims", "device_mesh", "grid", "topology"},
      .key_aliases = {"tensor_model_parallel_size", "tensor_parallel_size", "tensor_parallel_degree",
                      "model_parallel_size", "pipeline_model_parallel_size", "pipeline_parallel_size",
                      "pipeline_parallel_degree", "data_parallel_size", "data_parallel_degree",
                      "data_parallel_shard_degree", "data_parallel_replicate_degree", "mesh_shape", "device_mesh"},
      .key_note = "the size of an axis",
  };
}

Section transport_section() {
  return {
      .name = "transport",
      .help =
          "Transports of single mesh axes: axis = transport. Options of a transport stand in a section of its own, "
          "[transport.NAME]; 'shardrun plugins' lists them.",
      .kind = SectionKind::transport,
      .aliases = {"backend", "communication", "comm", "network"},
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
      .settings = {{{.name = "name",
                     .type = text,
                     .help = "The model.",
                     .aliases = {"type", "model", "model_type", "model_name", "arch", "architecture", "kind"}},
                    into(&Job::model, &Chosen::name)}},
      .kind = SectionKind::model,
      .aliases = {"architecture", "arch", "net", "gpt", "transformer", "model_args", "config"},
  };
}

Section iterate_section() {
  return {
      .name = "iterate",
      .help = "How long the model is iterated, and from where.",
      .settings =
          {
              {{.name = "steps",
                .type = integer,
                .minimum = 0,
                .help = "Times that the step function is applied.",
                .aliases = {"iterations", "iters", "num_steps", "n_steps", "max_steps", "max_iters", "num_iterations",
                            "timesteps", "nt", "niter"}},
               into(&Job::iterate, &IterateSettings::steps)},
              {{.name = "from",
                .type = path,
                .help = "The state to start from, instead of the model's own: a file state.safetensors or "
                        "state-000100.safetensors of a run, or a run's folder. It may have been split in another way. "
                        "Steps are counted on from its own.",
                .optional = true,
                .aliases = {"restart", "restart_from", "initial_state", "init_state", "state"}},
               into(&Job::iterate, &IterateSettings::from)},
              {{.name = "save_every",
                .type = integer,
                .default_value = "0",
                .minimum = 0,
                .help = "Steps between states that are saved under way, each in a file of its own, as "
                        "state-000100.safetensors; 0: only the last.",
                .aliases = {"output_every", "write_every", "dump_every"}},
               into(&Job::iterate, &IterateSettings::save_every)},
          },
      .task = "iterate",
      .aliases = {"simulation", "simulate", "solver", "iteration"},
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
              {{"data", "validation_text"}, {"data", "text"}, std::nullopt},
              {{"data", "validation_tokens"}, {"data", "tokens"}, std::nullopt},
              {{"data", "validation_arrays"}, {"data", "arrays"}, std::nullopt},
              {{"train", "sample"}, {"data", "text"}, std::nullopt},
              {{"data", "eval_batch"}, {"data", "split"}, "1"},
              {{"train", "eval_every"}, {"data", "split"}, "1"},
              {{"cluster", "memory_bandwidth"}, {"cluster", "flops"}, std::nullopt},
          },
      .exclusive = {{"data", {"text", "tokens", "arrays"}},
                    {"data", {"split", "validation_text", "validation_tokens", "validation_arrays"}},
                    {"cluster", {"flops", "measured"}}},
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
