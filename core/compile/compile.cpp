#include "core/compile/compile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/checkpoint/resume.h"
#include "core/checkpoint/saved_state.h"
#include "core/compile/cluster.h"
#include "core/compile/describe.h"
#include "core/compile/model.h"
#include "core/compile/plugins.h"
#include "core/device/choice.h"
#include "core/device/cores.h"
#include "core/device/library.h"
#include "core/partition/alike.h"
#include "core/partition/hooks.h"
#include "core/partition/partition.h"
#include "core/report/run_pictures.h"
#include "plugins/loader/hooks.h"

namespace shardrun::compile {
namespace {

workload::OptimizerSettings optimizer_settings(const job::TrainSettings& train) {
  return {.kind = train.optimizer == job::Optimizer::sgd ? workload::OptimizerSettings::Kind::sgd
                                                         : workload::OptimizerSettings::Kind::adamw,
          .beta1 = train.beta1,
          .beta2 = train.beta2,
          .epsilon = train.epsilon,
          .momentum = train.momentum,
          .weight_decay = train.weight_decay,
          .clip = train.clip,
          .moments = train.moments == job::RealType::bfloat16 ? graph::DType::bf16 : graph::DType::f32};
}

graph::Remat remat_of(job::Remat remat) {
  switch (remat) {
    case job::Remat::none: return graph::Remat::none;
    case job::Remat::gathers: return graph::Remat::gathers;
    case job::Remat::layer: return graph::Remat::layer;
    case job::Remat::selective: return graph::Remat::selective;
  }
  return graph::Remat::none;
}

std::optional<graph::DType> mixed_gradients(const job::TrainSettings& train) {
  if (train.precision == job::Precision::float32) {
    return std::nullopt;
  }
  return train.gradients == job::RealType::bfloat16 ? graph::DType::bf16 : graph::DType::f32;
}

/// Throws Error{job} if bfloat16 moments have no effect, or if a decay rate is too close to 1 for them. They have 8
/// significant bits: a mean that changes by less than 1/256 is rounded back to its old value.
void require_decaying_moments(const job::Job& job) {
  constexpr double most = 1 - 1.0 / 256;
  if (job.task != job::Task::train || job.train.moments == job::RealType::float32) {
    return;
  }
  const bool is_adamw = job.train.optimizer == job::Optimizer::adamw;
  if (!is_adamw && job.train.momentum == 0) {
    throw Error(ErrorCode::job, fmt::format("{}: [train] moments = bfloat16 has no effect: optimizer = sgd keeps "
                                            "moments only with momentum > 0; leave it out, or set momentum",
                                            job.where("train", "moments")));
  }
  const std::vector<std::pair<const char*, double>> decays =
      is_adamw ? std::vector<std::pair<const char*, double>>{{"beta1", job.train.beta1}, {"beta2", job.train.beta2}}
               : std::vector<std::pair<const char*, double>>{{"momentum", job.train.momentum}};
  for (const auto& [key, decay] : decays) {
    if (decay > most) {
      throw Error(ErrorCode::job,
                  fmt::format("{}: [train] moments = bfloat16 needs {} <= {:.3g}, and it is {}: a bfloat16 mean that "
                              "decays by less than 1/256 is rounded back and never falls; lower {}, such as to 0.95, "
                              "or set moments = float32",
                              job.where("train", "moments"), key, most, decay, key));
    }
  }
}

/// Throws Error{job} if a job needs too many calls: each is planned separately. `key`: the setting for the rows of a
/// call. `remedies`: other remedies that the message lists.
void require_few_calls(const job::Job& job, const char* what, const char* section, const char* key,
                       std::int64_t samples, std::int64_t rows, const char* remedies) {
  constexpr std::int64_t most = std::int64_t{1} << 24;
  if (samples / rows >= most) {
    throw Error(
        ErrorCode::job,
        fmt::format("{}: {} of {} samples, {} at once, has {} calls, expected fewer than {}: set "
                    "[{}] {} to more{}",
                    job.where(section, key), what, samples, rows, samples / rows, most, section, key, remedies));
  }
}

workload::TrainingSettings training_settings(const job::Job& job, const data::Dataset* dataset) {
  const std::int64_t first = workload::microbatch_rows(job.data.batch, job.data.microbatches).front();
  const std::int64_t eval_rows = job.data.eval_batch > 0 ? job.data.eval_batch : first;
  const std::int64_t eval_samples = dataset == nullptr ? 0 : dataset->evaluation_samples();
  require_few_calls(job, "an evaluation", "data", "eval_batch", eval_samples, eval_rows,
                    ", split closer to 1, or validation data of its own");
  return {.batch = job.data.batch,
          .microbatches = job.data.microbatches,
          .eval_rows = eval_rows,
          .eval_samples = eval_samples,
          .predict = job.train.sample > 0,
          .remat = remat_of(job.train.remat),
          .mixed = mixed_gradients(job.train),
          .optimizer = optimizer_settings(job.train)};
}

/// The sizes of the caches of one slot, which has room for the whole context. `weights`: null if the job names none.
sdk::CacheSizes cache_sizes(const job::Job& job, const workload::ModelSettings& settings,
                            const checkpoint::GivenWeights* weights) {
  const std::int64_t most = settings.options.integer("context");
  const std::int64_t context = job.infer.context > 0 ? job.infer.context : most;
  if (context > most) {
    throw Error(ErrorCode::job, fmt::format("{}: [infer] context = {} is more than the model's context of {}",
                                            job.where("infer", "context"), context, most));
  }
  const std::optional<std::int64_t> known = weights != nullptr ? weights->known_context() : std::nullopt;
  if (known && context > *known) {
    throw Error(ErrorCode::job, fmt::format("{}: a context of {} is more than the {} tokens that the model knows",
                                            job.where("model", "context"), context, *known));
  }
  const std::int64_t pages = (context + job.infer.page - 1) / job.infer.page;
  return {.pages = pages, .page = job.infer.page, .of_sequence = pages};
}

/// Builds the graph. Adds the place of [model] to errors of the graph itself, such as a tensor that is too large.
graph::Graph build_graph(const job::Job& job, const Compiled& compiled) {
  workload::ModelSettings settings = compiled.settings;
  settings.job = &job;
  try {
    if (job.task == job::Task::iterate) {
      return workload::build_iteration(compiled.model, settings, compiled.iterated_rows);
    }
    if (job::generates(job)) {
      return workload::build_decoding(compiled.model, settings, decoding_settings(job, compiled));
    }
    if (job.task == job::Task::infer) {
      return workload::build_inference(compiled.model, settings, compiled.evaluation_rows);
    }
    return workload::build_training(compiled.model, settings, training_settings(job, compiled.dataset.get()));
  } catch (const workload::Refusal&) {
    throw;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::job && error.code() != ErrorCode::shape_mismatch) {
      throw;
    }
    throw Error(ErrorCode::job, fmt::format("{}: {}", job.where("model", ""), error.message()));
  }
}

/// Throws Error{job} if the device lacks a kernel for an op of the graph.
void require_kernels(const job::Job& job, const Compiled& compiled) {
  std::set<std::string> missing;
  for (const graph::Function& function : compiled.graph.functions) {
    for (const graph::Node& node : function.nodes) {
      if (compiled.device->find_kernel(node.op->name) == nullptr) {
        missing.insert(node.op->name);
      }
    }
  }
  if (!missing.empty()) {
    throw Error(ErrorCode::job, fmt::format("{}: [job] device = {}: this build has no kernels of device {} for "
                                            "these ops of the job: {}: {}",
                                            job.where("job", "device"), job.device, compiled.device->name(),
                                            fmt::join(missing, ", "), device::choose_cpu));
  }
}

/// Partitions the graph. If the plan is impossible, the cause may be a setting of [train] or a file that the strategy
/// read. Adds their places, which the partitioner does not know, to the error.
partition::Partition split(const job::Job& job, const Compiled& compiled) {
  try {
    return partition::split(compiled.graph, compiled.plan, compiled.microbatch_rows, compiled.evaluation_rows);
  } catch (const partition::TrainKeyError& error) {
    throw Error(ErrorCode::job, fmt::format("{}: {}", job.where("train", error.key()), error.message()));
  } catch (const Error& error) {
    const std::string files = strategy_files(job);
    if (error.code() != ErrorCode::job || files.empty()) {
      throw;
    }
    throw Error(ErrorCode::job, files + error.message());
  }
}

/// Calls `act`, and adds the place of a setting to its errors.
template <class Act>
void placing(const job::Job& job, const char* section, const char* key, const Act& act) {
  try {
    act();
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: [{}] {}: {}", job.where(section, key), section, key, error.message()));
  }
}

/// Takes a size from [infer], unless it is known from elsewhere. Throws Error{job} if both are given and differ.
void take_given(const job::Job& job, const char* key, std::int64_t given, std::int64_t& size) {
  if (given > 0 && size > 0 && given != size) {
    throw Error(ErrorCode::job,
                fmt::format("{}: [infer] {} = {}, and '{}' was trained with {}: leave it out or correct it",
                            job.where("infer", key), key, given, job.checkpoint.string(), size));
  }
  size = given > 0 ? given : size;
}

/// Opens the weights that the job names. Those of [model] from can be missing if the run may continue a checkpoint.
void open_weights(const job::Job& job, Compiled& compiled) {
  const std::filesystem::path& path = job.weights.empty() ? job.checkpoint : job.weights;
  if (path.empty()) {
    return;
  }
  const bool is_from = !job.weights.empty();
  if (is_from && job.checkpoints.resume != "never" && !std::filesystem::exists(path)) {
    return;
  }
  placing(job, is_from ? "model" : "job", is_from ? "from" : "checkpoint", [&] {
    compiled.weights =
        std::make_shared<const checkpoint::GivenWeights>(path, models_in(directories_of(job.plugins.path)));
    checkpoint::require_model(compiled.weights->source(), compiled.model.name);
  });
}

/// Whether the model is applied to tokens. If it takes both tokens and numbers, this depends on its training data.
bool is_applied_to_tokens(const workload::Model& model, const workload::DataShape& trained_on) {
  return model.takes_tokens && trained_on.features == 0;
}

/// Throws Error{job} if the model cannot be trained on this kind of data.
void require_kind_of_data(const job::Job& job, const workload::Model& model) {
  if (!job.data.arrays.empty() && model.takes_tokens && !model.takes_arrays) {
    throw Error(ErrorCode::job, fmt::format("{}: model {} is trained on tokens: use [data] text or tokens",
                                            job.where("data", "arrays"), job.model.name));
  }
  if ((!job.data.text.empty() || !job.data.tokens.empty()) && model.takes_arrays && !model.takes_tokens) {
    throw Error(ErrorCode::job, fmt::format("{}: model {} is not trained on tokens: use [data] arrays",
                                            job.where("model", "name"), job.model.name));
  }
}

/// The sizes of an engine's samples and predictions, from [infer] or the checkpoint.
workload::DataShape inferred_shape(const job::Job& job) {
  workload::DataShape shape;
  if (!job.checkpoint.empty()) {
    const checkpoint::SafetensorsFile file(job.checkpoint);
    const auto read = [&](const char* name) {
      const auto found = file.metadata().find(fmt::format("shardrun.{}", name));
      return found == file.metadata().end() ? 0 : std::atoll(found->second.c_str());
    };
    shape = {.features = read("features"), .outputs = read("outputs")};
  }
  take_given(job, "features", job.infer.features, shape.features);
  take_given(job, "outputs", job.infer.outputs, shape.outputs);
  return shape;
}

/// Opens the weights, and the array to which the model is applied. Sets the sizes of data that the model is built with.
void open_applied(const job::Job& job, std::shared_ptr<data::Dataset> dataset, Compiled& compiled) {
  workload::DataShape& shape = compiled.settings.data;
  open_weights(job, compiled);
  if (compiled.weights != nullptr) {
    shape = checkpoint::trained_on(compiled.weights->source());
  }
  take_given(job, "features", job.infer.features, shape.features);
  const bool has_classes = shape.vocab > 0 || compiled.model.takes_labels_alone;
  take_given(job, "outputs", job.infer.outputs, has_classes ? shape.vocab : shape.outputs);
  if (has_classes && shape.vocab == 0) {
    throw Error(ErrorCode::job,
                fmt::format("{}: [infer] outputs: set it to the number of classes of model {}, which {} does not say",
                            job.where("infer", "outputs"), compiled.model.name,
                            compiled.weights == nullptr ? "the job" : fmt::format("'{}'", job.checkpoint.native())));
  }
  const OptionValues& options = job.model.options;
  std::optional<std::int64_t> vocab;
  if (is_applied_to_tokens(compiled.model, shape)) {
    vocab = options.has("vocab") ? options.integer("vocab") : shape.vocab;
  }
  if (job::generates(job)) {
    if (!vocab) {
      throw Error(ErrorCode::job, fmt::format("{}: [infer] tokens: model {} is not applied to tokens: remove it",
                                              job.where("infer", "tokens"), compiled.model.name));
    }
    compiled.settings.caches = cache_sizes(job, compiled.settings, compiled.weights.get());
    return;
  }
  compiled.dataset = dataset != nullptr ? std::move(dataset) : data::open_dataset(job, vocab);
  const std::int64_t found = compiled.dataset == nullptr ? 0 : compiled.dataset->shape().features;
  if (found > 0 && shape.features > 0 && found != shape.features) {
    throw Error(ErrorCode::data,
                fmt::format("{}: [infer] from: '{}' has {} numbers in a row, and the model was trained on "
                            "samples of {}",
                            job.where("infer", "from"), job.infer.from.native(), found, shape.features));
  }
  shape.features = found > 0 ? found : shape.features;
}

/// The numbers of rows with which a model that is applied to arrays is called. Records have any number of rows: a
/// record is computed in whole batches, and the rest of its rows in powers of two.
std::vector<std::int64_t> rows_of_calls(const job::Job& job, const Compiled& compiled) {
  const std::int64_t batch = job.infer.batch;
  if (compiled.dataset != nullptr) {
    require_few_calls(job, "an array", "infer", "batch", compiled.dataset->evaluation_samples(), batch, "");
    return workload::evaluation_rows(compiled.dataset->evaluation_samples(), batch);
  }
  std::vector<std::int64_t> rows = {batch};
  for (std::int64_t power = std::int64_t{1} << 30; power > 0; power /= 2) {
    if (power < batch) {
      rows.push_back(power);
    }
  }
  return rows;
}

/// Builds the graph, and determines the rows of its calls.
void add_graph(const job::Job& job, Compiled& compiled) {
  if (job.task == job::Task::infer) {
    compiled.evaluation_rows =
        job::generates(job) ? std::vector{decoding_settings(job, compiled).rows()} : rows_of_calls(job, compiled);
  }
  compiled.graph = build_graph(job, compiled);
  if (compiled.weights != nullptr) {
    const bool is_from = !job.weights.empty();
    placing(job, is_from ? "model" : "job", is_from ? "from" : "checkpoint",
            [&] { checkpoint::require_parameters(compiled.weights->source(), compiled.graph); });
  }
  compiled.saved_state = checkpoint::check_saved_state(job, compiled.graph);
  report::require_pictures(job, compiled.graph);
  if (job.task == job::Task::train) {
    const workload::TrainingSettings training = training_settings(job, compiled.dataset.get());
    compiled.microbatch_rows = workload::microbatch_rows(training.batch, training.microbatches);
    compiled.evaluation_rows = workload::evaluation_rows(training.eval_samples, training.eval_rows);
  }
}

/// Builds the graph of a model, its plan and its partition.
void build_model(const job::Job& job, Compiled& compiled) {
  add_graph(job, compiled);
  plugins::StrategyRequest request =
      describe(compiled.graph, compiled.microbatch_rows, compiled.evaluation_rows, job.cluster);
  const plugins::Strategy strategy = open_strategy(job);
  add_job(request, job, strategy);
  compiled.plan = strategy.make_plan(request);
  compiled.plan.order = job.mesh_order;
  compiled.plan.whole_sums = job::generates(job) && job.infer.invariant == job::Invariant::ranks;
  compiled.plan.overlaps = job::generates(job) && compiled.device->is_addressable();
  if (compiled.plan.whole_sums && compiled.device->name() != "cpu") {
    throw Error(
        ErrorCode::job,
        fmt::format("{}: [infer] invariant = ranks: only the device cpu adds in an order that no split changes, "
                    "and the job computes on {}: leave it out, or choose device = cpu",
                    job.where("infer", "invariant"), compiled.device->name()));
  }
  compiled.hooks = strategy.hooks(request, compiled.plan);
  partition::add_hook_states(compiled.graph, compiled.plan);
  compiled.partition = split(job, compiled);
}

plan::Plan plan_of_engine(const job::Job& job) {
  return {.strategy = job.engine.name, .mesh = {{"ranks", static_cast<std::uint32_t>(job.ranks)}}};
}

/// Builds the graph for an engine. The ranks form one mesh axis that splits nothing: each rank has its own graph.
void build_engine(const job::Job& job, std::int64_t rank, Compiled& compiled) {
  if (!compiled.device->is_addressable()) {
    throw Error(ErrorCode::job, fmt::format("{}: [job] device = {}: an engine computes in memory of the host: {}",
                                            job.where("job", "device"), job.device, device::choose_cpu));
  }
  if (!job.checkpoint.empty()) {  // each rank reads it later; a file of another format is refused now
    placing(job, "job", "checkpoint", [&] { static_cast<void>(checkpoint::SafetensorsFile(job.checkpoint)); });
  }
  if (job.task == job::Task::infer) {
    compiled.settings.data = inferred_shape(job);
  }
  compiled.engine = std::make_shared<const JobEngine>(open_engine(job, rank, compiled.settings.data));
  if (job.task != job::Task::train) {
    report::require_pictures(job, whole_states(*compiled.engine));
    compiled.graph = workload::build_parameters(parameters_of(*compiled.engine));
    compiled.plan = plan_of_engine(job);
    compiled.partition = partition::split(compiled.graph, compiled.plan);
    return;
  }
  const workload::TrainingSettings training = training_settings(job, compiled.dataset.get());
  const workload::EngineProgram program =
      program_of(job, *compiled.engine, training.optimizer, training.eval_rows, training.eval_samples);
  compiled.graph = workload::build_engine(program);
  compiled.microbatch_rows = program.microbatch_rows;
  compiled.evaluation_rows = program.evaluation_rows;
  compiled.plan = plan_of_engine(job);
  compiled.partition =
      partition::split(compiled.graph, compiled.plan, compiled.microbatch_rows, compiled.evaluation_rows);
}

/// Returns a function for the scratch bytes that a transport needs for a transfer. If the transport lacks the
/// operation, the function's error says that the job must choose another transport.
partition::TransferScratch scratch_of(const job::Job& job, const Compiled& compiled) {
  return [&job, &compiled, asked = runtime::scratch_of(compiled.transports)](const partition::Transfer& transfer,
                                                                             std::int64_t members) {
    try {
      return asked(transfer, members);
    } catch (const Error& error) {
      if (!transfer.is_direct || error.code() != ErrorCode::transport) {
        throw;
      }
      const runtime::TransportSet& set = compiled.transports;
      throw Error(ErrorCode::job,
                  fmt::format("{}: {}: choose another transport for the mesh axis '{}' ([transport] {} = NAME)",
                              place_of_transport(job, set.transports[set.of_axis[transfer.axis]].manifest().name),
                              error.message(), compiled.partition.placements.mesh.axes[transfer.axis].name,
                              compiled.partition.placements.mesh.axes[transfer.axis].name));
    }
  };
}

/// Checks what has been built, and loads the transports.
void finish_build(const job::Job& job, Compiled& compiled) {
  require_kernels(job, compiled);
  check_cluster(job, compiled.partition.placements.mesh);
  compiled.transports = load_transports(job, compiled.partition.placements.mesh, *compiled.device);
  if (job.is_order_chosen) {
    compiled.plan.order = order_by_traffic(job, compiled);
    compiled.partition = split(job, compiled);
    compiled.transports = load_transports(job, compiled.partition.placements.mesh, *compiled.device);
  }
}

/// The number of stages that work at once.
std::int64_t stages_at_once(const Compiled& compiled) {
  return compiled.partition.overlaps ? static_cast<std::int64_t>(compiled.partition.pipeline.stages()) : 1;
}

/// Builds a job that continues prompts in `slots` slots. If stages work at once, each works at another group of slots.
void build_slots(const job::Job& job, std::int64_t slots, Compiled& compiled) {
  compiled.slots = slots;
  compiled.settings.caches.pages = compiled.settings.caches.of_sequence * slots;
  const auto build = [&](std::int64_t groups) {
    compiled.groups = groups;
    build_model(job, compiled);
    finish_build(job, compiled);
  };
  build(std::min(compiled.groups, slots));  // the groups that an earlier build found
  if (const std::int64_t groups = std::min(stages_at_once(compiled), slots); groups != compiled.groups) {
    build(groups);  // because only a plan says how many stages there are
  }
}

/// Bytes of memory of the rank that needs the most.
std::uint64_t most_bytes(const job::Job& job, const Compiled& compiled) {
  std::uint64_t most = 0;
  for (const partition::StageId stage : compiled.partition.pipeline.stage_ids()) {
    const std::shared_ptr<const partition::StageFunctions> functions = functions_of_stage(compiled, stage);
    for (const std::vector<std::int64_t>& alike :
         partition::alike_ranks(compiled.graph, compiled.partition, *functions)) {
      most = std::max(most, programs_of_rank(job, compiled, alike.front(), *compiled.device, *functions).memory.peak);
    }
  }
  return most;
}

/// The most slots of which each can have a prompt of the job's file.
std::int64_t most_slots(const job::Job& job) {
  return std::max<std::int64_t>(1, data::prompts_of(job).value_or(std::numeric_limits<std::int64_t>::max()));
}

/// Implements [infer] slots = auto: builds the job for as many slots as [cluster] memory has room for.
void choose_slots(const job::Job& job, Compiled& compiled) {
  constexpr std::int64_t most_rows = 32;  // with more rows every token takes longer, because products are no
                                          // longer bound by reading weights: see few_rows.h
  const auto memory = static_cast<std::uint64_t>(job.cluster.memory);
  if (job.threads == 0 && ranks_per_machine(job) < job.ranks) {
    throw Error(ErrorCode::job,
                fmt::format("{}: [infer] slots = auto: ranks on several machines must find the same number of slots, "
                            "which depends on the threads of a rank, and a machine has its own number of cores: set "
                            "[job] threads, or slots to a number",
                            job.where("infer", "slots")));
  }
  const auto needed = [&](std::int64_t slots) {
    build_slots(job, slots, compiled);
    return most_bytes(job, compiled);
  };
  if (const std::uint64_t one = needed(1); one > memory) {
    throw Error(
        ErrorCode::job,
        fmt::format("{}: [infer] slots = auto: with one slot of {} tokens a rank needs {} ({} bytes), and [cluster] "
                    "memory is {} ({} bytes): set [infer] context, chunk or weights to less, use more ranks, or raise "
                    "[cluster] memory",
                    job.where("infer", "slots"), compiled.settings.caches.of_sequence * compiled.settings.caches.page,
                    human_bytes(one), one, human_bytes(memory), memory));
  }
  const std::int64_t most = std::min(most_rows * stages_at_once(compiled), most_slots(job));
  std::int64_t fitting = 1;
  std::int64_t too_many = most + 1;
  while (too_many - fitting > 1) {
    // The most is tried first: a job with ample memory takes it.
    const std::int64_t tried = too_many > most ? most : (fitting + too_many) / 2;
    (needed(tried) <= memory ? fitting : too_many) = tried;
  }
  if (compiled.slots != fitting) {
    build_slots(job, fitting, compiled);
  }
}

}  // namespace

