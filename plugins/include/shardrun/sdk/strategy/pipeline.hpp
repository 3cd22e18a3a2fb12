#pragma once

/// Pipelines for strategies: splits layers into chunks of similar cost, and makes the usual schedules as lists of
/// actions, or uses lists that the user wrote.

#include <shardrun/sdk/strategy/pipeline_csv.hpp>
#include <shardrun/sdk/strategy/plan.hpp>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace shardrun::sdk {

/// Relative costs of what comes before the layers, of each layer, and of what comes after them: predicted times if
/// known, else FLOPs. Bytes of parameters decide between equal costs.
[[nodiscard]] inline std::vector<double> relative_costs(const Graph& graph) {
  constexpr double little = 1e-4;
  std::vector<Layer> parts = {graph.before};
  parts.insert(parts.end(), graph.layers.begin(), graph.layers.end());
  parts.push_back(graph.behind);
  double all_seconds = 0;
  double all_flops = 0;
  double all_bytes = 0;
  const auto flops = [](const Layer& layer) {
    return static_cast<double>(layer.forward_flops) + static_cast<double>(layer.backward_input_flops) +
           static_cast<double>(layer.backward_weight_flops);
  };
  for (const Layer& part : parts) {
    all_seconds += part.seconds;
    all_flops += flops(part);
    all_bytes += static_cast<double>(part.parameter_bytes);
  }
  std::vector<double> costs;
  for (const Layer& part : parts) {
    costs.push_back((all_seconds > 0 ? part.seconds / all_seconds : flops(part) / std::max(1.0, all_flops)) +
                    little * static_cast<double>(part.parameter_bytes) / std::max(1.0, all_bytes));
  }
  return costs;
}

namespace detail {

/// Finds the cut into chunks with the least value. `weigh` gives a chunk's weight from its cost, and `combine` adds a
/// weight to the value of the chunks before it. Returns the value and the ends of the chunks. Among equal cuts it
/// prefers more layers in earlier chunks, because a slow stage delays the stages before it when a step ends. It makes
/// no chunk of infinite weight. `costs`: as relative_costs returns them.
template <class Combine, class Weigh>
[[nodiscard]] std::pair<double, std::vector<std::size_t>> best_cut(const std::vector<double>& costs,
                                                                   std::uint32_t chunks, Combine combine, Weigh weigh) {
  constexpr double rounding = 1 + 1e-9;  // a sum in another order must not count as less
  const std::size_t layers = costs.size() - 2;
  // best[l]: the least value for the chunks so far over the first l layers; from[c][l]: where chunk c then begins.
  std::vector<double> best(layers + 1, std::numeric_limits<double>::infinity());
  best[0] = 0;
  std::vector<std::vector<std::size_t>> from;
  for (std::uint32_t c = 0; c < chunks; ++c) {
    const bool last = c + 1 == chunks;
    std::vector<double> next(layers + 1, std::numeric_limits<double>::infinity());
    std::vector<std::size_t>& begin = from.emplace_back(layers + 1, 0);
    for (std::size_t end = last ? layers : 0; end <= layers; ++end) {
      double cost = (c == 0 ? costs.front() : 0) + (last ? costs.back() : 0);
      for (std::size_t l = end + 1; l-- > 0;) {
        if (const double all = combine(best[l], weigh(cost)); all * rounding < next[end]) {
          next[end] = all;
          begin[end] = l;
        }
        cost += l > 0 ? costs[l] : 0;
      }
    }
    best = std::move(next);
  }
  std::vector<std::size_t> ends(chunks);
  std::size_t end = layers;
  for (std::uint32_t c = chunks; c-- > 0;) {
    ends[c] = end;
    end = from[c][end];
  }
  return {best[layers], ends};
}

/// Parses a list such as "10, 11,11". Throws InvalidJob.
[[nodiscard]] inline std::vector<std::size_t> layer_counts(const std::string& text) {
  std::vector<std::size_t> counts;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto skip_spaces = [&] {
    while (at != end && *at == ' ') {
      ++at;
    }
  };
  while (true) {
    skip_spaces();
    const auto [next, fault] = std::from_chars(at, end, counts.emplace_back());
    at = next;
    skip_spaces();
    if (fault != std::errc() || (at != end && *at != ',')) {
      throw InvalidJob("layers = " + text + ": expected numbers of layers, such as 10, 11, 11, 8");
    }
    if (at == end) {
      return counts;
    }
    ++at;
  }
}

}  // namespace detail

/// Splits the layers into consecutive chunks so that the largest cost is as small as possible, and then the others as
/// even as possible. Chunk c is on stage c mod `stages`. The first chunk includes what comes before the layers, the
/// last what comes after them.
[[nodiscard]] inline std::vector<Chunk> balanced_chunks(const Graph& graph, std::uint32_t chunks,
                                                        std::uint32_t stages) {
  const std::vector<double> costs = relative_costs(graph);
  const auto largest = [](double a, double b) { return std::max(a, b); };
  const double most = detail::best_cut(costs, chunks, largest, [](double cost) { return cost; }).first * (1 + 1e-9);
  const auto square = [&](double cost) { return cost <= most ? cost * cost : std::numeric_limits<double>::infinity(); };
  const std::vector<std::size_t> ends = detail::best_cut(costs, chunks, std::plus<>(), square).second;
  std::vector<Chunk> result(chunks);
  for (std::uint32_t c = 0; c < chunks; ++c) {
    result[c] = {c == 0 ? 0 : static_cast<std::uint32_t>(ends[c - 1]), c % stages};
  }
  return result;
}

