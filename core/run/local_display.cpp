#include "core/run/local_display.h"

#include <chrono>

#include "core/checkpoint/saved_state.h"
#include "core/launch/signals.h"
#include "core/train/steps.h"

namespace shardrun::run {

LocalDisplay::LocalDisplay(const job::Job& job, const RunSettings& settings)
    : settings_(settings),
      rank_flops_(job.cluster.flops),
      screen_(settings.progress.write),
      progress_(screen::through(screen_, settings.progress), checkpoint::last_step(job),
                job.task == job::Task::train ? job.train.log_every : 0, train::rate_unit(job)),
      ticker_(std::chrono::seconds(1), [this] { progress_.tick(); }) {
  if (settings_.on_stop) {
    settings_.on_stop([this](int signal) {
      progress_.print(is_at_steps_ ? launch::stop_notice(signal) : launch::stop_notice(signal, "stopping"));
    });
  }
}

LocalDisplay::~LocalDisplay() {
  if (settings_.on_stop) {
    settings_.on_stop({});
  }
  progress_.leave();
  static_cast<void>(screen_.finish([] { return stop_requested() == 0; }));
}

void LocalDisplay::now_at(std::string_view what, std::int64_t done, std::int64_t total) {
  if (what == metrics::first_step_activity) {
    is_at_steps_ = true;
  }
  progress_.now_at(what, done, total);
}

void LocalDisplay::hand_over() {
  progress_.leave();
  static_cast<void>(screen_.finish());
}

void LocalDisplay::numbers(std::string_view line) {
  if (settings_.numbers != nullptr) {
    settings_.numbers->take(0, line);
  }
}

void LocalDisplay::rates(const metrics::RankRates& rates) {
  progress_.print(metrics::rates_line({rates}, rank_flops_));
}

void LocalDisplay::finish() {
  is_at_steps_ = false;
  progress_.finish();
}

void LocalDisplay::result(std::string_view text) {
  progress_.leave();
  screen_.write(text);
}

}  // namespace shardrun::run
