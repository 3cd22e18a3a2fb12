#include "core/partition/lower.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "core/memory/layout.h"

namespace shardrun::partition {
namespace {

using memory::Range;

/// The last aligned offset at or before the extent's begin.
std::uint64_t aligned(const Range& extent) noexcept { return extent.begin / memory::alignment * memory::alignment; }

class Stager {
 public:
  explicit Stager(Program& program) : program_(program) {}

  std::uint64_t run() {
    for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
      Instruction& instruction = program_.instructions[i];
      const auto at = static_cast<std::int32_t>(i);
      if (instruction.kind == Instruction::Kind::start) {
        stage_transfer(program_.transfers[instruction.transfer], at);
      } else if (instruction.kind == Instruction::Kind::wait) {
        for (const Staged& staged : program_.transfers[instruction.transfer].staged) {
          program_.buffers[staged.buffer].last = at;
        }
      } else if (instruction.hook) {
        stage_hook(*instruction.hook, instruction.name, at);
      }
    }
    return place();
  }

 private:
  void stage_transfer(Transfer& transfer, std::int32_t at) {
    if (transfer.is_direct) {
      return;
    }
    const Range send = range_of(program_, transfer.send, transfer.dtype);
    const Range recv = range_of(program_, transfer.recv, transfer.dtype);
    const bool is_shared = send.exists() && recv.exists() && send.overlaps(recv);
    if (is_shared) {
      const Range both = {std::min(send.begin, recv.begin), std::max(send.end, recv.end)};
      const BufferId buffer = add(transfer.name, both, at);
      transfer.staged = {Staged{buffer, send.begin - aligned(both)}, Staged{buffer, recv.begin - aligned(both)}};
      return;
    }
    transfer.staged = {Staged{add(transfer.name, send, at), send.begin - aligned(send)},
                       Staged{add(transfer.name, recv, at), recv.begin - aligned(recv)}};
  }

  void stage_hook(HookCall& hook, const std::string& name, std::int32_t at) {
    for (const Region& region : hook.buffers) {
      const Range extent = range_of(program_, region, program_.buffers[region.buffer].type.dtype);
      hook.staged.push_back({add(name, extent, at), extent.begin - aligned(extent)});
    }
  }

  BufferId add(const std::string& name, const Range& extent, std::int32_t at) {
    const std::uint64_t bytes = extent.end - aligned(extent);
    const auto elements = static_cast<std::int64_t>(bytes);
    return program_.buffers.push_back({.name = name + "/staged",
                                       .type = {graph::DType::u8, {elements}, {""}},
                                       .rounded = graph::DType::u8,
                                       .box = {{0}, {elements}},
                                       .global = {elements},
                                       .category = Category::communication,
                                       .bytes = bytes,
                                       .first = at,
                                       .last = at,
                                       .is_staged = true});
  }

  std::uint64_t place() {
    std::vector<Buffer*> staged;
    std::vector<memory::Interval> intervals;
    for (Buffer& buffer : program_.buffers) {
      if (buffer.is_staged) {
        staged.push_back(&buffer);
        intervals.push_back({buffer.bytes, buffer.first, buffer.last});
      }
    }
    const memory::Layout layout = memory::place(intervals);
    for (std::size_t i = 0; i < staged.size(); ++i) {
      staged[i]->offset = layout.offsets[i];
    }
    return layout.bytes;
  }

  Program& program_;
};

}  // namespace

std::uint64_t host_room(const Programs& programs, const graph::Graph& graph) {
  std::uint64_t room = 0;
  const auto add = [&](const Program& program, const std::vector<Port>& ports) {
    std::map<std::size_t, std::uint64_t> of_calls;
    for (const Port& port : ports) {
      of_calls[port.call] += memory::align_up(program.buffers[port.buffer].bytes);
    }
    for (const auto& [call, bytes] : of_calls) {
      room = std::max(room, bytes);
    }
  };
  for (const Program& program : programs.programs) {
    add(program, program.inputs);
    add(program, program.outputs);
  }
  for (const graph::StateId state : graph.states.ids()) {
    if (graph.states[state].kind == graph::StateKind::metric) {
      room = std::max(room, memory::align_up(programs.finalized[state].bytes));
    }
  }
  return room;
}

std::uint64_t add_staging(Program& program) { return Stager(program).run(); }

}  // namespace shardrun::partition
