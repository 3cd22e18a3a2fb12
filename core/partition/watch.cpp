#include "core/partition/lower.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace shardrun::partition {
namespace {

using memory::Range;

/// The parts of the arena that a transfer may overwrite. An in-place gather does not overwrite this rank's own block.
std::vector<Range> received(const Program& program, const Transfer& transfer) {
  const Range send = range_of(program, transfer.send, transfer.dtype);
  const Range recv = range_of(program, transfer.recv, transfer.dtype);
  if (transfer.collective == Collective::all_gather && recv.contains(send)) {
    return {{recv.begin, send.begin}, {send.end, recv.end}};
  }
  return {recv};
}

class Watcher {
 public:
  Watcher(Programs& programs, const graph::Graph& graph, const device::Device& device)
      : programs_(programs), graph_(graph), device_(device) {}

  void run() {
    find_in_place();
    divide_states();
    for (Program& program : programs_.programs) {
      watch(program);
    }
    for (Program& program : programs_.programs) {
      if (program.role == graph::Role::once && !program.instructions.empty()) {
        verify_unwritten(program);
      }
    }
  }

 private:
  [[nodiscard]] bool lasts(graph::StateId state) const {
    switch (graph_.states[state].kind) {
      case graph::StateKind::parameter:
      case graph::StateKind::optimizer:
      case graph::StateKind::hook_state:
      case graph::StateKind::field: return true;
      case graph::StateKind::cache:
      case graph::StateKind::gradient:
      case graph::StateKind::metric:
      case graph::StateKind::output: return false;
    }
    return false;
  }

  [[nodiscard]] bool is_of_state(const Program& program, BufferId buffer) const {
    const BufferId of = program.buffers[buffer].part_of.exists() ? program.buffers[buffer].part_of : buffer;
    return of < buffer_of(graph_.states.next()) && lasts(graph::StateId(of.number()));
  }

  /// The parts of states that the instruction's kernel overwrites in place and hashes: one per in-place pair of its op,
  /// empty for a pair without a state. No parts if the kernel does not hash, or the instruction also writes a state in
  /// another way.
  [[nodiscard]] std::vector<Range> in_place(const Program& program, const Instruction& instruction) const {
    if (instruction.kind != Instruction::Kind::compute || instruction.accumulate != Accumulate::never) {
      return {};
    }
    const device::Kernel* const kernel = device_.find_kernel(instruction.op->name);
    if (kernel == nullptr || !kernel->hashes) {
      return {};
    }
    for (std::size_t output = 0; output < instruction.outputs.size(); ++output) {
      const bool is_paired =
          std::ranges::any_of(instruction.op->in_place, [&](const auto& pair) { return pair.first == output; });
      if (!is_paired && is_of_state(program, instruction.outputs[output])) {
        return {};
      }
    }
    std::vector<Range> extents;
    for (const auto& [output, input] : instruction.op->in_place) {
      if (output >= instruction.outputs.size() || input >= instruction.inputs.size()) {
        continue;
      }
      const Buffer& result = program.buffers[instruction.outputs[output]];
      const bool is_of = is_of_state(program, instruction.outputs[output]);
      if (graph::element_bytes(result.type.dtype) != sizeof(std::uint32_t) ||
          (is_of && range_of(result) != range_of(program.buffers[instruction.inputs[input]]))) {
        return {};
      }
      extents.push_back(is_of ? range_of(result) : Range{});
    }
    return extents;
  }

  /// Finds the parts of states that kernels hash. Parts that overlap each other are left out: kernels do not hash them.
  void find_in_place() {
    std::vector<Range> found;
    for (const Program& program : programs_.programs) {
      for (const Instruction& instruction : program.instructions) {
        const std::vector<Range> extents = in_place(program, instruction);
        found.insert(found.end(), extents.begin(), extents.end());
      }
    }
    std::ranges::sort(found);
    found.erase(std::unique(found.begin(), found.end()), found.end());
    for (const Range& extent : found) {
      const bool is_apart =
          std::ranges::none_of(found, [&](const Range& other) { return other != extent && other.overlaps(extent); });
      if (is_apart && extent.exists()) {
        in_place_.push_back(extent);
      }
    }
  }

  void divide_states() {
    for (const graph::StateId state : graph_.states.ids()) {
      if (!lasts(state)) {
        continue;
      }
      const Range whole = range_of(programs_.states[state]);
      std::uint64_t at = whole.begin;
      for (const Range& extent : in_place_) {
        if (whole.contains(extent)) {
          add(state, {at, extent.begin});
          ranges_of_kernels_[extent] = add(state, extent);
          at = extent.end;
        }
      }
      add(state, {at, whole.end});
    }
  }

