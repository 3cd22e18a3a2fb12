#include "core/metrics/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "core/metrics/human.h"

namespace shardrun::metrics {
namespace {

constexpr std::chrono::milliseconds live_interval{100};
constexpr std::chrono::seconds plain_interval{10};
constexpr std::size_t no_limit = std::numeric_limits<std::size_t>::max();

double seconds(SteadyTime::duration duration) { return std::chrono::duration<double>(duration).count(); }

/// Which tenth of the run a step lies in.
std::int64_t tenth(std::int64_t step, std::int64_t total) { return total > 0 ? step * 10 / total : 0; }

std::string step_text(std::int64_t step, std::int64_t total) {
  return total > 0 ? fmt::format("step {}/{} {}%", step, total, step * 100 / total) : fmt::format("step {}", step);
}

std::string loss_text(double loss) { return loss < 1e4 ? fmt::format("{:.4f}", loss) : fmt::format("{:.4g}", loss); }

std::size_t terminal_width(int fd) {
  constexpr std::size_t usual = 80;
  winsize size = {};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : usual;
}

}  // namespace

ProgressSink descriptor_sink(int fd, const char* term) {
  const std::string_view kind = term == nullptr ? "" : term;
  ProgressSink sink;
  sink.write = [fd](std::string_view text) {
    while (!text.empty()) {
      const ssize_t written = ::write(fd, text.data(), text.size());
      if (written < 0 && errno == EINTR) {
        continue;
      }
      if (written <= 0) {
        return;
      }
      text.remove_prefix(static_cast<std::size_t>(written));
    }
  };
  sink.is_terminal = kind != "dumb" && !kind.empty() && ::isatty(fd) == 1;
  sink.width = [fd] { return terminal_width(fd); };
  sink.now = [] { return std::chrono::steady_clock::now(); };
  return sink;
}

Progress::Progress(ProgressSink sink, std::int64_t total_steps, std::int64_t log_every, std::string unit)
    : sink_(std::move(sink)), total_(total_steps), log_every_(log_every), unit_(std::move(unit)), made_(sink_.now()) {}

void Progress::Rates::add(double rate) {
  if (rate > 0) {
    ++steps;
    inverses += 1 / rate;
  }
}

double Progress::Rates::together() const { return steps == 0 ? 0 : static_cast<double>(steps) / inverses; }

void Progress::update(const ProgressUpdate& update) {
  const SteadyTime now = sink_.now();
  // As a line of its own the last step comes with `finish`.
  const bool is_left_to_finish = !sink_.is_terminal && total_ > 0 && update.step == total_;
  const bool is_due = !is_left_to_finish &&
                      (!first_ || (sink_.is_terminal ? now - shown_at_ >= live_interval : due_as_line(update, now)));
  if (!first_) {
    first_ = {update.step, now};
  }
  last_ = update;
  unshown_.add(update.rate);
  all_.add(update.rate);
  if (update.val_loss) {
    val_loss_ = update.val_loss;
  }
  if (is_due && !(sink_.is_behind && sink_.is_behind())) {
    show(now);
  }
}

void Progress::print(std::string_view line) {
  if (live_width_ == 0) {
    sink_.write(fmt::format("{}\n", line));
    return;
  }
  sink_.write(fmt::format("\r{:{}}\r{}\n", "", live_width_, line));
  live_width_ = 0;
  show(sink_.now());
}

void Progress::finish() {
  if (!first_) {
    return;
  }
  finished_ = true;
  if (sink_.is_terminal) {
    show(sink_.now());
    sink_.write("\n");
    live_width_ = 0;
  } else {
    show(sink_.now());
  }
}

bool Progress::due_as_line(const ProgressUpdate& update, SteadyTime now) const {
  if (update.val_loss) {
    return true;
  }
  if (log_every_ > 0) {
    return update.step % log_every_ == 0;
  }
  return now - shown_at_ >= plain_interval || tenth(update.step, total_) != tenth(shown_step_, total_);
}

void Progress::show(SteadyTime now) {
  shown_step_ = last_.step;
  shown_at_ = now;
  write_line(now);
  unshown_ = {};
}

void Progress::write_line(SteadyTime now) {
  if (!sink_.is_terminal) {
    sink_.write(describe(now, no_limit) + '\n');
    return;
  }
  // The last column stays free: some terminals wrap as soon as it is written.
  const std::size_t columns = std::max<std::size_t>(sink_.width(), 2) - 1;
  const std::string line = describe(now, columns);
  sink_.write(fmt::format("\r{:{}}", line, std::min(std::max(live_width_, line.size()), columns)));
  live_width_ = line.size();
}

std::string Progress::describe(SteadyTime now, std::size_t width) const {
  // Most telling first: what does not fit is left off at the end.
  std::vector<std::string> parts = {step_text(last_.step, total_)};
  if (last_.loss) {
    parts.push_back(fmt::format("loss {}", loss_text(*last_.loss)));
  }
  if (val_loss_) {
    parts.push_back(fmt::format("val {}", loss_text(*val_loss_)));
  }
  if (finished_) {
    parts.push_back(fmt::format("took {}", human_duration(seconds(now - made_))));
  } else if (last_.step > first_->step && total_ > last_.step) {
    const double step_s = seconds(now - first_->at) / static_cast<double>(last_.step - first_->step);
    parts.push_back(fmt::format("ETA {}", human_duration(step_s * static_cast<double>(total_ - last_.step))));
  }
  const Rates& rates = finished_ || unshown_.steps == 0 ? all_ : unshown_;
  parts.push_back(fmt::format("{} {}/s", human_count(rates.together()), unit_));

  std::string line = parts.front().substr(0, width);
  for (const std::string& part : std::span(parts).subspan(1)) {
    if (line.size() + 2 + part.size() > width) {
      break;
    }
    line += "  " + part;
  }
  return line;
}

}  // namespace shardrun::metrics