int threads_of(const job::Job& job) { return threads_of(job, job.ranks); }

int threads_of(const job::Job& job, std::int64_t ranks_here) {
  if (job.threads > 0) {
    return static_cast<int>(std::min<std::int64_t>(job.threads, 1024));
  }
  return std::max(1, static_cast<int>(device::usable_cores() / std::max<std::int64_t>(1, ranks_here)));
}

Compiled compile(const job::Job& job, std::int64_t rank, const std::function<void(std::string_view activity)>& now_at,
                 std::shared_ptr<data::Dataset> dataset) {
  const auto tell = [&](std::string_view activity) {
    if (now_at) {
      now_at(activity);
    }
  };
  Compiled compiled;
  compiled.device = &find_device(job);
  require_decaying_moments(job);
  const bool is_engine = !job.engine.name.empty();
  if (!is_engine) {
    compiled.model = open_model(job);
  }
  compiled.settings.options = job.model.options;
  if (job.task == job::Task::train || has_data(job)) {
    if (dataset == nullptr) {
      tell("reading data");
      require_kind_of_data(job, compiled.model);
      dataset = data::open_dataset(job);
    }
    if (dataset == nullptr && !compiled.model.takes_data) {
      dataset = data::no_data();
    }
    compiled.iterated_rows = job.task == job::Task::iterate ? job.data.batch : 0;
    compiled.dataset = std::move(dataset);
    if (compiled.dataset != nullptr) {
      compiled.settings.data = compiled.dataset->shape();
    }
  }
  if (job::applies_model(job)) {
    open_applied(job, std::move(dataset), compiled);
  } else if (!is_engine) {
    open_weights(job, compiled);
  }
  if (job::generates(job)) {
    placing(job, "infer", "activations", [&] { static_cast<void>(decoding_settings(job, compiled)); });
  }
  tell("compiling");
  if (is_engine) {
    build_engine(job, rank, compiled);
    finish_build(job, compiled);
  } else if (!job::generates(job)) {
    build_model(job, compiled);
    finish_build(job, compiled);
  } else if (job.infer.slots > 0) {
    build_slots(job, std::min(job.infer.slots, most_slots(job)), compiled);
  } else {
    choose_slots(job, compiled);
  }
  compiled.programs = programs_of_rank(job, compiled, rank);
  return compiled;
}

