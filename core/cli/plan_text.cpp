#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>

#include "core/base/human.h"
#include "core/cli/plan.h"
#include "core/compile/plugins.h"
#include "core/mesh/shards.h"
#include "core/workload/program.h"

namespace shardrun::cli {
namespace {

/// With more stages than this, neighbouring stages share a row.
constexpr std::size_t most_stage_rows = 20;

std::string human_flops(double flops) { return human_quantity(flops, "FLOP"); }

/// The minimum and the maximum of a quantity over ranks.
template <typename T>
struct Extremes {
  T least = std::numeric_limits<T>::max();
  T most = 0;

  void add(T value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
};

/// A range as text: "2.68 GiB", or "2.68-2.70 GiB" if minimum and maximum differ as texts.
template <typename T>
std::string range(const Extremes<T>& extremes, const std::function<std::string(T)>& human) {
  const std::string least = human(extremes.least);
  const std::string most = human(extremes.most);
  if (least == most) {
    return most;
  }
  const std::size_t unit = most.find(' ');
  const bool is_one_unit = unit != std::string::npos && least.ends_with(most.substr(unit)) &&
                           least.find(' ') == least.size() - (most.size() - unit);
  return fmt::format("{}-{}", is_one_unit ? least.substr(0, least.find(' ')) : least, most);
}

/// A row of the table of bytes per category.
struct Category {
  const char* name;
  std::function<std::uint64_t(const partition::MemoryUse&)> bytes;
};

/// The rows of the table. If the host cannot address the device's memory, the peak is shown for both memories.
std::vector<Category> categories_of(const device::Device& device) {
  std::vector<Category> categories = {{"parameters", &partition::MemoryUse::parameters},
                                      {"gradients", &partition::MemoryUse::gradients},
                                      {"optimizer", &partition::MemoryUse::optimizer},
                                      {"activations", &partition::MemoryUse::activations},
                                      {"communication", &partition::MemoryUse::communication},
                                      {"scratch", &partition::MemoryUse::scratch},
                                      {"peak", &partition::MemoryUse::peak}};
  if (!device.is_addressable()) {
    categories.push_back({"peak on device", [](const partition::MemoryUse& use) { return use.peak - use.staging; }});
    categories.push_back({"peak on host", &partition::MemoryUse::staging});
  }
  return categories;
}

/// Bytes that a rank sends, and when it sends them.
struct Sent {
  std::string_view when;
  const partition::SentBytes* bytes;
};

/// The bytes that a rank sends in a step, and those for a chunk of a prompt. All ranks of a job have the same entries.
std::vector<Sent> sent_by(const forecast::RankForecast& ranks) {
  std::vector<Sent> all = {{"each step", &ranks.sent}};
  for (const auto& [name, sent] : ranks.programs) {
    if (name != workload::decode_function) {  // decoding is the step, which `all` has already
      all.push_back({name == workload::score_function ? "for each chunk of a prompt that is scored"
                                                      : "for each chunk of a prompt",
                     &sent});
    }
  }
  return all;
}

std::string block(const forecast::RankForecast& ranks, const std::string& title,
                  const std::vector<Category>& categories) {
  std::string text = fmt::format("\n{:<16} {:>15}\n", title, "bytes");
  const auto row = [&](const std::string& name, std::uint64_t bytes) {
    text += fmt::format("{:<16} {:>15}   {}\n", name, bytes, human_bytes(bytes));
  };
  for (const Category& category : categories) {
    row(category.name, category.bytes(ranks.memory));
  }
  if (ranks.snapshot > 0) {
    row("snapshot", ranks.snapshot);
  }
  text += fmt::format("{:<16} {:>15.0f}   {}\n", "FLOPs a step", ranks.flops, human_flops(ranks.flops));
  text += fmt::format("busiest in {} at {}\n", ranks.busiest_function, ranks.busiest_instruction);
  for (const Sent& sent : sent_by(ranks)) {
    for (const auto& [axis, collectives] : *sent.bytes) {
      text += fmt::format("sent {} over mesh axis {}\n", sent.when, axis);
      for (const auto& [collective, bytes] : collectives) {
        row(collective, bytes);
      }
    }
  }
  return text;
}

/// Bytes by mesh axis and collective. A rank that does not take part in a collective sends 0 bytes.
std::map<std::string, std::map<std::string, Extremes<std::uint64_t>>> extremes_of(
    const std::vector<const partition::SentBytes*>& ranks) {
  std::map<std::string, std::map<std::string, Extremes<std::uint64_t>>> extremes;
  for (const partition::SentBytes* const sent : ranks) {
    for (const auto& [axis, collectives] : *sent) {
      for (const auto& [collective, bytes] : collectives) {
        extremes[axis].try_emplace(collective);
      }
    }
  }
  for (auto& [axis, collectives] : extremes) {
    for (auto& [collective, bytes] : collectives) {
      for (const partition::SentBytes* const sent : ranks) {
        const auto of_axis = sent->find(axis);
        const bool sends = of_axis != sent->end() && of_axis->second.contains(collective);
        bytes.add(sends ? of_axis->second.at(collective) : 0);
      }
    }
  }
  return extremes;
}

/// The minimum and the maximum, over ranks, of what they need and send.
std::string summary_of_ranks(const forecast::Forecast& forecast, const std::vector<Category>& categories) {
  Extremes<double> flops;
  const forecast::RankForecast* fullest = &forecast.ranks.front();
  std::int64_t ranks = 0;
  for (const forecast::RankForecast& alike : forecast.ranks) {
    flops.add(alike.flops);
    fullest = alike.memory.peak > fullest->memory.peak ? &alike : fullest;
    ranks += static_cast<std::int64_t>(alike.members.size());
  }
  std::string text =
      fmt::format("\n{:<16} {:>15} {:>15}\n", fmt::format("{} ranks", ranks), "least bytes", "most bytes");
  const auto row = [&](const std::string& name, const Extremes<std::uint64_t>& bytes) {
    text += fmt::format("{:<16} {:>15} {:>15}   {}\n", name, bytes.least, bytes.most,
                        range<std::uint64_t>(bytes, human_bytes));
  };
  for (const Category& category : categories) {
    Extremes<std::uint64_t> bytes;
    for (const forecast::RankForecast& alike : forecast.ranks) {
      bytes.add(category.bytes(alike.memory));
    }
    row(category.name, bytes);
  }
  Extremes<std::uint64_t> snapshots;
  for (const forecast::RankForecast& alike : forecast.ranks) {
    snapshots.add(alike.snapshot);
  }
  if (snapshots.most > 0) {
    row("snapshot", snapshots);
  }
  text += fmt::format("{:<16} {:>15.0f} {:>15.0f}   {}\n", "FLOPs a step", flops.least, flops.most,
                      range<double>(flops, human_flops));
  const bool are_all = std::ranges::all_of(
      forecast.ranks, [&](const forecast::RankForecast& alike) { return alike.memory.peak == fullest->memory.peak; });
  text += fmt::format("fullest: {}, in {} at {}\n", are_all ? "all alike" : title_of(fullest->members),
                      fullest->busiest_function, fullest->busiest_instruction);
  const std::vector<Sent> sent = sent_by(forecast.ranks.front());
  for (std::size_t i = 0; i < sent.size(); ++i) {
    std::vector<const partition::SentBytes*> of_ranks;
    for (const forecast::RankForecast& alike : forecast.ranks) {
      of_ranks.push_back(sent_by(alike)[i].bytes);
    }
    for (const auto& [axis, collectives] : extremes_of(of_ranks)) {
      text += fmt::format("sent {} over mesh axis {}\n", sent[i].when, axis);
      for (const auto& [collective, bytes] : collectives) {
        row(collective, bytes);
      }
    }
  }
  return text;
}

/// Consecutive stages that share a row.
struct StageRow {
  std::size_t begin;
  std::size_t end;

