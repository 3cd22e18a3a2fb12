#include "core/forecast/step_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <span>
#include <utility>

#include "core/partition/pipeline.h"

namespace shardrun::forecast {
namespace {

using InstructionSpan = runtime::Timeline::Span;
using EngineCall = runtime::Timeline::Call;
using EngineTransfer = runtime::Timeline::Moved;
using Kind = partition::Instruction::Kind;
using partition::Collective;
using partition::Instruction;
using partition::Program;
using partition::Transfer;
using plan::Action;

constexpr std::int64_t compute_row = 1;

/// Rows of a trace. Spans of one row do not overlap: a span goes to the first free row of its kind.
class Rows {
 public:
  explicit Rows(metrics::Trace& trace) : trace_(trace) {}

  /// `place`: the kind's position below the row `compute`, from 1 on. REQUIRES: calls are in the order of `begin`.
  std::int64_t row_of(const std::string& kind, std::int64_t place, std::int64_t begin, std::int64_t end) {
    std::vector<std::int64_t>& free_from = free_from_[place];
    std::size_t row = 0;
    while (row < free_from.size() && free_from[row] > begin) {
      ++row;
    }
    const std::int64_t number = place * most_alike + static_cast<std::int64_t>(row);
    if (row == free_from.size()) {
      free_from.push_back(end);
      trace_.name_row(number, row == 0 ? kind : fmt::format("{} ({})", kind, row + 1));
    }
    free_from[row] = end;
    return number;
  }

 private:
  static constexpr std::int64_t most_alike = 1000;  ///< a limit for the rows of a kind; few are used

  metrics::Trace& trace_;
  std::map<std::int64_t, std::vector<std::int64_t>> free_from_;  ///< per kind's place: when each row is free
};

std::string transfer_name(const Transfer& transfer) {
  return fmt::format("{} of {}", to_string(transfer.collective), transfer.name);
}

std::int64_t bytes_of(std::int64_t elements, graph::DType dtype) {
  return elements * static_cast<std::int64_t>(graph::element_bytes(dtype));
}

std::int64_t bytes_of(const Transfer& transfer) {
  return bytes_of(std::max(transfer.send.elements, transfer.recv.elements), transfer.dtype);
}

std::int64_t bytes_of(const Program& program, const std::vector<partition::BufferId>& operands) {
  std::int64_t bytes = 0;
  for (const partition::BufferId operand : operands) {
    bytes += static_cast<std::int64_t>(program.buffers[operand].bytes);
  }
  return bytes;
}

std::int64_t copied_bytes(const Program& program, const Instruction& instruction) {
  std::int64_t elements = 0;
  for (const partition::Copy& copy : instruction.copies) {
    elements += graph::element_count(copy.shape);
  }
  return bytes_of(elements, program.buffers[instruction.inputs.at(0)].type.dtype);
}

std::int64_t bytes_of(const Program& program, const partition::HookCall& call) {
  std::int64_t bytes = 0;
  for (const partition::Region& region : call.buffers) {
    bytes += bytes_of(region.elements, program.buffers[region.buffer].type.dtype);
  }
  return bytes;
}

class StepTrace {
 public:
  StepTrace(metrics::Trace& trace, Rows& rows, const partition::Programs& programs)
      : trace_(trace), rows_(rows), programs_(programs), at_(mesh::coordinates_of(programs.mesh, programs.rank)) {}