workload::DecodingSettings decoding_settings(const job::Job& job, const Compiled& compiled) {
  const bool is_narrow = job.infer.cache == job::RealType::bfloat16;
  const graph::DType weights = checkpoint::type_of_matrices(job.infer.weights, compiled.weights.get());
  return {.slots = compiled.slots,
          .groups = compiled.groups,
          .chunk = job.infer.chunk,
          .cache = is_narrow ? graph::DType::bf16 : graph::DType::f32,
          .scores_prompts = job.infer.prompt_logprobs,
          .weights = weights,
          .activations = checkpoint::type_of_activations(job.infer.activations, weights),
          .fixed_order = job.infer.invariant == job::Invariant::ranks};
}

bool is_applied_to_tokens(const job::Job& job) {
  if (!job::applies_model(job)) {
    return false;
  }
  workload::DataShape trained_on;
  if (!job.checkpoint.empty()) {
    const checkpoint::GivenWeights weights(job.checkpoint, models_in(directories_of(job.plugins.path)));
    trained_on = checkpoint::trained_on(weights.source());
  }
  return is_applied_to_tokens(open_model(job), trained_on);
}

Compiled compile_reference(const job::Job& job, const Compiled& engine) {
  if (job.task != job::Task::train || job.model.name.empty()) {
    throw Error(ErrorCode::job,
                fmt::format("{}: [job] engine = {}: an engine's training is compared with a model's: {}",
                            job.where("job", "engine"), job.engine.name,
                            !engine.engine->plugin.predicts()
                                ? "this engine iterates alone, and 'shardrun plugins check' tries its steps"
                            : job.task != job::Task::train ? "set [job] task = train"
                                                           : "name it in the section [model]"));
  }
  Compiled compiled;
  compiled.device = engine.device;
  compiled.model = open_model(job);
  compiled.settings.options = job.model.options;
  compiled.settings.data = engine.settings.data;
  compiled.dataset = engine.dataset;
  add_graph(job, compiled);
  require_parameters_of(compiled.graph, *engine.engine, job.where("model", ""));
  return compiled;
}

