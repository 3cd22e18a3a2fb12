#include "core/partition/partition.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "core/memory/layout.h"
#include "core/partition/agreements.h"
#include "core/partition/bucket.h"
#include "core/partition/copies.h"
#include "core/partition/hooks.h"
#include "core/partition/lower.h"
#include "core/partition/parts.h"

namespace shardrun::partition {
namespace {

Category category_of(graph::StateKind kind) noexcept {
  switch (kind) {
    case graph::StateKind::parameter: return Category::parameters;
    case graph::StateKind::gradient: return Category::gradients;
    case graph::StateKind::optimizer:
    case graph::StateKind::hook_state: return Category::optimizer;
    case graph::StateKind::metric:
    case graph::StateKind::output:
    case graph::StateKind::cache:
    case graph::StateKind::field: return Category::activations;
  }
  return Category::activations;
}

/// An empty box of the same tensor.
mesh::Box nothing_of(mesh::Box box) {
  std::fill(box.origin.begin(), box.origin.end(), 0);
  std::fill(box.shape.begin(), box.shape.end(), 0);
  box.run.reset();
  return box;
}

IdVector<graph::StateId, Buffer> state_buffers(const graph::Graph& graph, const Partition& partition,
                                               const RankSettings& settings) {
  const mesh::Mesh& mesh = partition.placements.mesh;
  const mesh::Coordinates at = mesh::coordinates_of(mesh, settings.rank);
  IdVector<graph::StateId, Buffer> buffers;
  for (const graph::StateId s : graph.states.ids()) {
    const graph::State& state = graph.states[s];
    mesh::Box box = mesh::box_of(state.type.shape, partition.placements.states[s], mesh, at);
    if (!partition.stages.states.holds(s, partition.stage_at(at))) {
      box = nothing_of(box);
    }
    graph::TensorType type = part_type(state.type, box);
    type.dtype = settings.device.stored(type.dtype);
    const std::uint64_t bytes = static_cast<std::uint64_t>(box.elements()) * graph::element_bytes(type.dtype);
    buffers.push_back({.name = state.name,
                       .type = std::move(type),
                       .rounded = state.type.dtype,
                       .box = std::move(box),
                       .global = state.type.shape,
                       .category = category_of(state.kind),
                       .bytes = bytes});
  }
  return buffers;
}

/// The part of each state that is complete on this rank once it is finalized.
IdVector<graph::StateId, Buffer> finalized_buffers(const graph::Graph& graph,
                                                   const IdVector<graph::StateId, Buffer>& states,
                                                   const Partition& partition, const RankSettings& settings) {
  const mesh::Mesh& mesh = partition.placements.mesh;
  const mesh::Coordinates at = mesh::coordinates_of(mesh, settings.rank);
  const StageId stage = partition.stage_at(at);
  IdVector<graph::StateId, Buffer> finalized = states;
  for (const graph::StateId s : states.ids()) {
    Buffer& buffer = finalized[s];
    mesh::Box part = mesh::box_of(buffer.global, partition.sharded.finalizations[s].after, mesh, at);
    const bool handed_on = buffer.category == Category::gradients && partition.stages.states.owner[s] != stage;
    if (handed_on || !partition.stages.states.holds(s, stage)) {
      part = nothing_of(buffer.box);
      part.origin = buffer.box.origin;
    }
    const std::size_t bytes = graph::element_bytes(buffer.type.dtype);
    buffer.offset += bytes * static_cast<std::uint64_t>(index_in(buffer.box, part));
    const graph::DType stored = buffer.type.dtype;
    buffer.type = part_type(graph.states[s].type, part);
    buffer.type.dtype = stored;
    buffer.box = part;
    buffer.bytes = bytes * static_cast<std::uint64_t>(part.elements());
  }
  return finalized;
}

/// Gives the transients and scratch of one program their offsets, from `base` on.
void place_transients(const Programs& programs, Program& program, std::uint64_t base) {
  std::vector<memory::Interval> intervals;
  for (const BufferId b : programs.transients(program)) {
    const Buffer& buffer = program.buffers[b];
    const bool has_own = !buffer.part_of.exists() && !buffer.is_staged && !buffer.is_kept;
    intervals.push_back({has_own ? buffer.bytes : 0, buffer.first, buffer.last});
  }
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const auto at = static_cast<std::int32_t>(i);
    intervals.push_back({program.instructions[i].scratch_bytes, at, at});
  }
  const memory::Layout layout = memory::place(intervals);
  auto offset = layout.offsets.begin();
  for (const BufferId b : programs.transients(program)) {
    Buffer& buffer = program.buffers[b];
    buffer.offset = buffer.part_of.exists() ? buffer.offset : base + *offset;
    ++offset;
  }
  for (Instruction& instruction : program.instructions) {
    instruction.scratch_offset = base + *offset++;
  }
  program.transient_bytes = layout.bytes;
  std::tie(program.least_bytes, program.peak_instruction) = memory::most_live(intervals);
}

/// Gives buffers that are kept between calls their offsets, from `end` on. Returns the end of the last one.
std::uint64_t place_kept(Programs& programs, std::uint64_t end) {
  for (Program& program : programs.programs) {
    for (const BufferId b : programs.transients(program)) {
      if (Buffer& buffer = program.buffers[b]; buffer.is_kept) {
        buffer.offset = memory::align_up(end);
        end = buffer.offset + buffer.bytes;
      }
    }
  }
  return end;
}

std::uint64_t sum(const IdVector<graph::StateId, Buffer>& states, Category category) {
  std::uint64_t bytes = 0;
  for (const Buffer& state : states) {
    bytes += state.category == category ? state.bytes : 0;
  }
  return bytes;
}

/// Bytes of all pages of the arena that a buffer or scratch of any program overlaps.
std::uint64_t touched(const Programs& programs) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (const Buffer& state : programs.states) {
    ranges.emplace_back(state.offset, state.bytes);
  }
  if (programs.guard_offset) {
    ranges.emplace_back(*programs.guard_offset, sizeof(std::int32_t));
  }
  if (programs.staging_bytes == 0) {
    ranges.emplace_back(programs.hashes_offset, programs.hashes_bytes());
  }
  for (const Program& program : programs.programs) {
    for (const BufferId b : programs.transients(program)) {
      if (!program.buffers[b].is_staged) {
        ranges.emplace_back(program.buffers[b].offset, program.buffers[b].bytes);
      }
    }
    for (const Instruction& instruction : program.instructions) {
      ranges.emplace_back(instruction.scratch_offset, instruction.scratch_bytes);
    }
  }
  return memory::touched_bytes(std::move(ranges));
}

