#include "core/task/local_display.h"

#include <chrono>

#include "core/launch/signals.h"
#include "core/task/saved_state.h"

namespace shardrun::task {

LocalDisplay::LocalDisplay(const job::Job& job, const RunSettings& settings)
    : settings_(settings),
      progress_(settings.progress, last_step(job), job.task == job::Task::train ? job.train.log_every : 0,
                rate_unit(job)),
      ticker_(std::chrono::seconds(1), [this] { progress_.tick(); }) {
  if (settings_.on_stop) {
    settings_.on_stop([this](int signal) { progress_.print(launch::stop_notice(signal)); });
  }
}

LocalDisplay::~LocalDisplay() {
  if (settings_.on_stop) {
    settings_.on_stop({});
  }
}

void LocalDisplay::now_at(std::string_view what, std::int64_t done, std::int64_t total) {
  progress_.now_at(what, done, total);
}

void LocalDisplay::result(std::string_view text) {
  progress_.leave();
  settings_.print(std::string(text));
}

}  // namespace shardrun::task