/// The chunks that the option `layers` describes; if it is empty, those of balanced_chunks. Throws InvalidJob.
[[nodiscard]] inline std::vector<Chunk> wanted_chunks(const Job& job, const Graph& graph, std::uint32_t chunks,
                                                      std::uint32_t stages) {
  const std::string text = job.options.text("layers");
  if (text.empty()) {
    return balanced_chunks(graph, chunks, stages);
  }
  const std::vector<std::size_t> counts = detail::layer_counts(text);
  std::vector<Chunk> result;
  std::size_t first = 0;
  for (const std::size_t count : counts) {
    const auto chunk = static_cast<std::uint32_t>(result.size());
    result.push_back({static_cast<std::uint32_t>(std::min(first, graph.layers.size())), chunk % stages});
    first += std::min(count, graph.layers.size() + 1);
  }
  if (counts.size() != chunks || first != graph.layers.size()) {
    throw InvalidJob("layers = " + text + ": expected " + std::to_string(chunks) +
                     (chunks == 1 ? " number" : " numbers") + ", one a " +
                     (chunks == stages ? "stage" : "chunk, in the order of the layers") + ", with the sum " +
                     std::to_string(graph.layers.size()) + ", the model's layers; found " +
                     std::to_string(counts.size()) + " with the sum " + std::to_string(first));
  }
  return result;
}

/// GPipe (Huang et al. 2018, arXiv:1811.06965): all forwards, then all backwards. One chunk per stage.
[[nodiscard]] inline std::vector<Action> gpipe_actions(std::uint32_t stage, std::uint32_t microbatches) {
  std::vector<Action> actions;
  for (const Action::Kind kind : {Action::Kind::forward, Action::Kind::backward}) {
    for (std::uint32_t m = 0; m < microbatches; ++m) {
      actions.push_back({kind, stage, m});
    }
  }
  return actions;
}

/// One forward, one backward (PipeDream-flush: Narayanan et al. 2021, arXiv:2104.04473, section 2.2). With several
/// chunks per stage it is interleaved (same section): microbatches go through the chunks in groups of as many as there
/// are stages. If the last group is smaller, the time slots of its missing microbatches stay empty. Without these gaps,
/// stages could wait for each other.
[[nodiscard]] inline std::vector<Action> one_forward_one_backward(std::uint32_t stage, std::uint32_t stages,
                                                                  std::uint32_t chunks_per_stage,
                                                                  std::uint32_t microbatches) {
  std::vector<Action> forwards;
  std::vector<Action> backwards;
  const std::uint32_t group = chunks_per_stage == 1 ? microbatches : stages;
  for (std::uint32_t first = 0; first < microbatches; first += group) {
    for (std::uint32_t v = 0; v < chunks_per_stage; ++v) {
      for (std::uint32_t m = first; m < first + group; ++m) {
        forwards.push_back({Action::Kind::forward, v * stages + stage, m});
        backwards.push_back({Action::Kind::backward, (chunks_per_stage - 1 - v) * stages + stage, m});
      }
    }
  }
  const std::size_t ahead =
      chunks_per_stage == 1 ? stages - stage - 1 : 2 * (stages - stage - 1) + (chunks_per_stage - 1) * stages;
  std::vector<Action> actions(forwards.begin(),
                              forwards.begin() + static_cast<std::ptrdiff_t>(std::min(ahead, forwards.size())));
  for (std::size_t b = 0; b < backwards.size(); ++b) {
    if (b + ahead < forwards.size()) {
      actions.push_back(forwards[b + ahead]);
    }
    actions.push_back(backwards[b]);
  }
  std::erase_if(actions, [&](const Action& action) { return action.microbatch >= microbatches; });
  return actions;
}

/// ZB-H1 (Qi et al. 2023, arXiv:2401.10241, section 2.3): one forward, one backward. Gradients of parameters are
/// computed when the stage would otherwise be idle, delayed by as many microbatches as there are stages before it.
[[nodiscard]] inline std::vector<Action> zero_bubble_h1(std::uint32_t stage, std::uint32_t stages,
                                                        std::uint32_t microbatches) {
  std::vector<Action> actions;
  const std::uint32_t ahead = std::min(microbatches, stages - stage - 1);
  for (std::uint32_t m = 0; m < ahead; ++m) {
    actions.push_back({Action::Kind::forward, stage, m});
  }
  for (std::uint32_t m = 0; m < microbatches; ++m) {
    if (m + ahead < microbatches) {
      actions.push_back({Action::Kind::forward, stage, m + ahead});
    }
    actions.push_back({Action::Kind::backward_input, stage, m});
    if (m >= stage) {
      actions.push_back({Action::Kind::backward_weight, stage, m - stage});
    }
  }
  for (std::uint32_t m = microbatches - std::min(stage, microbatches); m < microbatches; ++m) {
    actions.push_back({Action::Kind::backward_weight, stage, m});
  }
  return actions;
}