  std::uint32_t add(graph::StateId state, const Range& extent) {
    if (extent.exists()) {
      programs_.watched.push_back({.state = state, .offset = extent.begin, .bytes = extent.end - extent.begin});
      by_place_.emplace(extent.begin, static_cast<std::uint32_t>(programs_.watched.size() - 1));
    }
    return static_cast<std::uint32_t>(programs_.watched.size() - 1);
  }

  [[nodiscard]] std::vector<std::uint32_t> ranges_in(const Range& extent) const {
    std::vector<std::uint32_t> ranges;
    auto at = by_place_.upper_bound(extent.begin);
    at = at == by_place_.begin() ? at : std::prev(at);
    for (; at != by_place_.end() && at->first < extent.end; ++at) {
      const Watched& watched = programs_.watched[at->second];
      if (extent.overlaps({watched.offset, watched.offset + watched.bytes})) {
        ranges.push_back(at->second);
      }
    }
    return ranges;
  }

  /// The ranges that an instruction overwrites: results in states, buffers of its hook, or what its transfer receives.
  [[nodiscard]] std::vector<Range> written(const Program& program, const Instruction& instruction) const {
    std::vector<Range> extents;
    switch (instruction.kind) {
      case Instruction::Kind::compute:
      case Instruction::Kind::move:
        for (const BufferId output : instruction.outputs) {
          if (is_of_state(program, output)) {
            extents.push_back(range_of(program.buffers[output]));
          }
        }
        break;
      case Instruction::Kind::start:
      case Instruction::Kind::wait: return received(program, program.transfers[instruction.transfer]);
      case Instruction::Kind::hook:
        for (const Region& region : instruction.hook->buffers) {
          if (region.buffer.exists()) {
            extents.push_back(range_of(program, region, program.buffers[region.buffer].type.dtype));
          }
        }
        break;
    }
    return extents;
  }

  void watch(Program& program) {
    // For each range that is being overwritten: the last instruction so far that writes it.
    std::map<std::uint32_t, std::int32_t> open;
    const auto close = [&](std::uint32_t range) {
      if (const auto found = open.find(range); found != open.end()) {
        program.watches.push_back({.instruction = found->second, .when = Watch::When::after, .range = range});
        open.erase(found);
      }
    };
    for (std::size_t i = 0; i < program.instructions.size(); ++i) {
      const Instruction& instruction = program.instructions[i];
      const auto at = static_cast<std::int32_t>(i);
      const std::vector<Range> extents = in_place(program, instruction);
      const bool is_hashed = std::ranges::any_of(extents, [](const Range& extent) { return extent.exists(); }) &&
                             std::ranges::all_of(extents, [&](const Range& extent) {
                               return !extent.exists() || ranges_of_kernels_.contains(extent);
                             });
      if (is_hashed) {
        for (std::uint32_t pair = 0; pair < extents.size(); ++pair) {
          if (extents[pair].exists()) {
            const std::uint32_t range = ranges_of_kernels_.at(extents[pair]);
            close(range);
            program.watches.push_back({.instruction = at, .when = Watch::When::in_place, .range = range, .pair = pair});
            written_.insert(range);
          }
        }
        continue;
      }
      for (const Range& extent : written(program, instruction)) {
        for (const std::uint32_t range : ranges_in(extent)) {
          if (!open.contains(range)) {
            program.watches.push_back({.instruction = at, .when = Watch::When::before, .range = range});
          }
          open[range] = at;
          written_.insert(range);
        }
      }
    }
    while (!open.empty()) {
      close(open.begin()->first);
    }
    sort(program);
  }

  void verify_unwritten(Program& program) {
    for (std::uint32_t range = 0; range < programs_.watched.size(); ++range) {
      if (!written_.contains(range)) {
        program.watches.push_back({.instruction = 0, .when = Watch::When::before, .range = range});
      }
    }
    sort(program);
  }

  static void sort(Program& program) {
    std::ranges::stable_sort(program.watches, {},
                             [](const Watch& each) { return std::pair(each.instruction, each.when); });
  }

  Programs& programs_;
  const graph::Graph& graph_;
  const device::Device& device_;
  std::vector<Range> in_place_;  ///< extents that kernels hash, ascending
  std::map<Range, std::uint32_t> ranges_of_kernels_;
  std::map<std::uint64_t, std::uint32_t> by_place_;  ///< by offset: the range that begins there
  std::set<std::uint32_t> written_;                  ///< ranges that some program writes
};

}  // namespace

void watch_states(Programs& programs, const graph::Graph& graph, const device::Device& device) {
  Watcher(programs, graph, device).run();
}

}  // namespace shardrun::partition