  /// Adds the calls and transfers of an engine in this step. REQUIRES: add() was called for the step.
  void add_engine(const TracedStep& step, const runtime::Timeline& timeline) {
    step_ = step.step;
    const auto is_in = [&](std::int64_t time) { return step.begin <= time && time <= step.end; };
    std::vector<EngineCall> calls;
    std::ranges::copy_if(timeline.calls(), std::back_inserter(calls),
                         [&](const EngineCall& call) { return is_in(call.begin); });
    std::ranges::stable_sort(calls, [](const EngineCall& a, const EngineCall& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
    add_engine_calls(calls);
    std::vector<EngineTransfer> transfers;
    for (const EngineTransfer& moved : timeline.moved()) {
      if (is_in(moved.start_begin)) {
        add_part_of(moved, "start ", "start", moved.start_begin, moved.start_end);
        transfers.push_back(moved);
      }
      if (moved.wait_end > 0 && is_in(moved.wait_begin)) {
        add_part_of(moved, "wait for ", "wait", moved.wait_begin, moved.wait_end);
      }
    }
    std::ranges::stable_sort(transfers, {}, [](const EngineTransfer& moved) { return begin_of(moved); });
    for (const EngineTransfer& moved : transfers) {
      add_transfer(moved, step.end);
    }
  }

  /// Adds a step. `spans`: its instructions, in order. `left_out`: the number of instructions that were not recorded.
  void add(const TracedStep& step, std::span<const InstructionSpan> spans, std::size_t left_out) {
    step_ = step.step;
    microbatch_ = 0;
    messages_.clear();
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
    for (const auto& [key, started] : started_) {
      transfers_.push_back(started);
      transfers_.back().end = step.end;
    }
    started_.clear();
    add_transfers();
  }

 private:
  struct Event {
    std::int64_t row;
    std::string name;
    std::string_view category;
    std::int64_t begin;
    std::int64_t end;
  };

  /// One execution of a transfer, from its start to its wait.
  struct UnderWay {
    const Program* program = nullptr;
    const Instruction* start = nullptr;
    std::int64_t begin = 0;
    std::int64_t end = 0;
    bool is_complete = false;
    std::int64_t microbatch = 0;  ///< number in the step of the function call's first microbatch
    std::string message;          ///< the message's name, equal at sender and receiver; empty: a collective
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

  /// The action of an instruction in a call of the repeated function. `first`: the number of the call's microbatch in
  /// the step.
  [[nodiscard]] Action action_of(const Instruction& at, std::int64_t first) const {
    Action action = programs_.actions.at(at.action);
    action.microbatch += static_cast<std::uint32_t>(first);
    return action;
  }

  static void add_action(std::vector<metrics::JsonField>& arguments, const Action& action) {
    arguments.push_back({"action", plan::letter(action.kind)});
    arguments.push_back({"chunk", std::int64_t{action.chunk}});
    arguments.push_back({"microbatch", std::int64_t{action.microbatch}});
  }

  /// Adds the instruction's action. Without one: `update` in the repeated function, in others the function's name.
  void add_action_of(std::vector<metrics::JsonField>& arguments, const Program& program, const Instruction& at,
                     std::int64_t first) const {
    if (at.action.exists()) {
      add_action(arguments, action_of(at, first));
    } else {
      arguments.push_back(
          {"action", program.role == graph::Role::repeated ? std::string_view("update") : program.function});
    }
  }

  /// Adds one execution of a function.
  void add_call(std::span<const InstructionSpan> spans) {
    const Program& program = programs_.programs[spans.front().program];
    add_function(program, spans.front().begin, spans.back().end);
    add_actions(program, spans);
    for (const InstructionSpan& span : spans) {
      const Instruction& instruction = program.instructions[span.instruction];
      add_instruction(program, instruction, span);
      if (instruction.kind == Kind::start) {
        started_[{span.program, instruction.transfer}] = {.program = &program,
                                                          .start = &instruction,
                                                          .begin = span.begin,
                                                          .microbatch = microbatch_,
                                                          .message = next_message(program, instruction)};
      } else if (instruction.kind == Kind::wait && !span.failed) {
        complete(std::move(started_.extract({span.program, instruction.transfer}).mapped()), span);
      }
    }
    microbatch_ += program.role == graph::Role::repeated ? static_cast<std::int64_t>(program.call_rows.size()) : 0;
  }

  void add_function(const Program& program, std::int64_t begin, std::int64_t end) {
    std::vector<metrics::JsonField> arguments = {{"rows", program.rows}};
    if (program.role != graph::Role::repeated) {
      arguments.push_back({"action", program.function});
    } else if (program.call_rows.size() == 1) {
      arguments.push_back({"microbatch", microbatch_});
    }
    add_span({compute_row, program.function, "function", begin, end}, std::move(arguments));
  }

  /// Adds the schedule's actions. Each lasts from its first op to its last instruction that is not a message.
  void add_actions(const Program& program, std::span<const InstructionSpan> spans) {
    partition::ActionId now;
    Event event{.row = compute_row, .name = {}, .category = "action", .begin = 0, .end = 0};
    Action action;
    const auto flush = [&] {
      if (now.exists()) {
        event.name = to_string(action);
        std::vector<metrics::JsonField> arguments;
        add_action(arguments, action);
        add_span(event, std::move(arguments));
      }
    };
    for (const InstructionSpan& span : spans) {
      const Instruction& at = program.instructions[span.instruction];
      if (at.kind == Kind::compute && at.action.exists() && at.action != now) {
        flush();
        now = at.action;
        action = action_of(at, microbatch_);
        event.begin = span.begin;
      }
      const bool is_message = at.transfer.exists() && partition::is_message(program.transfers[at.transfer]);
      if (at.action == now && !is_message) {
        event.end = span.end;
      }
    }
    flush();
  }

  void add_instruction(const Program& program, const Instruction& instruction, const InstructionSpan& span) {
    Event event{compute_row, name_in_trace(program, instruction), category_in_trace(instruction), span.begin, span.end};
    std::vector<metrics::JsonField> arguments = {
        {"op", instruction.op->name}, {"function", program.function}, {"phase", graph::to_string(instruction.phase)}};
    add_action_of(arguments, program, instruction, microbatch_);
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
    }
    arguments.push_back({"bytes", bytes_in_trace(program, instruction)});
    add_span(event, std::move(arguments));
  }

  /// The name of a message, equal at sender and receiver, which both count a link's messages; empty for a collective.
  std::string next_message(const Program& program, const Instruction& start) {
    const Transfer& transfer = program.transfers[start.transfer];
    if (!transfer.link.from.exists()) {
      return {};
    }
    const std::vector<std::int64_t> line = mesh::line_through(programs_.mesh, transfer.axis, programs_.rank);
    return fmt::format("step {}, rank {} to {}, {} {}", step_, line[transfer.link.from.index()],
                       line[transfer.link.to.index()], transfer.link.backward ? "backward" : "forward",
                       ++messages_[transfer.link]);
  }

  void complete(UnderWay transfer, const InstructionSpan& wait) {
    transfer.end = wait.end;
    transfer.is_complete = true;
    if (wait.transfer_ended > 0) {
      transfer.end = std::clamp(wait.transfer_ended, transfer.begin, wait.end);
      transfer.begin = std::clamp(wait.transfer_begun, transfer.begin, transfer.end);
    }
    transfers_.push_back(std::move(transfer));
  }

  /// Adds the calls of an engine. The time between its operations is shown as computing. `calls`: ascending by begin.
  void add_engine_calls(const std::vector<EngineCall>& calls) {
    const EngineCall* function = nullptr;
    std::int64_t since = 0;  // end of the function's latest operation
    const auto compute_until = [&](std::int64_t time) {
      if (function != nullptr && function->kind == EngineCall::Kind::engine && since < time) {
        add_span({compute_row, "compute", "compute", since, time}, engine_arguments("compute", function->name));
      }
    };
    for (const EngineCall& call : calls) {
      if (function != nullptr && call.begin >= function->end) {
        compute_until(function->end);
        function = nullptr;
      }
      const bool is_operation = call.kind == EngineCall::Kind::operation;
      compute_until(call.begin);
      function = is_operation ? function : &call;
      since = is_operation ? call.end : call.begin;
      std::vector<metrics::JsonField> arguments =
          engine_arguments(call.name, function == nullptr ? std::string_view() : function->name);
      if (is_operation) {
        arguments.push_back({"bytes", call.bytes});
      }
      if (call.failed) {
        arguments.push_back({"state", "failed"});
      }
      add_span({compute_row, call.name, is_operation ? "operation" : "function", call.begin, call.end},
               std::move(arguments));
    }
    compute_until(function == nullptr ? 0 : function->end);
  }

  /// `function`: the function that makes the call; "" if there is none.
  static std::vector<metrics::JsonField> engine_arguments(std::string_view op, std::string_view function) {
    std::vector<metrics::JsonField> arguments = {{"op", op}};
    if (!function.empty()) {
      arguments.push_back({"function", function});
      arguments.push_back({"action", function});
    }
    return arguments;
  }

  /// Adds a span for starting a transfer, or for waiting for it.
  void add_part_of(const EngineTransfer& moved, std::string_view what, std::string_view category, std::int64_t begin,
                   std::int64_t end) {
    add_span({compute_row, fmt::format("{}{}", what, moved.name), category, begin, end},
             {{"op", moved.name}, {"bytes", moved.bytes}});
  }

  static std::int64_t begin_of(const EngineTransfer& moved) {
    return moved.wait_end == 0 || moved.ended == 0 ? moved.start_begin
                                                   : std::clamp(moved.begun, moved.start_begin, moved.wait_end);
  }

  void add_transfer(const EngineTransfer& moved, std::int64_t end_of_step) {
    const bool is_complete = moved.wait_end > 0;
    const std::int64_t begin = begin_of(moved);
    const std::int64_t end = std::max(!is_complete       ? std::max(end_of_step, moved.start_end)
                                      : moved.ended == 0 ? moved.wait_end
                                                         : std::clamp(moved.ended, begin, moved.wait_end),
                                      begin + 1);
    const std::string& axis_name = programs_.mesh.axes[mesh::AxisId(0)].name;
    std::vector<metrics::JsonField> arguments = {{"op", moved.name}, {"axis", axis_name}, {"bytes", moved.bytes}};
    if (!is_complete) {
      arguments.push_back({"state", "not complete when the recording ended"});
    } else if (moved.kind != EngineTransfer::Kind::collective) {
      arguments.push_back({moved.kind == EngineTransfer::Kind::send ? metrics::message_sent : metrics::message_received,
                           moved.message});
    }
    constexpr std::array<std::string_view, 3> kinds = {"collectives", "send", "receive"};
    constexpr std::array<std::int64_t, 3> places = {3, 1, 2};  // the same places as for transfers of programs
    const auto kind = static_cast<std::size_t>(moved.kind);
    add_span({rows_.row_of(fmt::format("{} {}", kinds.at(kind), axis_name), places.at(kind), begin, end), moved.name,
              "communication", begin, end},
             std::move(arguments));
  }

  void add_transfers() {
    std::stable_sort(transfers_.begin(), transfers_.end(),
                     [](const UnderWay& a, const UnderWay& b) { return a.begin < b.begin; });
    for (const UnderWay& transfer : transfers_) {
      add_transfer(transfer);
    }
    transfers_.clear();
  }

  void add_transfer(const UnderWay& under_way) {
    const Transfer& transfer = under_way.program->transfers[under_way.start->transfer];
    const std::string& axis_name = programs_.mesh.axes[transfer.axis].name;
    const std::uint64_t sent = partition::sent_bytes(transfer, at_[transfer.axis], programs_.mesh.size(transfer.axis));
    std::vector<metrics::JsonField> arguments = {{"op", to_string(transfer.collective)},
                                                 {"function", under_way.program->function},
                                                 {"axis", axis_name},
                                                 {"bytes", bytes_of(transfer)},
                                                 {"sent_bytes", static_cast<std::int64_t>(sent)}};
    add_action_of(arguments, *under_way.program, *under_way.start, under_way.microbatch);
    if (!under_way.is_complete) {
      arguments.push_back({"state", "not complete when the recording ended"});
    }
    const bool sends = transfer.collective == Collective::send;
    const bool receives = transfer.collective == Collective::receive;
    if (under_way.is_complete && (sends || receives)) {
      arguments.push_back({sends ? metrics::message_sent : metrics::message_received, under_way.message});
    }
    const std::int64_t place = 1 + 3 * transfer.axis.number() + (sends ? 0 : receives ? 1 : 2);
    const std::string kind =
        fmt::format("{} {}", sends || receives ? to_string(transfer.collective) : "collectives", axis_name);
    // Not empty, so that an arrow can start at it.
    const std::int64_t end = std::max(under_way.end, under_way.begin + 1);
    add_span({rows_.row_of(kind, place, under_way.begin, end), transfer_name(transfer), "communication",
              under_way.begin, end},
             std::move(arguments));
  }

  metrics::Trace& trace_;
  Rows& rows_;
  const partition::Programs& programs_;
  const mesh::Coordinates at_;
  std::int64_t step_ = 0;
  std::int64_t microbatch_ = 0;  ///< number in the step of the next call's first microbatch
  std::map<partition::Link, std::int64_t> messages_;
  /// Transfers that have not ended, by program.
  std::map<std::pair<std::uint32_t, partition::TransferId>, UnderWay> started_;
  std::vector<UnderWay> transfers_;  ///< ended transfers of this step
};

}  // namespace

std::string name_in_trace(const partition::Program& program, const partition::Instruction& instruction) {
  const auto transfer = [&] { return transfer_name(program.transfers[instruction.transfer]); };
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

std::int64_t bytes_in_trace(const partition::Program& program, const partition::Instruction& instruction) {
  switch (instruction.kind) {
    case Kind::compute: return bytes_of(program, instruction.inputs) + bytes_of(program, instruction.outputs);
    case Kind::hook: return bytes_of(program, *instruction.hook);
    case Kind::move: return copied_bytes(program, instruction);
    case Kind::start:
    case Kind::wait: return bytes_of(program.transfers[instruction.transfer]);
  }
  return 0;
}

metrics::Trace trace_of(const std::vector<TracedStep>& steps, const runtime::Timeline& timeline,
                        const partition::Programs& programs) {
  metrics::Trace trace(programs.rank + 1, fmt::format("rank {}", programs.rank));
  trace.name_row(compute_row, "compute");
  Rows rows(trace);
  StepTrace writer(trace, rows, programs);
  const std::span<const InstructionSpan> spans = timeline.spans();
  for (std::size_t s = 0; s < steps.size(); ++s) {
    const std::size_t end = s + 1 < steps.size() ? steps[s + 1].first_span : spans.size();
    writer.add(steps[s], spans.subspan(steps[s].first_span, end - steps[s].first_span),
               s + 1 == steps.size() ? timeline.left_out() : 0);
    writer.add_engine(steps[s], timeline);
  }
  return trace;
}

}  // namespace shardrun::forecast