graph::Graph graph_without_remat(const job::Job& job, const Compiled& compiled) {
  job::Job plain = job;
  plain.train.remat = job::Remat::none;
  return build_graph(plain, compiled);
}

graph::Graph reference_graph(const job::Job& job, const Compiled& compiled) {
  return job::applies_model(job)
             ? workload::build_kept_inference(compiled.model, compiled.settings, compiled.evaluation_rows)
             : graph_without_remat(job, compiled);
}

partition::Programs programs_of_rank(const job::Job& job, const Compiled& compiled, std::int64_t rank) {
  const partition::Partition& partition = compiled.partition;
  const partition::StageId stage = partition.stage_at(mesh::coordinates_of(partition.placements.mesh, rank));
  return programs_of_rank(job, compiled, rank, *compiled.device, *functions_of_stage(compiled, stage));
}

std::shared_ptr<const partition::StageFunctions> functions_of_stage(const Compiled& compiled,
                                                                    partition::StageId stage) {
  const partition::Pipeline& pipeline = compiled.partition.pipeline;
  const bool is_direct = pipeline.exists() && compiled.transports.moves_device_memory.contains(pipeline.axis) &&
                         compiled.transports.moves_device_memory[pipeline.axis];
  return partition::functions_of(compiled.graph, compiled.partition, stage,
                                 is_direct ? partition::MessageMemory::device : partition::MessageMemory::host);
}