  [[nodiscard]] std::string name() const {
    return end - begin == 1 ? fmt::format("stage {}", begin) : fmt::format("stages {}-{}", begin, end - 1);
  }
};

std::vector<StageRow> stage_rows(std::size_t stages) {
  const std::size_t step = (stages + most_stage_rows - 1) / most_stage_rows;
  std::vector<StageRow> rows;
  for (std::size_t stage = 0; stage < stages; stage += step) {
    rows.push_back({stage, std::min(stage + step, stages)});
  }
  return rows;
}

/// A row for each stage, or for several. REQUIRES: the job has a pipeline.
std::string stages_text(const Planned& planned) {
  const partition::Pipeline& pipeline = planned.compiled.partition.pipeline;
  std::string text = fmt::format("\n{:<13} {:>6} {:>18} {:>18} {:>18} {:>22} {:>18} {:>16}\n", "", "ranks", "states",
                                 "activations", "peak", "FLOPs a step", "sent a step", "kept forwards");
  for (const StageRow& row : stage_rows(pipeline.actions.size())) {
    std::size_t ranks = 0;
    Extremes<std::uint64_t> states, activations, peak, sent;
    Extremes<double> flops;
    for (const forecast::RankForecast& alike : planned.forecast.ranks) {
      const std::size_t stage = alike.stage.index();
      if (stage < row.begin || stage >= row.end) {
        continue;
      }
      ranks += alike.members.size();
      states.add(alike.memory.parameters + alike.memory.gradients + alike.memory.optimizer);
      activations.add(alike.memory.activations);
      peak.add(alike.memory.peak);
      flops.add(alike.flops);
      std::uint64_t all = 0;
      for (const auto& [axis, collectives] : alike.sent) {
        for (const auto& [collective, bytes] : collectives) {
          all += bytes;
        }
      }
      sent.add(all);
    }
    Extremes<std::int64_t> kept;
    std::int64_t forwards = 0;
    for (const partition::StageId stage : IdRange(partition::StageId(row.begin), partition::StageId(row.end))) {
      kept.add(forecast::most_live_forwards(pipeline.actions[stage]));
      forwards = std::max<std::int64_t>(
          forwards, std::ranges::count(pipeline.actions[stage], plan::Action::Kind::forward, &plan::Action::kind));
    }
    const std::function<std::string(std::int64_t)> digits = [](std::int64_t number) { return std::to_string(number); };
    text += fmt::format("{:<13} {:>6} {:>18} {:>18} {:>18} {:>22} {:>18} {:>16}\n", row.name(), ranks,
                        range<std::uint64_t>(states, human_bytes), range<std::uint64_t>(activations, human_bytes),
                        range<std::uint64_t>(peak, human_bytes), range<double>(flops, human_flops),
                        range<std::uint64_t>(sent, human_bytes),
                        fmt::format("{} of {}", range<std::int64_t>(kept, digits), forwards));
  }
  return text +
         "states: parameters, gradients and optimizer; kept forwards: the most microbatches whose activations a "
         "stage keeps at once\n";
}

/// The predicted step. REQUIRES: `forecast.step` is set.
std::string predicted_text(const forecast::Forecast& forecast) {
  const forecast::StepForecast& step = *forecast.step;
  const std::vector<forecast::StagePrediction>& stages = step.prediction.stages;
  std::string text = fmt::format("\npredicted time of a step, costs: {}\n{:<16} {:>15}\n", costs_of(forecast), "step",
                                 human_time(step.prediction.seconds));
  const auto rate = [&](const char* what, double per_second) {
    if (per_second > 0) {
      text += fmt::format("{:<16} {:>15}\n", what, human_count(per_second));
    }
  };
  rate("samples a second", step.samples_per_s);
  rate("tokens a second", step.tokens_per_s);
  if (step.chunk_s) {
    text += fmt::format("{:<16} {:>15}   for each chunk of the prompt, if no other prompt is in work\n", "first token",
                        human_time(*step.chunk_s));
  }
  text += fmt::format("{:<16} {:>15}   a second and rank, without what is computed again", "model FLOPs",
                      human_quantity(step.model_flops_per_s, "FLOP"));
  text += step.utilisation ? fmt::format(": {:.1f} % of [cluster] flops\n", 100 * *step.utilisation) : "\n";
  text += fmt::format("{:<24} {:>19} {:>19} {:>19} {:>19}\n", "", "computing", "communication", "waiting", "hidden");
  for (const StageRow& row : stage_rows(stages.size())) {
    const auto cell = [&](double forecast::StagePrediction::*part) {
      Extremes<double> seconds;
      for (std::size_t stage = row.begin; stage < row.end; ++stage) {
        seconds.add(stages[stage].*part);
      }
      return range<double>(seconds, human_time);
    };
    const std::string name =
        row.end - row.begin == 1 ? fmt::format("{}, rank {}", row.name(), step.ranks[row.begin]) : row.name();
    text += fmt::format("{:<24} {:>19} {:>19} {:>19} {:>19}\n", name, cell(&forecast::StagePrediction::compute),
                        cell(&forecast::StagePrediction::exposed), cell(&forecast::StagePrediction::waiting),
                        cell(&forecast::StagePrediction::hidden));
  }
  return text;
}

/// The drawing of the pipeline's actions. REQUIRES: the job has a pipeline.
std::string timeline_text(const Planned& planned, std::size_t width) {
  constexpr std::size_t around = 30;  // columns of a row outside of the drawing
  constexpr std::size_t least_width = 40;
  const forecast::Forecast& forecast = planned.forecast;
  const forecast::Timeline& timeline = *forecast.timeline;
  Extremes<double> bubble;
  for (const partition::StageId stage : timeline.stages.ids()) {
    bubble.add(timeline.bubble(stage));
  }
  const std::function<std::string(double)> percent = [](double share) { return fmt::format("{:.4g} %", 100 * share); };
  std::string working = fmt::format("stages work {} of the time and wait {}", percent(timeline.working()),
                                    percent(1 - timeline.working()));
  if (const auto most = forecast::most_working(planned.compiled.partition.pipeline)) {
    working += fmt::format("; if all took as long, they could work {}: {} ({})", percent(most->share), most->formula,
                           most->source);
  }
  return fmt::format(
             "\ntimeline of a step before the update\n{}\nbubble {}: waiting over working time of a stage\ncosts: {}: "
             "{}\n",
             working, range<double>(bubble, percent), costs_of(forecast),
             forecast.step ? "an action takes what its instructions take; what is sent takes no time"
                           : "each forward, and each part of backward, takes 1") +
         forecast::draw(timeline, std::max(width, around + least_width) - around, most_stage_rows);
}

std::string transients_text(const compile::Compiled& compiled) {
  std::string text =
      "\nmemory of rank 0 without the states, by function: bytes, the fewest that any order of buffers needs, "
      "and the busiest instruction\n";
  for (const partition::Program& program : compiled.programs.programs) {
    if (!program.counts) {
      continue;
    }
    text += fmt::format("{:<16} {:>15}   {}   busiest at {}\n",
                        program.rows == 0 ? program.function
                                          : fmt::format("{}, {}{}", program.function, counted(program.rows, "row"),
                                                        program.finalizes ? ", last" : ""),
                        program.transient_bytes, program.least_bytes,
                        program.instructions.empty()
                            ? "-"
                            : program
                                  .instructions[std::min(static_cast<std::size_t>(program.peak_instruction),
                                                         program.instructions.size() - 1)]
                                  .name);
  }
  return text;
}

/// A title such as "model toy, strategy named, 8 ranks (data 2 × model 2 × pipe 2), 1 thread each".
std::string title_text(const Planned& planned) {
  const compile::Compiled& compiled = planned.compiled;
  std::string mesh;
  for (const mesh::Axis& axis : compiled.partition.placements.mesh.axes) {
    if (axis.size > 1) {
      mesh += fmt::format("{}{} {}", mesh.empty() ? "" : " × ", axis.name, axis.size);
    }
  }
  const std::vector<std::int64_t>& order = compiled.partition.placements.mesh.order;
  constexpr std::size_t most_shown = 16;
  if (!order.empty()) {
    mesh += fmt::format(
        ", order {}{}",
        fmt::join(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(std::min(order.size(), most_shown)), " "),
        order.size() > most_shown ? " …" : "");
  }
  return fmt::format("model {}, strategy {}, {}{}, {} each\n", planned.job.model.name, planned.job.strategy.name,
                     counted(planned.job.ranks, "rank"), planned.job.ranks == 1 ? "" : " (" + mesh + ")",
                     counted(compiled.programs.threads, "thread"));
}

/// The transports that `transport = auto` chose, and whether transfers reach device memory that the
/// host cannot address.
std::string transports_text(const Planned& planned) {
  const bool is_addressable = planned.compiled.device->is_addressable();
  std::string text;
  for (const AxisTransport& axis : is_addressable && !compile::chooses_transports(planned.job)
                                       ? std::vector<AxisTransport>()
                                       : transports_of(planned.compiled)) {
    text += fmt::format("mesh axis {}: transport {}{}\n", axis.axis, axis.transport,
                        is_addressable   ? ""
                        : axis.is_direct ? ", from device to device"
                                         : ", through pinned memory of the host");
  }
  return text;
}

/// Bytes of the caches of a rank, and of one token in them.
struct CacheUse {
  std::uint64_t all = 0;
  std::uint64_t of_token = 0;
};

CacheUse cache_use(const compile::Compiled& compiled, std::int64_t rank) {
  const partition::Placements& placements = compiled.partition.placements;
  const mesh::Coordinates at = mesh::coordinates_of(placements.mesh, rank);
  CacheUse use;
  for (const graph::StateId s : compiled.graph.states.ids()) {
    const graph::State& state = compiled.graph.states[s];
    if (state.kind == graph::StateKind::cache &&
        compiled.partition.stages.states.holds(s, compiled.partition.stage_at(at))) {
      const mesh::Box box = mesh::box_of(state.type.shape, placements.states[s], placements.mesh, at);
      use.all += static_cast<std::uint64_t>(box.elements()) * graph::element_bytes(state.type.dtype);
    }
  }
  const sdk::CacheSizes& sizes = compiled.settings.caches;
  use.of_token = use.all / static_cast<std::uint64_t>(sizes.pages * sizes.page);
  return use;
}

std::string generation_text(const Planned& planned) {
  const compile::Compiled& compiled = planned.compiled;
  const sdk::CacheSizes& sizes = compiled.settings.caches;
  CacheUse most;
  for (std::int64_t rank = 0; rank < planned.job.ranks; ++rank) {
    const CacheUse use = cache_use(compiled, rank);
    most = use.all > most.all ? use : most;
  }
  return fmt::format(
      "a step is a token of {}; a prompt and its answer have at most {} tokens\n{}"
      "caches {:>25}   {} on the rank with the most, {} a token: {} of {} tokens\n",
      compiled.groups == 1 ? counted(compiled.slots, "prompt")
                           : fmt::format("{} of {} prompts: stages work at {} groups of them at once",
                                         compiled.evaluation_rows.front(), compiled.slots, compiled.groups),
      sizes.of_sequence * sizes.page,
      planned.job.infer.slots > 0 ? ""
                                  : fmt::format("slots {:>26}   as many as [cluster] memory has room for, at most 32 "
                                                "for each stage and one for each prompt\n",
                                                compiled.slots),
      most.all, human_bytes(most.all), human_bytes(most.of_token), counted(sizes.pages, "page"), sizes.page);
}

/// If the job applies a model to arrays: the samples of a step and the size of the predictions. Else generation_text().
std::string predictions_text(const Planned& planned) {
  const compile::Compiled& compiled = planned.compiled;
  if (job::generates(planned.job)) {
    return generation_text(planned);
  }
  const std::int64_t batch = compiled.evaluation_rows.front();
  const std::string step = fmt::format("a step is a batch of {}", counted(batch, "sample"));
  if (compiled.dataset == nullptr) {
    return step + ", of a stream of records\n";
  }
  const graph::Function& forward = compiled.graph.functions.front();
  const graph::TensorType& outputs = forward.values[forward.outputs.front().value].type;
  const std::int64_t samples = compiled.dataset->evaluation_samples();
  return fmt::format("{}: {} in {}, predictions {}\n", step, counted(samples, "sample"),
                     counted(static_cast<std::int64_t>(compiled.evaluation_rows.size()), "batch", "batches"),
                     human_bytes(static_cast<std::uint64_t>(samples * (graph::element_count(outputs) / forward.rows)) *
                                 graph::element_bytes(outputs.dtype)));
}

std::string head_text(const Planned& planned) {
  const compile::Compiled& compiled = planned.compiled;
  const double flops = compile::flops_per_step(compiled);
  std::string text =
      title_text(planned) + fmt::format("parameters {:>21}\nFLOPs a step {:>19.0f}   {}\n",
                                        graph::parameter_count(compiled.graph), flops, human_flops(flops));
  text += transports_text(planned);
  if (const std::int64_t shared = planned.job.cluster.ranks_per_machine; shared > 0 && shared < planned.job.ranks) {
    const std::uint64_t bytes = compile::bytes_between_machines(compile::traffic_of(planned.job, compiled), shared);
    text += fmt::format("between machines {:>16}   {} a step, with {} each\n", bytes, human_bytes(bytes),
                        counted(shared, "rank"));
  }
  if (const auto* hook = compiled.partition.placements.find_hook(plan::HookKind::after_step)) {
    text +=
        fmt::format("a step is one that the strategy's hook follows, as it does every {} and the last\n", hook->every);
  }
  text += planned.job.task == job::Task::infer ? predictions_text(planned)
                                               : fmt::format("disk: {}\n", forecast::to_string(planned.disk));
  text += run::to_string(planned.beginning);
  if (const std::uint64_t bytes = compiled.dataset == nullptr ? 0 : compiled.dataset->host_bytes(); bytes > 0) {
    text += fmt::format("tokens of text {:>17}   {} on each host, which its ranks share\n", bytes, human_bytes(bytes));
  }
  for (const std::string& notice : data::name_notices(planned.job.data)) {
    text += notice + "\n";
  }
  if (const std::string untrained = workload::untrained_notice(compiled.graph); !untrained.empty()) {
    text += untrained + "\n";
  }
  text += planned.idle ? forecast::to_string(*planned.idle) + "\n" : "";
  if (const std::string unsplit = forecast::unsplit_notice(compiled, planned.forecast); !unsplit.empty()) {
    text += unsplit + "\n";
  }
  for (const forecast::RanksWithout& without : planned.without) {
    text += forecast::to_string(without) + "\n";
  }
  if (planned.machines() > 1) {
    text += fmt::format(
        "{} ranks need {} machines: [job] device = {} has units for {} on each; a run on this machine "
        "alone would be refused\n",
        planned.job.ranks, planned.machines(), planned.job.device, planned.ranks_here);
  }
  return text + (planned.fit ? forecast::to_string(*planned.fit) + "\n" : "");
}

}  // namespace

std::vector<AxisTransport> transports_of(const compile::Compiled& compiled) {
  const runtime::TransportSet& set = compiled.transports;
  const IdVector<mesh::AxisId, mesh::Axis>& axes = compiled.partition.placements.mesh.axes;
  std::vector<AxisTransport> transports;
  for (const mesh::AxisId axis : axes.ids()) {
    if (axes[axis].size > 1) {
      transports.push_back({.axis = axes[axis].name,
                            .transport = set.transports[set.of_axis[axis]].manifest().name,
                            .is_direct = set.moves_device_memory.contains(axis) && set.moves_device_memory[axis]});
    }
  }
  return transports;
}

const char* costs_of(const forecast::Forecast& forecast) {
  if (!forecast.step) {
    return "units";
  }
  return forecast.step->measured ? "measured" : "cluster";
}

std::string title_of(const std::vector<std::int64_t>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + mesh::ranks_text(ranks);
}

std::string plan_text(const Planned& planned, std::size_t width, bool every_rank) {
  const forecast::Forecast& forecast = planned.forecast;
  const std::vector<Category> categories = categories_of(*planned.compiled.device);
  std::string text = head_text(planned) + (forecast.step ? predicted_text(forecast) : "");
  if (every_rank || forecast.ranks.size() == 1) {
    for (const forecast::RankForecast& alike : forecast.ranks) {
      text += block(alike, title_of(alike.members), categories);
    }
  } else {
    text += summary_of_ranks(forecast, categories);
    text += forecast.timeline ? stages_text(planned) : "";
    text += "'--ranks 0,5,8-11' shows all that is known of some ranks, '--all' of every rank\n";
  }
  // A job that continues prompts has no timeline, because its stages work on different groups of slots at once.
  text += forecast.timeline && !job::generates(planned.job) ? timeline_text(planned, width) : "";
  return text + transients_text(planned.compiled);
}

std::string ranks_text(const Planned& planned, const std::vector<std::int64_t>& ranks) {
  std::string text = title_text(planned);
  for (const forecast::RankForecast& alike : planned.forecast.ranks) {
    std::vector<std::int64_t> wanted;
    std::ranges::set_intersection(ranks, alike.members, std::back_inserter(wanted));
    if (wanted.empty()) {
      continue;
    }
    const bool are_all = wanted.size() == alike.members.size();
    text += block(alike, title_of(wanted) + (are_all ? "" : ", alike: " + mesh::ranks_text(alike.members)),
                  categories_of(*planned.compiled.device));
  }
  return text;
}

}  // namespace shardrun::cli
