#include "core/train/step_meter.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

#include "core/metrics/record.h"

namespace shardrun::train {
namespace {

/// `after` − `before`.
partition::SentBytes difference(const partition::SentBytes& after, const partition::SentBytes& before) {
  partition::SentBytes sent;
  for (const auto& [axis, collectives] : after) {
    for (const auto& [collective, bytes] : collectives) {
      const auto old_axis = before.find(axis);
      const std::uint64_t old = old_axis == before.end() ? 0 : old_axis->second.at(collective);
      if (bytes > old) {
        sent[axis][collective] = bytes - old;
      }
    }
  }
  return sent;
}

}  // namespace

StepMeter::StepMeter(const runtime::Executor& executor) : executor_(executor), before_(executor.sent()) {
  begin_again();
}

void StepMeter::begin_again() {
  exposed_ = executor_.exposed_seconds();
  hidden_ = executor_.hidden_seconds();
  input_ = executor_.input_seconds();
  late_ = executor_.late_seconds();
  begin_ = std::chrono::steady_clock::now();
}

void StepMeter::all_is_given() { sent_ = difference(executor_.sent(), before_); }

double StepMeter::seconds() const { return metrics::seconds_since(begin_); }

StepMeasure StepMeter::end() const {
  return {.duration = seconds(),
          .exposed = executor_.exposed_seconds() - exposed_,
          .hidden = executor_.hidden_seconds() - hidden_,
          .input = executor_.input_seconds() - input_,
          .late = executor_.late_seconds() - late_,
          .sent = sent_ ? *sent_ : difference(executor_.sent(), before_)};
}

std::optional<std::chrono::nanoseconds> Stops::waited_for_core() noexcept {
  if (!statistics_.is_open()) {
    statistics_ = files::FileDescriptor(::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC));
  }
  std::array<char, 96> text{};
  const ssize_t bytes = ::pread(statistics_.get(), text.data(), text.size(), 0);
  // Nanoseconds in which the thread ran, those in which it waited, and how often.
  const std::string_view line(text.data(), static_cast<std::size_t>(std::max<ssize_t>(0, bytes)));
  const std::size_t space = line.find(' ');
  std::int64_t waited = 0;
  const bool is_there = space != std::string_view::npos &&
                        std::from_chars(line.data() + space + 1, line.data() + line.size(), waited).ec == std::errc();
  return is_there ? std::optional(std::chrono::nanoseconds(waited)) : std::nullopt;
}

void Stops::look() noexcept {
  constexpr std::chrono::milliseconds least{20};
  const std::optional<std::chrono::nanoseconds> waited = waited_for_core();
  const auto now = std::chrono::steady_clock::now();
  if (waited && waited_) {
    const std::chrono::nanoseconds late = now - looked_ - interval - (*waited - *waited_);
    if (late >= least) {
      nanoseconds_ += late.count();
      ++count_;
    }
  }
  looked_ = now;
  waited_ = waited;
}

}  // namespace shardrun::train