/// Bytes of staging memory that the programs use.
std::uint64_t touched_staging(const Programs& programs) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges = {
      {programs.host_offset, programs.staging_bytes - programs.host_offset}};
  for (const Program& program : programs.programs) {
    for (const BufferId b : programs.transients(program)) {
      if (program.buffers[b].is_staged) {
        ranges.emplace_back(program.buffers[b].offset, program.buffers[b].bytes);
      }
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
    for (const BufferId b : programs.transients(*largest)) {
      const Buffer& buffer = largest->buffers[b];
      const auto at = static_cast<std::int32_t>(peak);
      if (buffer.category == Category::communication && !buffer.is_staged && buffer.first <= at && at <= buffer.last) {
        use.communication += buffer.bytes;
      }
    }
  }
  const std::uint64_t staging = touched_staging(programs);
  use.communication += staging;
  use.staging = staging;
  use.peak = touched(programs) + staging;
  use.activations = use.peak - use.parameters - use.gradients - use.optimizer - use.communication - use.scratch;
  return use;
}

}  // namespace

StageId Partition::stage_at(const mesh::Coordinates& at) const {
  return pipeline.exists() ? StageId(at[pipeline.axis]) : StageId(0);
}

namespace {

/// Adds an all_reduce over the stages for each metric, such as the loss. One stage accumulates it; the others
/// contribute zero.
void finalize_over_stages(const graph::Graph& graph, Partition& partition) {
  if (partition.pipeline.stages() == 1) {
    return;
  }
  std::set<graph::StateId> added_to;
  for (const graph::Function& function : graph.functions) {
    for (const graph::StateWrite& write : function.writes) {
      if (write.mode != graph::StateWrite::Mode::assign) {
        added_to.insert(write.state);
      }
    }
  }
  for (const graph::StateId state : added_to) {
    if (graph.states[state].kind == graph::StateKind::metric) {
      partition.sharded.finalizations[state].steps.push_back(
          {.kind = Transition::Kind::all_reduce, .axis = partition.pipeline.axis});
    }
  }
}

/// Whether each stage has one chunk and no sums with others, and sends only to the next stage, except the last one.
bool is_chain(const Partition& partition) {
  const std::size_t last = partition.pipeline.stages() - 1;
  const std::vector<Link> links = partition.stages.links();
  return last > 0 && partition.pipeline.chunks.size() == last + 1 && !partition.stages.have_sums() &&
         std::ranges::all_of(links, [&](const Link& link) {
           return link.from.index() == last || link.to.index() == link.from.index() + 1;
         });
}

std::shared_ptr<const StageFunctions> make_functions(const Partition& partition, StageId stage,
                                                     std::vector<SplitFunction> functions) {
  StageFunctions made{.stage = stage, .functions = std::move(functions), .steps = {}};
  for (SplitFunction& function : made.functions) {
    // If calls overlap, each message has memory of its own, so that no send waits for an earlier one.
    function.under_way = partition.overlaps ? std::numeric_limits<std::size_t>::max() : function.under_way;
  }
  if (partition.placements.find_hook(plan::HookKind::after_step) != nullptr) {
    made.functions.emplace_back().name = after_step_function;
  }
  for (const SplitFunction& function : made.functions) {
    made.steps.push_back(schedule(function, partition.placements.mesh, partition.bucket_bytes));
  }
  return std::make_shared<const StageFunctions>(std::move(made));
}

}  // namespace

