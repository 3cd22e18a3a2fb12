#include "core/verify/meter.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/base/human.h"

namespace shardrun::verify {
namespace {

constexpr std::chrono::milliseconds live_interval{100};
constexpr std::chrono::seconds plain_interval{10};
constexpr std::chrono::seconds least_plain_interval{2};
/// The remaining time is shown only after this time and this share of the work: the first instructions move data, and
/// take longer than their operations say.
constexpr std::chrono::milliseconds least_measured{500};
constexpr double least_share = 0.05;

double seconds(screen::SteadyTime::duration duration) { return std::chrono::duration<double>(duration).count(); }

std::int64_t work_of(const partition::Instruction& instruction) { return instruction.flops + 1; }

}  // namespace

Meter::Meter(screen::ProgressSink sink, std::string title)
    : sink_(std::move(sink)), title_(std::move(title)), begin_(sink_.now()), shown_at_(begin_) {}

void Meter::expect(std::int64_t work) {
  total_ = work;
  done_ = 0;
  begin_ = sink_.now();
}

void Meter::at(std::string_view what) {
  what_ = what;
  show(sink_.now());
}

void Meter::add(std::int64_t work) {
  done_ = std::min(total_, done_ + work);
  const screen::SteadyTime now = sink_.now();
  if (is_due(now)) {
    show(now);
  }
}

void Meter::print(std::string_view line) {
  line_.clear();
  sink_.write(fmt::format("{}\n", line));
}

bool Meter::is_due(screen::SteadyTime now) const {
  const auto since = now - shown_at_;
  if (sink_.is_terminal) {
    return since >= live_interval;
  }
  const bool is_another_tenth = tenth() != shown_tenth_;
  return since >= plain_interval || (since >= least_plain_interval && is_another_tenth);
}

void Meter::show(screen::SteadyTime now) {
  shown_at_ = now;
  shown_tenth_ = tenth();
  if (!sink_.is_terminal) {
    sink_.write(describe(now) + "\n");
    return;
  }
  line_.write(describe(now));
}

std::string Meter::describe(screen::SteadyTime now) const {
  std::string text = fmt::format("{}: {}", title_, what_);
  if (total_ > 0) {
    text += fmt::format("  {}%",
                        static_cast<std::int64_t>(100.0 * static_cast<double>(done_) / static_cast<double>(total_)));
  }
  if (done_ < total_ && static_cast<double>(done_) >= least_share * static_cast<double>(total_) &&
      now - begin_ >= least_measured) {
    const double a_unit = seconds(now - begin_) / static_cast<double>(done_);
    text += fmt::format("  ETA {}", human_duration(a_unit * static_cast<double>(total_ - done_)));
  }
  return text;
}

std::int64_t work_of(const partition::Program& program) {
  std::int64_t work = 0;
  for (const partition::Instruction& instruction : program.instructions) {
    work += work_of(instruction);
  }
  return work;
}

InstructionWork::InstructionWork(const partition::Programs& programs, Meter* meter) : meter_(meter) {
  for (const partition::Program& program : programs.programs) {
    std::vector<std::int64_t>& work = work_.emplace_back();
    for (const partition::Instruction& instruction : program.instructions) {
      work.push_back(work_of(instruction));
    }
  }
}

void InstructionWork::follow(const std::vector<std::size_t>& programs) {
  programs_ = programs;
  program_ = 0;
  instruction_ = 0;
}

void InstructionWork::step() {
  while (program_ < programs_.size() && instruction_ == work_[programs_[program_]].size()) {
    ++program_;
    instruction_ = 0;
  }
  if (program_ < programs_.size() && meter_ != nullptr) {
    meter_->add(work_[programs_[program_]][instruction_++]);
  }
}

}  // namespace shardrun::verify
