#include "core/task/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/base/standard_error.h"
#include "core/files/atomic_file.h"
#include "core/files/mapped_file.h"
#include "core/metrics/rundir.h"

namespace shardrun::task {
namespace {

using Span = runtime::Timeline::Span;
using Kind = partition::Instruction::Kind;

constexpr std::int64_t compute_row = 1;

std::int64_t nanoseconds() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Rows of spans that may overlap: each is given the first row of its kind that is free.
class Rows {
 public:
  explicit Rows(metrics::Trace& trace) : trace_(trace) {}

  std::int64_t row_of(const std::string& kind, std::int64_t begin, std::int64_t end) {
    std::vector<Row>& rows = rows_[kind];
    for (Row& row : rows) {
      if (row.free_from <= begin) {
        row.free_from = end;
        return row.number;
      }
    }
    rows.push_back({.number = ++last_, .free_from = end});
    trace_.name_row(last_, rows.size() == 1 ? kind : fmt::format("{} ({})", kind, rows.size()));
    return last_;
  }

 private:
  struct Row {
    std::int64_t number;
    std::int64_t free_from;
  };

  metrics::Trace& trace_;
  std::map<std::string, std::vector<Row>> rows_;
  std::int64_t last_ = compute_row;
};

std::string transfer_name(const partition::Transfer& transfer) {
  return fmt::format("{} of {}", to_string(transfer.collective), transfer.name);
}

class StepTrace {
 public:
  StepTrace(metrics::Trace& trace, Rows& rows, const partition::Programs& programs, const device::Device& device)
      : trace_(trace), rows_(rows), programs_(programs), device_(device) {}

  /// `spans`: the step's, in order. `left_out`: how many more there were.
  void add(const TracedStep& step, std::span<const Span> spans, std::size_t left_out) {
    step_ = step.step;
    std::vector<metrics::JsonField> arguments;
    if (left_out > 0) {
      arguments.push_back({"instructions_left_out", static_cast<std::int64_t>(left_out)});
    }
    add_span({compute_row, fmt::format("step {}", step_), "step", step.begin, step.end}, std::move(arguments));
    for (std::size_t begin = 0; begin < spans.size();) {
      std::size_t end = begin + 1;
      while (end < spans.size() && spans[end].program == spans[begin].program &&
             spans[end].instruction > spans[end - 1].instruction) {
        ++end;
      }
      add_call(spans.subspan(begin, end - begin));
      begin = end;
    }
    for (const auto& [key, begin] : started_) {
      add_transfer(programs_.programs[key.first], key.second, begin, step.end, true);
    }
    started_.clear();
  }

 private:
  struct Event {
    std::int64_t row;
    std::string name;
    std::string_view category;
    std::int64_t begin;
    std::int64_t end;
  };

  void add_span(const Event& event, std::vector<metrics::JsonField> arguments) {
    arguments.push_back({"step", step_});
    trace_.add({.row = event.row,
                .name = event.name,
                .category = event.category,
                .begin = event.begin,
                .end = event.end,
                .arguments = arguments});
  }

  /// One run of a function.
  void add_call(std::span<const Span> spans) {
    const partition::Program& program = programs_.programs[spans.front().program];
    add_span({compute_row, program.function, "function", spans.front().begin, spans.back().end},
             {{"rows", program.rows}});
    for (const Span& span : spans) {
      const partition::Instruction& instruction = program.instructions[span.instruction];
      add_instruction(program, instruction, span);
      if (instruction.kind == Kind::start) {
        started_[{span.program, instruction.transfer}] = span.begin;
      } else if (instruction.kind == Kind::wait && !span.failed) {
        const auto started = started_.extract({span.program, instruction.transfer});
        add_transfer(program, instruction.transfer, started.mapped(), span.end, false);
      }
    }
  }

  void add_instruction(const partition::Program& program, const partition::Instruction& instruction, const Span& span) {
    Event event{compute_row, name_in_trace(program, instruction), category_in_trace(instruction), span.begin, span.end};
    std::vector<metrics::JsonField> arguments = {
        {"op", instruction.op->name}, {"function", program.function}, {"phase", graph::to_string(instruction.phase)}};
    if (instruction.layer >= 0) {
      arguments.push_back({"layer", std::int64_t{instruction.layer}});
    }
    if (instruction.flops > 0) {
      arguments.push_back({"flops", instruction.flops});
    }
    if (span.failed) {
      arguments.push_back({"state", "failed"});
    }
    if (instruction.kind == Kind::hook) {
      arguments.push_back({"call", std::int64_t{instruction.hook->call}});
    } else if (instruction.kind == Kind::move) {
      arguments.push_back({"bytes", moved_bytes(program, instruction)});
    }
    add_span(event, std::move(arguments));
  }

  [[nodiscard]] std::int64_t moved_bytes(const partition::Program& program,
                                         const partition::Instruction& instruction) const {
    std::int64_t elements = 0;
    for (const partition::Copy& copy : instruction.copies) {
      elements += graph::element_count(copy.shape);
    }
    const partition::Buffer& from = program.buffers[static_cast<std::size_t>(instruction.inputs.at(0))];
    return elements * static_cast<std::int64_t>(device_.element_bytes(from.type.dtype));
  }