bool Partition::hook_follows(std::int64_t step) const noexcept {
  const PlacedHook* hook = placements.find_hook(plan::HookKind::after_step);
  return hook != nullptr && (step + 1) % hook->every == 0;
}

Partition split(const graph::Graph& graph, const plan::Plan& plan, const std::vector<std::int64_t>& microbatch_rows,
                const std::vector<std::int64_t>& evaluation_rows) {
  Partition partition;
  partition.placements = place(graph, plan);
  partition.sharded = shard(graph, partition.placements);
  const bool is_demanded = std::ranges::all_of(
      graph.functions, [](const graph::Function& each) { return each.role == graph::Role::on_demand; });
  partition.pipeline =
      pipeline_of(plan, partition.placements.mesh,
                  is_demanded ? std::nullopt : std::optional(static_cast<std::int32_t>(microbatch_rows.size())));
  finalize_over_stages(graph, partition);
  partition.stages = cut_stages(graph, partition.sharded, partition.pipeline, microbatch_rows);
  partition.overlaps = plan.overlaps && is_chain(partition);
  require_masters(graph, partition);
  partition.bucket_bytes = plan.bucket_bytes;
  partition.microbatch_rows = microbatch_rows;
  partition.evaluation_rows = evaluation_rows;
  if (!partition.pipeline.exists()) {
    partition.whole = make_functions(partition, StageId(0), partition.sharded.functions);
  }
  return partition;
}

namespace {

/// The programs of a function that are needed. `last`: the one for a step's last call, which finalizes. `others`: the
/// one for all other calls.
struct Variants {
  bool last = false;
  bool others = false;
};

Variants variants_of(const SplitFunction& function, bool finalizes, const Partition& partition) {
  if (!finalizes || !function.call_rows.empty() || function.name == after_step_function) {
    return {.last = finalizes, .others = !finalizes};
  }
  const std::vector<std::int64_t>& rows =
      function.role == graph::Role::repeated ? partition.microbatch_rows : partition.evaluation_rows;
  if (std::ranges::find(rows, function.rows) == rows.end()) {  // the caller chooses how often to call it
    return {.last = true, .others = true};
  }
  return {.last = rows.back() == function.rows,
          .others = std::find(rows.begin(), rows.end() - 1, function.rows) != rows.end() - 1};
}

}  // namespace

std::shared_ptr<const StageFunctions> functions_of(const graph::Graph& graph, const Partition& partition, StageId stage,
                                                   MessageMemory memory) {
  return partition.whole != nullptr
             ? partition.whole
             : make_functions(partition, stage, partition.stages.functions_of(graph, stage, memory));
}