partition::Programs programs_of_rank(const job::Job& job, const Compiled& compiled, std::int64_t rank,
                                     const device::Device& device, const partition::StageFunctions& stage) {
  return partition::programs_of(
      compiled.graph, compiled.partition, stage,
      {.device = device,
       .threads = threads_of(job),
       .rank = rank,
       .transfer_scratch = scratch_of(job, compiled),
       .transfer_checks =
           compiled.transports.checked ? runtime::checks_of(compiled.transports) : partition::TransferChecks(),
       .moves_device_memory = compiled.transports.moves_device_memory,
       .plan_hook = [&](const plan::HookGroup& group) { return compiled.hooks->ask(group); },
       .agreements = true,
       .comparisons = compiled.engine == nullptr && job.checks.replicas,
       .watches = job.checks.states});
}

std::vector<std::size_t> programs_of_step(const Compiled& compiled, const partition::Programs& programs) {
  if (compiled.graph.functions.empty()) {
    return {};  // an engine without training has no graph
  }
  for (const std::string_view function : {workload::forward_function, workload::decode_function}) {
    if (programs.has(function)) {
      return programs.find_calls(function, {compiled.evaluation_rows.front()});
    }
  }
  std::vector<std::size_t> executed = programs.find_calls(graph::Role::repeated, compiled.microbatch_rows);
  const auto add = [&](const partition::Program& program) {
    executed.push_back(static_cast<std::size_t>(&program - programs.programs.data()));
  };
  add(programs.find(graph::Role::once));
  if (programs.has(partition::after_step_function)) {
    add(programs.find(partition::after_step_function, 0));
  }
  return executed;
}