namespace detail {

inline constexpr std::int64_t default_chunks = 2;

}  // namespace detail

/// The options that `place_pipeline` reads.
[[nodiscard]] inline std::vector<Option> pipeline_options() {
  return {
      also_called(
          text_or_file_option("schedule", "1f1b", {"gpipe", "1f1b", "interleaved", "zb-h1"},
                              "in which order a stage works on its microbatches; a file has a line of actions a "
                              "stage, such as 0F0,0F1,0B0,0B1 (PyTorch's CSV)"),
          "pipeline_schedule pipeline_parallel_schedule pipeline_parallel_schedule_csv"),
      also_called(integer_option("chunks", detail::default_chunks, 1, 1024,
                                 "of layers that each stage has, in turn with the others; with schedule = interleaved"),
                  "virtual_stages num_virtual_stages virtual_pipeline_model_parallel_size num_model_chunks n_chunks"),
      also_called(
          text_option("layers", "", {},
                      "of each stage, such as 10, 11, 11, 8; with several chunks a stage, of each chunk; empty: "
                      "so that stages take about the same time"),
          "pipeline_model_parallel_layout split_points layers_per_stage")};
}

/// Throws InvalidJob if `chunks` is not its default although the schedule does not use it. With the default, nothing
/// tells whether the job file sets it.
inline void check_pipeline_options(const Job& job) {
  const std::string schedule = job.options.text("schedule");
  const std::int64_t chunks = job.options.integer("chunks");
  const bool is_file = job.options.contents("schedule").has_value();
  if (chunks != detail::default_chunks && (is_file || schedule != "interleaved")) {
    throw InvalidJob("chunks = " + std::to_string(chunks) + " has no effect with schedule = " + schedule +
                     (is_file ? ", a file that says which chunks there are" : ", which has one chunk a stage") +
                     ": leave it out, or set schedule = interleaved");
  }
}

/// Uses lists of actions that the user wrote. They set the number of chunks and the chunks' stages. Throws InvalidJob.
inline void place_written_pipeline(const Job& job, const Graph& graph, const std::string& mesh_axis,
                                   std::uint32_t stages, std::string_view csv, PlanWriter& plan) {
  const std::vector<std::vector<Action>> actions = actions_from_csv(csv);
  if (actions.size() != stages) {
    throw InvalidJob("it has " + std::to_string(actions.size()) + " lines, one a stage, and mesh axis '" + mesh_axis +
                     "' has " + std::to_string(stages) + " stages");
  }
  const std::vector<std::uint32_t> stage_of = stages_of_chunks(actions);
  if (stage_of.size() > 1024 * std::size_t{stages}) {
    throw InvalidJob("it has " + std::to_string(stage_of.size()) + " chunks, expected at most 1024 a stage");
  }
  std::vector<Chunk> chunks = wanted_chunks(job, graph, static_cast<std::uint32_t>(stage_of.size()), stages);
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    chunks[c].stage = stage_of[c];
  }
  plan.place_layers(mesh_axis, chunks);
  for (std::uint32_t stage = 0; stage < stages; ++stage) {
    plan.set_actions(stage, actions[stage]);
  }
}

/// Splits the layers over a mesh axis and sets every stage's actions by pipeline_options(). Throws InvalidJob.
inline void place_pipeline(const Job& job, const Graph& graph, const std::string& mesh_axis, std::uint32_t stages,
                           PlanWriter& plan) {
  check_pipeline_options(job);
  const std::string schedule = job.options.text("schedule");
  if (const std::optional<std::string> csv = job.options.contents("schedule")) {
    try {
      place_written_pipeline(job, graph, mesh_axis, stages, *csv, plan);
    } catch (const InvalidJob& invalid) {
      throw InvalidJob(schedule + ": " + invalid.what());
    }
    return;
  }
  const auto chunks_per_stage = static_cast<std::uint32_t>(job.options.integer("chunks"));
  const std::uint32_t chunks = schedule == "interleaved" && stages > 1 ? chunks_per_stage : 1;
  plan.place_layers(mesh_axis, wanted_chunks(job, graph, chunks * stages, stages));
  for (std::uint32_t stage = 0; stage < stages; ++stage) {
    if (schedule == "gpipe") {
      plan.set_actions(stage, gpipe_actions(stage, job.microbatches));
    } else if (schedule == "zb-h1") {
      plan.set_actions(stage, zero_bubble_h1(stage, stages, job.microbatches));
    } else {
      plan.set_actions(stage, one_forward_one_backward(stage, stages, chunks, job.microbatches));
    }
  }
}

}  // namespace shardrun::sdk