std::vector<Link> links_of(const Partition& partition) { return partition.stages.links(); }

Programs programs_of(const graph::Graph& graph, const Partition& partition, const RankSettings& settings) {
  const StageId stage = partition.stage_at(mesh::coordinates_of(partition.placements.mesh, settings.rank));
  const bool is_direct = partition.pipeline.exists() && settings.is_direct(partition.pipeline.axis);
  return programs_of(graph, partition,
                     *functions_of(graph, partition, stage, is_direct ? MessageMemory::device : MessageMemory::host),
                     settings);
}

Programs programs_of(const graph::Graph& graph, const Partition& partition, const StageFunctions& stage,
                     const RankSettings& settings) {
  Programs programs{.device = settings.device.name(),
                    .threads = settings.threads,
                    .mesh = partition.placements.mesh,
                    .rank = settings.rank,
                    .stage = partition.overlaps ? stage.stage.index() : 0,
                    .stages = partition.overlaps ? partition.pipeline.stages() : 1,
                    .states = state_buffers(graph, partition, settings)};
  StateLayout layout(graph, partition, stage);
  std::vector<std::vector<Bucket>> buckets = layout.buckets();
  std::uint64_t base = layout.place(programs.states);
  if (settings.device.can_hold_updates()) {
    programs.guard_offset = memory::align_up(base);
    base = *programs.guard_offset + memory::alignment;
  }
  programs.actions = IdVector<ActionId, plan::Action>(
      partition.pipeline.exists()
          ? partition.pipeline.actions[stage.stage]
          : std::vector<plan::Action>{{plan::Action::Kind::forward, 0, 0}, {plan::Action::Kind::backward, 0, 0}});
  programs.finalized = finalized_buffers(graph, programs.states, partition, settings);
  std::uint64_t transient = 0;
  const std::vector<Bucket> none;
  const auto add_program = [&](Program program) {
    place_transients(programs, program, base);
    if (!settings.device.is_addressable()) {
      programs.staging_bytes = std::max(programs.staging_bytes, add_staging(program));
    }
    transient = std::max(transient, program.transient_bytes);
    programs.programs.push_back(std::move(program));
  };
  const auto add = [&](const SplitFunction& function, const IdVector<StepId, Step>& steps,
                       const std::vector<Bucket>& finalized) {
    Program program =
        lower(function, {graph, settings, partition, programs.states, programs.finalized, steps, finalized});
    program.finalizes = !finalized.empty();
    add_program(std::move(program));
  };
  const std::vector<SplitFunction>& functions = stage.functions;
  std::vector<Variants> variants;
  for (std::size_t f = 0; f < functions.size(); ++f) {
    variants.push_back(variants_of(functions[f], !buckets[f].empty(), partition));
    if (variants.back().last) {
      plan_hooks(buckets[f], programs, graph, partition.placements, settings);
    }
  }
  for (std::size_t f = 0; f < functions.size(); ++f) {
    const IdVector<StepId, Step>& steps = stage.steps[f];
    if (variants[f].last) {
      add(functions[f], steps, buckets[f]);
    }
    if (variants[f].others) {
      add(functions[f], steps, none);
    }
  }
  if (settings.agreements) {
    for (Program& program : agreements_of(graph, partition, settings, programs.states)) {
      add_program(std::move(program));
    }
  }
  if (!settings.device.is_addressable()) {
    programs.host_offset = memory::align_up(programs.staging_bytes);
    programs.host_bytes = host_room(programs, graph);
    programs.staging_bytes = programs.late_offset() + late_slots * late_slot_bytes;
  }
  programs.arena_bytes = place_kept(programs, base + transient);
  if (settings.watches) {
    watch_states(programs, graph, settings.device);
    std::uint64_t& bytes = settings.device.is_addressable() ? programs.arena_bytes : programs.staging_bytes;
    programs.hashes_offset = memory::align_up(bytes);
    bytes = programs.hashes_offset + programs.hashes_bytes();
  }
  programs.memory = measure(programs);
  return programs;
}

Programs programs_of(const graph::Graph& graph, const device::Device& device, int threads) {
  return programs_of(graph, split(graph, {}), {.device = device, .threads = threads});
}

}  // namespace shardrun::partition
