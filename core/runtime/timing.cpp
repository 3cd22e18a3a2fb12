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

std::vector<OpTime> Executor::profile() const {
  std::map<std::pair<std::string, std::string>, OpTime> sums;
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
