#include <algorithm>
#include <map>
#include <utility>

#include "core/runtime/executor.h"

namespace shardrun::runtime {

void Executor::note(Call& call, bool failed) noexcept {
  call.seconds += static_cast<double>(call.end - call.begin) * 1e-9;
  ++call.count;
  if (timeline_ != nullptr) {
    Timeline::Span span{
        .program = call.program, .instruction = call.number, .begin = call.begin, .end = call.end, .failed = failed};
    if (call.instruction->kind == partition::Instruction::Kind::wait && !failed) {
      const auto times = communicator_->times(call.transfer).value_or(Communicator::Times{});
      span.transfer_begun = times.begun;
      span.transfer_ended = times.ended;
    }
    timeline_->add(span);
  }
}

void Executor::start_profile() {
  profiling_ = true;
  timed_ = true;
}

void Executor::record(Timeline* timeline) {
  timeline_ = timeline;
  timed_ = profiling_ || timeline != nullptr;
}

void Executor::begin_call(const Timeline::Call& call) {
  if (call.kind != Timeline::Call::Kind::operation) {
    engine_function_ = call.name;
    seconds_in_function_ = 0;
  }
}

void Executor::end_call(Timeline::Call call) {
  const bool is_operation = call.kind == Timeline::Call::Kind::operation;
  if (profiling_) {
    const double seconds = static_cast<double>(call.end - call.begin) * 1e-9;
    const std::string op = is_operation                                ? call.name
                           : call.kind == Timeline::Call::Kind::engine ? "compute"
                                                                       : "the host";
    const std::string function = engine_function_.empty() ? "-" : engine_function_;  // the host's own
    OpTime& sum = engine_ops_[{function, op}];
    sum.function = function;
    sum.op = op;
    ++sum.calls;
    sum.seconds += is_operation ? seconds : seconds - seconds_in_function_;
    seconds_in_function_ += is_operation ? seconds : 0;
  }
  if (!is_operation) {
    engine_function_.clear();
  }
  if (timeline_ != nullptr) {
    timeline_->add(std::move(call));
  }
}

std::vector<OpTime> Executor::profile() const {
  std::map<std::pair<std::string, std::string>, OpTime> sums = engine_ops_;
  for (std::size_t p = 0; p < calls_.size(); ++p) {
    OpTime* timed = nullptr;  // its time includes the fused ops after it
    for (const Call& call : calls_[p]) {
      const std::string& function = programs_.programs[p].function;
      OpTime& sum = sums[{function, call.instruction->op->name}];
      sum.function = function;
      sum.op = call.instruction->op->name;
      sum.calls += call.count;
      sum.seconds += call.seconds;
      timed = call.is_fused ? timed : &sum;
      timed->flops += call.instruction->flops * call.count;
    }
  }
  std::vector<OpTime> times;
  for (auto& [key, time] : sums) {
    times.push_back(std::move(time));
  }
  std::sort(times.begin(), times.end(), [](const OpTime& a, const OpTime& b) { return a.seconds > b.seconds; });
  return times;
}

}  // namespace shardrun::runtime
