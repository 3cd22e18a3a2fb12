#include "core/metrics/exposition.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "core/metrics/json_text.h"

namespace shardrun::metrics {
namespace {

/// Which ranks' values a metric has.
enum class Kind : std::uint8_t {
  gauge,    ///< the first rank's value, for the run
  by_rank,  ///< a gauge with the label `rank`
  counter,  ///< counted by the first rank in an attempt; the attempts are added up
};

struct Metric {
  std::string_view field;
  std::string_view name;  ///< without the prefix "shardrun_"
  Kind kind;
  std::string_view help;
};

constexpr std::array metrics_shown = {
    Metric{"build_info", "build_info", Kind::gauge, "The version of the program."},
    Metric{"run_info", "run_info", Kind::gauge, "The job, its output folder and its task."},
    Metric{"ranks", "ranks", Kind::gauge, "Ranks of the run."},
    Metric{"last_step", "last_step", Kind::gauge, "The step at which the job ends."},
    Metric{"step", "step", Kind::gauge, "Steps done."},
    Metric{"loss", "loss", Kind::gauge, "Loss of the last step."},
    Metric{"val_loss", "validation_loss", Kind::gauge, "The last validation loss."},
    Metric{"grad_norm", "gradient_norm", Kind::gauge, "Norm of the gradient of the last step."},
    Metric{"lr", "learning_rate", Kind::gauge, "Learning rate of the last step."},
    Metric{"tokens_per_s", "tokens_per_second", Kind::gauge,
           "Tokens of the last step per second; samples, if they are not of tokens."},
    Metric{"step_s", "step_seconds", Kind::gauge, "Duration of the last step."},
    Metric{"comm_s", "communication_seconds", Kind::gauge,
           "Time of operations between ranks in the last step, of rank 0."},
    Metric{"comm_exposed_s", "exposed_communication_seconds", Kind::gauge,
           "The part of it in which rank 0 computed nothing."},
    Metric{"comm_hidden_s", "hidden_communication_seconds", Kind::gauge, "The part of it in which rank 0 computed."},
    Metric{"bandwidth", "sent_bytes_per_second", Kind::gauge,
           "Bytes that rank 0 sent in a second of these operations."},
    Metric{"flops_per_s", "flops_per_second", Kind::gauge, "Operations on numbers of rank 0 per second."},
    Metric{"utilisation", "utilisation_ratio", Kind::gauge, "The share of [cluster] flops that rank 0 reached."},
    Metric{"planned_bytes", "memory_planned_bytes", Kind::by_rank, "Planned memory of a rank."},
    Metric{"peak_bytes", "memory_peak_bytes", Kind::by_rank, "The most of its planned memory that a rank has used."},
    Metric{"slow_rank", "slow_rank", Kind::gauge, "Seconds of a step by which a slow rank holds up the others."},
    Metric{"checkpoints_saved", "checkpoints_saved_total", Kind::counter, "Checkpoints that were saved."},
    Metric{"checkpoints_failed", "checkpoints_failed_total", Kind::counter, "Checkpoints that could not be written."},
    Metric{"checkpoint_step", "checkpoint_step", Kind::gauge, "The step of the newest checkpoint."},
    Metric{"restarts", "restarts_total", Kind::counter, "How often the ranks were started again."},
};

const Metric* metric_of(std::string_view field) noexcept {
  const auto* const found = std::ranges::find(metrics_shown, field, &Metric::field);
  return found == metrics_shown.end() ? nullptr : found;
}

std::int64_t count_in(std::string_view text) noexcept {
  std::int64_t count = 0;
  std::from_chars(text.data(), text.data() + text.size(), count);
  return count;
}

}  // namespace

std::string metric_head(std::string_view name, std::string_view kind, std::string_view help) {
  return fmt::format("# HELP shardrun_{0} {2}\n# TYPE shardrun_{0} {1}\n", name, kind, help);
}

std::string labels_of(std::initializer_list<std::pair<std::string_view, std::string_view>> labels) {
  std::string text;
  for (const auto& [name, value] : labels) {
    text += fmt::format("{}{}=\"", text.empty() ? "{" : ",", name);
    for (const char c : value) {
      text += c == '\n' ? std::string("\\n") : c == '\\' || c == '"' ? std::string{'\\', c} : std::string{c};
    }
    text += '"';
  }
  return text + "}";
}

Exposition::Exposition(std::string_view version, std::string_view job, std::string_view output, std::string_view task,
                       std::int64_t ranks, std::int64_t last_step) {
  set("build_info", labels_of({{"version", version}}), "1");
  set("run_info", labels_of({{"run", job}, {"output", output}, {"task", task}}), "1");
  set("ranks", "", std::to_string(ranks));
  set("last_step", "", std::to_string(last_step));
  set("restarts", "", "0");
}

void Exposition::set(std::string_view field, const std::string& labels, std::string value) {
  values_[std::string(field)][labels] = std::move(value);
}

void Exposition::take(int rank, std::string_view line) {
  const std::scoped_lock lock(mutex_);
  for_numbers(line, [&](std::string_view field, std::string_view value) {
    const Metric* const metric = metric_of(field);
    if (metric == nullptr || (rank != 0 && metric->kind != Kind::by_rank)) {
      return;
    }
    if (metric->kind == Kind::counter) {
      const auto before = before_.find(field);
      return set(field, "", std::to_string(count_in(value) + (before == before_.end() ? 0 : before->second)));
    }
    set(field, metric->kind == Kind::by_rank ? labels_of({{"rank", std::to_string(rank)}}) : "",
        value == "null" ? "NaN" : std::string(value));
  });
}

void Exposition::take(const std::vector<SlowRank>& slow_ranks) {
  const std::scoped_lock lock(mutex_);
  values_.erase("slow_rank");
  for (const SlowRank& slow : slow_ranks) {
    const std::string rank = std::to_string(slow.rank);
    const char* const cause = to_string(slow.cause);
    set("slow_rank",
        slow.cause == SlowRank::Cause::link
            ? labels_of({{"rank", rank}, {"peer", std::to_string(slow.peer)}, {"cause", cause}})
            : labels_of({{"rank", rank}, {"cause", cause}}),
        fmt::format("{}", slow.behind_s));
  }
}

void Exposition::begin_again(std::int64_t ranks) {
  const std::scoped_lock lock(mutex_);
  set("ranks", "", std::to_string(ranks));
  set("restarts", "", std::to_string(count_in(values_["restarts"][""]) + 1));
  for (const Metric& metric : metrics_shown) {
    const auto values = values_.find(metric.field);
    if (values == values_.end()) {
      continue;
    }
    if (metric.kind == Kind::by_rank || metric.field == "slow_rank") {
      values_.erase(values);  // there may be fewer ranks now
    } else if (metric.kind == Kind::counter) {
      before_[std::string(metric.field)] = count_in(values->second.at(""));
    }
  }
}

std::string Exposition::text() const {
  const std::scoped_lock lock(mutex_);
  std::string text;
  for (const Metric& metric : metrics_shown) {
    const auto values = values_.find(metric.field);
    if (values == values_.end()) {
      continue;
    }
    text += metric_head(metric.name, metric.kind == Kind::counter ? "counter" : "gauge", metric.help);
    for (const auto& [labels, value] : values->second) {
      text += fmt::format("shardrun_{}{} {}\n", metric.name, labels, value);
    }
  }
  return text;
}

}  // namespace shardrun::metrics
