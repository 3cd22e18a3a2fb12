#include "core/metrics/record.h"

#include <fmt/format.h>

#include <array>
#include <fstream>
#include <iterator>
#include <utility>

#include "core/base/human.h"
#include "core/base/median.h"
#include "core/files/folder.h"
#include "core/metrics/run_files.h"

namespace shardrun::metrics {
namespace {

/// The number of last steps over which the median step time is taken.
constexpr std::size_t median_window = 4096;

/// Private memory of this process outside the arena: malloc, libraries and stacks.
std::uint64_t private_bytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    if (word == "RssAnon:") {
      std::uint64_t kilobytes = 0;
      status >> kilobytes;
      return kilobytes * 1024;
    }
  }
  return 0;
}

}  // namespace

Record::Record(Display& display, const RunFolder& folder, int rank, Summary planned)
    : summary(std::move(planned)),
      display_(display),
      folder_(folder),
      begin_(std::chrono::steady_clock::now()),
      log_(log_path(folder.root(), rank)) {
  if (rank == 0) {
    lines_.emplace(metrics_path(folder.root()));
  }
  step_seconds_.reserve(median_window);
}

void Record::say(const std::string& line) {
  log(line);
  if (is_first()) {
    display_.line(line);
  }
}

void Record::log(const std::string& line) {
  log_.write(line);
  if (const std::string failure = log_.take_failure(); !failure.empty()) {
    display_.line(failure);
  }
}

void Record::count_step(double seconds) {
  if (step_seconds_.size() < median_window) {
    step_seconds_.push_back(seconds);
  } else {
    step_seconds_[timed_ % median_window] = seconds;
  }
  ++timed_;
  ++summary.steps;
}

void Record::keep_also(const OtherMetrics& others) {
  tells_ = others.numbers;
  if (lines_ && others.csv) {
    csv_.emplace(csv_path(folder_.root()), metrics_path(folder_.root()), others.fields);
  }
  if (lines_ && others.events) {
    files::create_folders(events_folder(folder_.root()), "the folder of events");
    std::ifstream job(job_path(folder_.root()));
    events_.emplace(events_folder(folder_.root()), others.done, std::string(std::istreambuf_iterator<char>(job), {}));
  }
}

void Record::write(const StepRecord& step) {
  std::array<JsonField, training_fields.size()> storage;
  write(fields_of(step, storage));
}

void Record::write(std::span<const JsonField> fields) {
  if (!lines_) {
    return;
  }
  folder_.require_owned();
  lines_->write(fields);
  if (csv_) {
    csv_->write(fields);
  }
  if (events_) {
    events_->write(fields);
  }
  if (tells_) {
    display_.numbers(lines_->line());
  }
}

void Record::add_validation(std::int64_t step, double val_loss) {
  if (!lines_) {
    return;
  }
  folder_.require_owned();
  lines_->add_validation(step, val_loss);
  if (csv_) {
    csv_->rewrite();
  }
  if (events_) {
    events_->write(std::array<JsonField, 2>{{{"step", step}, {"val_loss", val_loss}}});
  }
  if (tells_) {
    display_.numbers(lines_->line());
  }
}

void Record::tell(std::span<const JsonField> numbers) {
  if (tells_) {
    std::string line;
    append_line(line, numbers);
    display_.numbers(line);
  }
}

void Record::update(const screen::ProgressUpdate& update) {
  if (is_first()) {
    display_.update(update);
  }
}

void Record::results_are(Results results) {
  if (is_first()) {
    note_results(results);
    display_.results_are(results);
  }
}

void Record::now_at(std::string_view what, std::int64_t done, std::int64_t total) {
  if (is_first()) {
    display_.now_at(what, done, total);
  }
}

void Record::finish_progress() {
  if (is_first()) {
    display_.finish();
  }
}

void Record::finish(const char* status, int exit_code) {
  summary.status = status;
  summary.exit_code = exit_code;
  summary.seconds = seconds_since(begin_);
  if (!step_seconds_.empty()) {
    summary.step_ms_median = 1000 * median(step_seconds_);
  }
  summary.ranks[0].private_bytes = private_bytes();
  log(fmt::format("{} after {}", status, counted(summary.steps, "step")));
}

}  // namespace shardrun::metrics
