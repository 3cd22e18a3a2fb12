#include "core/partition/partition.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/memory/layout.h"
#include "core/partition/lower.h"

namespace shardrun::partition {
namespace {

Category category_of(graph::StateKind kind) noexcept {
  switch (kind) {
    case graph::StateKind::parameter: return Category::parameters;
    case graph::StateKind::gradient: return Category::gradients;
    case graph::StateKind::optimizer: return Category::optimizer;
    case graph::StateKind::metric:
    case graph::StateKind::field: return Category::activations;
  }
  return Category::activations;
}

std::vector<Buffer> state_buffers(const graph::Graph& graph, const device::Device& device) {
  std::vector<Buffer> buffers;
  for (const graph::State& state : graph.states) {
    buffers.push_back({.name = state.name,
                       .type = state.type,
                       .category = category_of(state.kind),
                       .bytes = static_cast<std::uint64_t>(graph::element_count(state.type)) *
                                device.element_bytes(state.type.dtype)});
  }
  return buffers;
}

/// States one after the other, a category at a time. Returns where the transients may begin.
std::uint64_t place_states(std::vector<Buffer>& states) {
  std::uint64_t offset = 0;
  for (const Category category :
       {Category::parameters, Category::gradients, Category::optimizer, Category::activations}) {
    for (Buffer& state : states) {
      if (state.category == category) {
        state.offset = offset;
        offset += memory::align_up(state.bytes);
      }
    }
  }
  return offset;
}

/// Offsets of one function's transients, its scratch among them, from `base` on.
void place_transients(Program& program, std::size_t states, std::uint64_t base) {
  std::vector<memory::Interval> intervals;
  for (std::size_t b = states; b < program.buffers.size(); ++b) {
    intervals.push_back({program.buffers[b].bytes, program.buffers[b].first, program.buffers[b].last});
  }
  const std::size_t buffers = intervals.size();
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const auto at = static_cast<std::int32_t>(i);
    intervals.push_back({program.instructions[i].scratch_bytes, at, at});
  }
  const memory::Layout layout = memory::place(intervals);
  for (std::size_t b = 0; b < buffers; ++b) {
    program.buffers[states + b].offset = base + layout.offsets[b];
  }
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    program.instructions[i].scratch_offset = base + layout.offsets[buffers + i];
  }
  program.transient_bytes = layout.bytes;
  std::tie(program.least_bytes, program.peak_instruction) = memory::most_live(intervals);
}

std::uint64_t sum(const std::vector<Buffer>& states, Category category) {
  std::uint64_t bytes = 0;
  for (const Buffer& state : states) {
    bytes += state.category == category ? state.bytes : 0;
  }
  return bytes;
}

/// Pages that some buffer or scratch of some program touches.
std::uint64_t touched(const Programs& programs) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (const Buffer& state : programs.states) {
    ranges.emplace_back(state.offset, state.bytes);
  }
  for (const Program& program : programs.programs) {
    for (std::size_t b = programs.states.size(); b < program.buffers.size(); ++b) {
      ranges.emplace_back(program.buffers[b].offset, program.buffers[b].bytes);
    }
    for (const Instruction& instruction : program.instructions) {
      ranges.emplace_back(instruction.scratch_offset, instruction.scratch_bytes);
    }
  }
  return memory::touched_bytes(std::move(ranges));
}

MemoryUse measure(const Programs& programs) {
  MemoryUse use;
  use.parameters = sum(programs.states, Category::parameters);
  use.gradients = sum(programs.states, Category::gradients);
  use.optimizer = sum(programs.states, Category::optimizer);
  const Program* largest = nullptr;
  for (const Program& program : programs.programs) {
    if (largest == nullptr || program.transient_bytes > largest->transient_bytes) {
      largest = &program;
    }
  }
  if (largest != nullptr && !largest->instructions.empty()) {
    const auto last = largest->instructions.size() - 1;
    const auto peak = std::min(static_cast<std::size_t>(largest->peak_instruction), last);
    use.scratch = largest->instructions[peak].scratch_bytes;
  }
  use.peak = touched(programs);
  use.activations = use.peak - use.parameters - use.gradients - use.optimizer - use.scratch;
  return use;
}

}  // namespace

Programs partition(const graph::Graph& graph, const Plan& plan, const device::Device& device, int threads) {
  if (const std::int64_t ranks = plan.ranks(); ranks != 1) {
    throw Error(ErrorCode::job,
                fmt::format("strategy {} splits the job over {} ranks, and this version of shardrun runs one: "
                            "set [job] ranks = 1",
                            plan.strategy, ranks));
  }
  Programs programs{.device = device.name(), .threads = threads, .states = state_buffers(graph, device)};
  const std::uint64_t base = place_states(programs.states);
  std::uint64_t transient = 0;
  for (const graph::Function& function : graph.functions) {
    Program program = lower(graph, function, programs.states, device, threads);
    place_transients(program, programs.states.size(), base);
    transient = std::max(transient, program.transient_bytes);
    programs.programs.push_back(std::move(program));
  }
  programs.arena_bytes = base + transient;
  programs.memory = measure(programs);
  return programs;
}

}  // namespace shardrun::partition