checkpoint::Contents contents_of(const job::Job& job, const Compiled& compiled) {
  return checkpoint::contents_of(compiled.engine != nullptr
                                     ? held_tensors(*compiled.engine, compiled.graph)
                                     : checkpoint::held_tensors(compiled.graph, compiled.partition, *compiled.device),
                                 job.ranks);
}

checkpoint::RunIdentity identity_of(const job::Job& job, const Compiled& compiled) {
  return checkpoint::identity_of(job,
                                 compiled.engine != nullptr
                                     ? section_of(*compiled.engine)
                                     : checkpoint::model_section(compiled.model, compiled.settings),
                                 compiled.dataset.get());
}

double flops_per_step(const Compiled& compiled) {
  for (const std::string_view function : {workload::forward_function, workload::decode_function}) {
    const graph::Function* const found =
        compiled.evaluation_rows.empty() ? nullptr : compiled.graph.find(function, compiled.evaluation_rows.front());
    if (found != nullptr) {
      return graph::flops(*found);
    }
  }
  return flops_per_step(compiled.graph, compiled.microbatch_rows);
}

double flops_per_step(const graph::Graph& graph, const std::vector<std::int64_t>& microbatch_rows) {
  double total = graph::flops(*graph.find(graph::Role::once));
  std::map<std::int64_t, double> of_rows;
  for (const std::int64_t rows : microbatch_rows) {
    const auto [known, is_new] = of_rows.emplace(rows, 0);
    known->second = is_new ? graph::flops(*graph.find(graph::Role::repeated, rows)) : known->second;
    total += known->second;
  }
  return total;
}

const device::Device& find_device(const job::Job& job) {
  try {
    const device::DeviceChoice choice = device::parse_device(job.device);
    const device::Device& device = device::Device::find(choice.name);
    device::require_units(device, choice);
    return device;
  } catch (const Error& error) {
    throw Error(ErrorCode::job, fmt::format("{}: [job] device: {}", job.where("job", "device"), error.message()));
  }
}

std::int64_t ranks_of_machine(const job::Job& job) {
  const device::Device& device = find_device(job);
  if (!device.has_units()) {
    return device::usable_cores();
  }
  if (const std::size_t named = device::parse_device(job.device).units.size(); named > 0) {
    return static_cast<std::int64_t>(named);
  }
  try {
    return static_cast<std::int64_t>(device.units().size());
  } catch (const Error& error) {
    throw Error(ErrorCode::job, fmt::format("{}: [job] ranks: there is one for each unit of device {}, and these "
                                            "cannot be counted: {}. Write a number, or name the units ({}:0,1)",
                                            job.where("job", "ranks"), device.name(), error.message(), device.name()));
  }
}

}  // namespace shardrun::compile
