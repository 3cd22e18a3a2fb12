#include "core/screen/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <exception>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "core/base/human.h"
#include "core/base/process.h"
#include "core/base/text.h"

namespace shardrun::screen {
namespace {

constexpr std::chrono::milliseconds live_interval{100};
constexpr std::chrono::seconds plain_interval{10};
/// Activities that take less than this are not shown beside the step. Longer ones are shown with their time.
constexpr std::chrono::seconds activity_interval{1};
/// A step that takes longer than this is shown with its time.
constexpr std::chrono::seconds step_interval{3};
constexpr std::chrono::seconds usual_gap{1};  ///< the usual time between ticks
/// A gap up to this is normal on a busy machine.
constexpr std::chrono::seconds longest_gap{3};
constexpr std::size_t no_limit = std::numeric_limits<std::size_t>::max();

double seconds(SteadyTime::duration duration) { return std::chrono::duration<double>(duration).count(); }

/// The tenth of the run in which a step lies.
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

void LiveLine::write(std::string_view text) {
  const std::size_t columns = room();
  const std::string_view shown = text.substr(0, columns);
  sink_.write(fmt::format("\r{:{}}", shown, std::min(std::max(width_, shown.size()), columns)));
  width_ = shown.size();
}

void LiveLine::clear() {
  if (is_shown()) {
    sink_.write(fmt::format("\r{:{}}\r", "", width_));
    width_ = 0;
  }
}

void LiveLine::keep() {
  if (is_shown()) {
    sink_.write("\n");
    width_ = 0;
  }
}

Progress::Progress(ProgressSink sink, std::int64_t total_steps, std::int64_t log_every, std::string unit)
    : sink_(std::move(sink)), total_(total_steps), log_every_(log_every), unit_(std::move(unit)), made_(sink_.now()) {
  activity_.since = made_;
}

Progress::~Progress() { leave(); }

SteadyTime Progress::now() const { return sink_.now() - standstill_; }

void Progress::notice_standstill() {
  const SteadyTime now = sink_.now();
  const SteadyTime::duration gap = now - ticked_at_.value_or(now);
  ticked_at_ = now;
  if (gap > longest_gap) {
    standstill_ += gap - usual_gap;
    // Times since the last tick came from a clock that did not yet leave out the standstill, so they are corrected.
    const SteadyTime latest = this->now();
    for (SteadyTime* const noted : {&last_at_, &shown_at_, &activity_.since}) {
      *noted = std::min(*noted, latest);
    }
    if (first_) {
      first_->at = std::min(first_->at, latest);
    }
    longest_step_ = longest_step_at_tick_;
  }
  longest_step_at_tick_ = longest_step_;
}

void Progress::Rates::add(double rate) {
  if (rate > 0) {
    ++steps;
    inverses += 1 / rate;
  }
}

double Progress::Rates::together() const { return steps == 0 ? 0 : static_cast<double>(steps) / inverses; }

void Progress::update(const ProgressUpdate& update) {
  const std::lock_guard lock(mutex_);
  const SteadyTime now = this->now();
  // Without a terminal, `finish` writes the line of the last step.
  const bool is_left_to_finish = !sink_.is_terminal && total_ > 0 && update.step == total_;
  const bool is_due = !is_left_to_finish &&
                      (!first_ || (sink_.is_terminal ? now - shown_at_ >= live_interval : due_as_line(update, now)));
  if (first_) {
    longest_step_ = std::max(longest_step_, now - last_at_);
  } else {
    first_ = {update.step, now};
  }
  last_ = update;
  last_at_ = now;
  is_left_ = false;
  begin("", now);
  unshown_.add(update.rate);
  all_.add(update.rate);
  if (update.val_loss) {
    validation_ = {*update.val_loss, update.step};
  }
  if (is_due && !is_behind()) {
    show(now);
  }
}

void Progress::begin(std::string_view what, SteadyTime now) {
  activity_ = {
      .what = std::string(what),
      .since = now,
      .line_due = what.empty() ? std::max<SteadyTime::duration>(plain_interval, 2 * longest_step_) : plain_interval};
}

void Progress::now_at(std::string_view what, std::int64_t done, std::int64_t total) {
  const std::lock_guard lock(mutex_);
  const SteadyTime now = this->now();
  const std::string shown = printable(what);
  const bool is_new = shown != activity_.what;
  if (is_new) {
    begin(shown, now);
  }
  activity_.done = done;
  activity_.total = total;
  is_left_ = false;
  const bool is_alone = !first_ && is_new;
  const bool is_due = now - activity_.since >= activity_interval && now - shown_at_ >= live_interval;
  if (sink_.is_terminal && (is_alone || is_due) && !is_behind()) {
    shown_at_ = now;
    write_line(now);
  }
}

void Progress::tick() {
  const std::lock_guard lock(mutex_);
  notice_standstill();
  const SteadyTime now = this->now();
  const SteadyTime::duration lasted = now - activity_.since;
  if (is_left_ || is_behind() || (activity_.what.empty() && (!first_ || finished_))) {
    return;
  }
  if (sink_.is_terminal) {
    if (lasted >= (activity_.what.empty() ? step_interval : activity_interval)) {
      shown_at_ = now;
      write_line(now);
    }
  } else if (lasted >= activity_.line_due) {
    activity_.line_due = 2 * lasted;
    write_line(now);
  }
}

void Progress::print(std::string_view line) {
  const std::lock_guard lock(mutex_);
  const bool is_live = line_.is_shown();
  line_.clear();
  sink_.write(printable_lines(line) + '\n');
  if (is_live) {
    write_line(now());
  }
}

void Progress::finish() {
  const std::lock_guard lock(mutex_);
  const SteadyTime now = this->now();
  begin("", now);
  finished_ = true;
  if (!first_) {
    line_.clear();
    return;
  }
  show(now);
  line_.keep();
}

void Progress::leave() noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (first_ && !finished_) {
      line_.keep();
    }
    line_.clear();  // because an activity is not a result
    begin("", now());
    is_left_ = true;
  } catch (const std::exception&) {
    // Ignored: the screen must not make a run fail.
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
  line_.write(describe(now, line_.room()));
}

std::string Progress::activity_text(SteadyTime now) const {
  const bool is_step = activity_.what.empty();
  const SteadyTime::duration lasted = now - activity_.since;
  if (finished_ ? is_step : first_ && lasted < (is_step ? step_interval : activity_interval)) {
    return "";
  }
  std::string text = is_step ? fmt::format("step {}", last_.step + 1) : activity_.what;
  if (activity_.total > 0) {
    text += fmt::format(" {}/{}", activity_.done, activity_.total);
  } else if (activity_.done > 0) {
    text += fmt::format(" {}", activity_.done);
  }
  if (lasted >= activity_interval) {
    text += fmt::format(", {:.0f}s", std::floor(seconds(lasted)));
  }
  return text;
}

std::string Progress::describe(SteadyTime now, std::size_t width) const {
  // The parts are in order of importance, because those at the end are left out if they do not fit.
  std::vector<std::string> parts;
  const auto add = [&](const std::string& part) {
    if (!part.empty()) {
      parts.push_back(part);
    }
  };
  const std::string activity = activity_text(now);
  if (!first_ || (finished_ && !activity.empty())) {
    return activity.substr(0, width);
  }
  add(step_text(last_.step, total_));
  add(activity_.what.empty() ? "" : activity);
  if (last_.loss) {
    add(fmt::format("loss {}", loss_text(*last_.loss)));
  }
  if (validation_ && validation_->step == last_.step) {
    add(fmt::format("val {}", loss_text(validation_->loss)));
  } else if (validation_ && sink_.is_terminal) {
    add(fmt::format("val {} (step {})", loss_text(validation_->loss), validation_->step));
  }
  if (finished_) {
    add(fmt::format("took {}", human_duration(seconds(now + standstill_ - made_))));
  } else if (last_.step > first_->step && total_ > last_.step) {
    const double step_s = seconds(last_at_ - first_->at) / static_cast<double>(last_.step - first_->step);
    add(fmt::format("ETA {}", human_duration(step_s * static_cast<double>(total_ - last_.step))));
  }
  const Rates& rates = finished_ || unshown_.steps == 0 ? all_ : unshown_;
  add(fmt::format("{} {}/s", human_count(rates.together()), unit_));
  add(activity_.what.empty() ? activity : "");

  std::string line = parts.front().substr(0, width);
  for (const std::string& part : std::span(parts).subspan(1)) {
    if (line.size() + 2 + part.size() > width) {
      break;
    }
    line += "  " + part;
  }
  return line;
}

Ticker::Ticker(std::chrono::milliseconds interval, std::function<void()> tick) {
  const auto run = [this, interval, tick = std::move(tick)] {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, interval, [this] { return ending_; })) {
      lock.unlock();
      try {
        tick();
      } catch (const std::exception&) {
        return;
      }
      lock.lock();
    }
  };
  // SIGPIPE stays unblocked, because it is delivered to the thread that writes.
  thread_ = thread_without_signals("the thread that shows progress", run, SIGPIPE);
}

Ticker::~Ticker() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

}  // namespace shardrun::screen
