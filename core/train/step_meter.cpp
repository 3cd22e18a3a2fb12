#include "core/train/step_meter.h"

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

}  // namespace shardrun::train