  void add_transfer(const partition::Program& program, std::int32_t number, std::int64_t begin, std::int64_t end,
                    bool is_unfinished) {
    const partition::Transfer& transfer = program.transfers[static_cast<std::size_t>(number)];
    const auto axis = static_cast<std::size_t>(transfer.axis);
    const std::string& axis_name = programs_.mesh.axes[axis].name;
    const std::size_t element_bytes = device_.element_bytes(transfer.dtype);
    const std::uint64_t sent =
        partition::sent_bytes(transfer, mesh::coordinates_of(programs_.mesh, programs_.rank)[axis],
                              programs_.mesh.size(transfer.axis), element_bytes);
    std::vector<metrics::JsonField> arguments = {
        {"op", to_string(transfer.collective)},
        {"function", program.function},
        {"axis", axis_name},
        {"bytes", std::max(transfer.send.elements, transfer.recv.elements) * static_cast<std::int64_t>(element_bytes)},
        {"sent_bytes", static_cast<std::int64_t>(sent)}};
    if (is_unfinished) {
      arguments.push_back({"state", "not complete when the recording ended"});
    }
    const std::int64_t row = rows_.row_of("communication " + axis_name, begin, end);
    add_span({row, transfer_name(transfer), "communication", begin, end}, std::move(arguments));
  }

  metrics::Trace& trace_;
  Rows& rows_;
  const partition::Programs& programs_;
  const device::Device& device_;
  std::int64_t step_ = 0;
  std::map<std::pair<std::uint32_t, std::int32_t>, std::int64_t> started_;  ///< by program and transfer
};

std::int64_t steps_of(const job::Job& job) {
  return job.task == job::Task::train ? job.train.steps : job.iterate.steps;
}

/// What a step runs.
std::size_t instructions_per_step(const Compiled& compiled) {
  std::size_t count = 0;
  for (const std::size_t program : programs_of_step(compiled, compiled.programs)) {
    count += compiled.programs.programs[program].instructions.size();
  }
  return count;
}

std::int64_t steps_to_trace(const job::Job& job) { return std::min(job.trace_steps, steps_of(job)); }

}  // namespace

std::string name_in_trace(const partition::Program& program, const partition::Instruction& instruction) {
  const auto transfer = [&] {
    return transfer_name(program.transfers[static_cast<std::size_t>(instruction.transfer)]);
  };
  switch (instruction.kind) {
    case Kind::compute: return instruction.name;
    case Kind::hook: return instruction.name;
    case Kind::move: return "move " + instruction.name;
    case Kind::start: return "start " + transfer();
    case Kind::wait: return "wait for " + transfer();
  }
  return {};
}

std::string_view category_in_trace(const partition::Instruction& instruction) noexcept {
  switch (instruction.kind) {
    case Kind::compute: return "compute";
    case Kind::hook: return "hook";
    case Kind::move: return "move";
    case Kind::start: return "start";
    case Kind::wait: return "wait";
  }
  return {};
}

metrics::Trace trace_of(const std::vector<TracedStep>& steps, const runtime::Timeline& timeline,
                        const partition::Programs& programs, const device::Device& device) {
  metrics::Trace trace(programs.rank + 1, fmt::format("rank {}", programs.rank));
  trace.name_row(compute_row, "compute");
  Rows rows(trace);
  StepTrace writer(trace, rows, programs, device);
  const std::span<const Span> spans = timeline.spans();
  for (std::size_t s = 0; s < steps.size(); ++s) {
    const std::size_t end = s + 1 < steps.size() ? steps[s + 1].first_span : spans.size();
    writer.add(steps[s], spans.subspan(steps[s].first_span, end - steps[s].first_span),
               s + 1 == steps.size() ? timeline.left_out() : 0);
  }
  return trace;
}

Tracer::Tracer(const job::Job& job, const Compiled& compiled)
    : compiled_(compiled),
      first_(std::min(job.trace_first - 1, steps_of(job) - steps_to_trace(job))),
      most_steps_(static_cast<std::size_t>(steps_to_trace(job))),
      timeline_(most_steps_ * instructions_per_step(compiled)) {
  steps_.reserve(most_steps_);
}

Tracer::Recording::Recording(Tracer& tracer, runtime::Executor& executor, std::int64_t step)
    : tracer_(tracer),
      executor_(executor),
      is_recorded_(step >= tracer.first_ && tracer.steps_.size() < tracer.most_steps_) {
  if (is_recorded_) {
    tracer_.steps_.push_back(
        {.step = step + 1, .begin = nanoseconds(), .first_span = tracer_.timeline_.spans().size()});
    executor_.record(&tracer_.timeline_);
  }
}

Tracer::Recording::~Recording() {
  if (is_recorded_) {
    executor_.record(nullptr);
    tracer_.steps_.back().end = nanoseconds();
  }
}

void Tracer::write(const std::filesystem::path& output) {
  if (written_ || steps_.empty()) {
    return;
  }
  written_ = true;
  const std::filesystem::path path = metrics::trace_path(output, static_cast<int>(compiled_.programs.rank));
  std::error_code failed;
  std::filesystem::create_directories(path.parent_path(), failed);
  if (failed) {
    throw files::system_error("create the folder of traces", path.parent_path(), failed.value());
  }
  files::write_file_atomically(path, trace_of(steps_, timeline_, compiled_.programs, *compiled_.device).text());
}

namespace {

std::string joined_traces(const job::Job& job) {
  std::string all;
  for (std::int64_t rank = 0; rank < job.ranks; ++rank) {
    const std::filesystem::path path = metrics::trace_path(job.output, static_cast<int>(rank));
    std::error_code none;
    if (std::filesystem::exists(path, none)) {
      metrics::join_trace(all, files::MappedFile(path).text(), path.native());
    }
  }
  return all;
}

}  // namespace

void join_traces(const job::Job& job) {
  try {
    if (const std::string all = joined_traces(job); !all.empty()) {
      files::write_file_atomically(metrics::trace_path(job.output), all);
    }
  } catch (const Error& error) {
    write_to_standard_error(fmt::format("shardrun: there is no joined trace: {}\n", error.message()));
  }
}

}  // namespace shardrun::task
