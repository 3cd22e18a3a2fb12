#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/graph/graph.h"
#include "core/mesh/placement.h"
#include "core/partition/split_function.h"
#include "core/plan/plan.h"

namespace shardrun::partition {

using BufferId = std::int32_t;

/// Whose share of a rank's memory a buffer counts towards.
enum class Category : std::uint8_t { parameters, gradients, optimizer, activations, communication, scratch };

/// A tensor's place in the arena: all of it, or the part that this rank has.
struct Buffer {
  std::string name;
  graph::TensorType type;            ///< of the part, as it lies in memory
  mesh::Box box;                     ///< which part of the whole it is
  std::vector<std::int64_t> global;  ///< the whole's shape
  Category category = Category::activations;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  ///< from the beginning of the arena
  std::int32_t first = 0;    ///< instructions between which a transient keeps its contents; states live always
  std::int32_t last = 0;
  BufferId part_of = -1;  ///< the state that it is a part of, or -1: memory of its own
};

/// Whether an instruction adds to what its first result's buffer holds.
enum class Accumulate : std::uint8_t {
  never,
  after_first,  ///< only from the second microbatch of a step on
  always,
};

/// What a group of ranks does together.
enum class Collective : std::uint8_t { all_reduce, reduce_scatter, all_gather, all_to_all, send, receive };

/// Elements of a buffer from number `first` on; a bucket's go on into the states behind it.
struct Region {
  BufferId buffer = -1;
  std::int64_t elements = 0;
  std::int64_t first = 0;
};

/// One collective along one mesh axis, with what this rank gives and gets. Blocks stand in the order of the members;
/// counts are elements.
struct Transfer {
  std::string name;  ///< of the tensor, or of the first of a bucket
  Collective collective = Collective::all_reduce;
  mesh::AxisId axis = -1;
  Reduction reduction = Reduction::sum;
  graph::DType dtype = graph::DType::f32;
  Region send;
  Region recv;
  std::vector<std::int64_t> send_counts;              ///< of each member: all_to_all
  std::vector<std::int64_t> recv_counts;              ///< of each member: reduce_scatter, all_gather, all_to_all
  BufferId scratch = -1;                              ///< the transport's own, where it asks for some
  Link link = {};                                     ///< of send and receive: coordinates along the axis
  std::optional<plan::HookKind> hook = std::nullopt;  ///< that it belongs to
};

/// Whether it is a send or a receive.
[[nodiscard]] inline bool is_message(const Transfer& transfer) noexcept {
  return transfer.collective == Collective::send || transfer.collective == Collective::receive;
}

/// Elements that go from a strided box of one buffer to one of another.
struct Copy {
  std::int64_t from = 0;  ///< the first element's index in its buffer
  std::int64_t to = 0;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> from_strides;
  std::vector<std::int64_t> to_strides;
};

/// Samples of a step: over all ranks, and those that the gradients at one place along a hook's mesh axis are of.
struct HookSamples {
  std::uint64_t all = 0;
  std::uint64_t own = 0;
};

/// A call of the strategy's own function: shardrun/strategy.h, sr_hook_call.
struct HookCall {
  std::uint32_t group = 0;  ///< a number of Programs::hook_groups
  std::uint32_t call = 0;
  std::uint32_t member = 0;
  HookSamples samples;
  std::vector<Region> buffers;  ///< the group's tensors, their hook states, the hook's own buffers
};

struct Instruction {
  enum class Kind : std::uint8_t {
    compute,  ///< `op`
    move,     ///< `copies` from the input to the output, which they fill
    start,    ///< `transfer` begins; its buffers are its own until it is waited for
    wait,     ///< `transfer` ends
    hook,     ///< `hook`
  } kind = Kind::compute;
  const graph::Op* op = nullptr;
  std::string name;
  graph::Attributes attributes;
  std::vector<BufferId> inputs;
  std::vector<BufferId> outputs;
  Accumulate accumulate = Accumulate::never;
  graph::Phase phase = graph::Phase::forward;
  std::int32_t layer = -1;
  std::uint64_t scratch_bytes = 0;
  std::uint64_t scratch_offset = 0;
  std::int64_t flops = 0;
  std::vector<Copy> copies = {};
  std::int32_t transfer = -1;
  std::int32_t call = 0;     ///< of those that the program does at once
  std::int32_t action = -1;  ///< a number of Programs::actions; −1: of none, as what finishes gradients or updates
  std::optional<HookCall> hook = std::nullopt;
};

struct Port {
  std::string name;
  BufferId buffer = -1;
  std::int32_t call = 0;
};

/// One function on one rank: a flat list of instructions over buffers whose offsets are fixed.
/// Buffer ids below the number of states are the states.
struct Program {
  std::string function;
  graph::Role role = graph::Role::on_demand;
  std::int64_t rows = 0;                ///< of the whole call, over all ranks
  std::vector<std::int64_t> call_rows;  ///< of each of the calls that it does at once: one, or all of a step
  bool finalizes = false;               ///< finishes the deferred sums of states: the variant for a step's last call
  std::vector<Buffer> buffers;
  std::vector<Instruction> instructions;
  std::vector<Transfer> transfers;
  std::vector<Port> inputs;
  std::vector<Port> outputs;
  std::uint64_t transient_bytes = 0;  ///< what the function needs beside the states
  std::uint64_t least_bytes = 0;      ///< the most that lives at once: no layout needs less
  std::int32_t peak_instruction = 0;  ///< where that is
};

/// Bytes of one rank by category. Transients are counted in the function that needs most, at its busiest instruction;
/// what the layout needs beyond the bytes that live there counts as activations.
struct MemoryUse {
  std::uint64_t parameters = 0;
  std::uint64_t gradients = 0;
  std::uint64_t optimizer = 0;
  std::uint64_t activations = 0;
  std::uint64_t communication = 0;
  std::uint64_t scratch = 0;
  std::uint64_t peak = 0;  ///< their sum: every byte of every page that a run touches

  bool operator==(const MemoryUse&) const = default;
};

/// All programs of one rank over one arena: states first, then room for the largest transient.
struct Programs {
  std::string device;
  int threads = 1;
  mesh::Mesh mesh;
  std::int64_t rank = 0;
  std::vector<Buffer> states;  ///< in the order of Graph::states
  /// The part of each state that is complete on this rank once a step has been finalized. The rest of the state holds
  /// what the rank added for others.
  std::vector<Buffer> finalized;
  std::vector<Program> programs;
  /// What the repeated function does: the stage's list, or without a pipeline forward and backward of one chunk.
  /// There microbatch 0 stands for the one that the call is of.
  std::vector<plan::Action> actions;
  std::uint64_t arena_bytes = 0;
  MemoryUse memory;
  std::vector<plan::HookGroup> hook_groups;  ///< what the strategy's hooks work on

  /// Whether there is a function of that name.
  [[nodiscard]] bool has(std::string_view function) const noexcept;

  /// `last`: whether it is the function's last call of a step. Throws Error{internal} when there is none.
  [[nodiscard]] const Program& find(std::string_view function, std::int64_t rows, bool last = true) const;
  /// REQUIRES: not on_demand.
  [[nodiscard]] const Program& find(graph::Role role, std::int64_t rows = 0, bool last = true) const;
  /// The programs, by number, that do a function's calls of one step, one after the other; `rows` of each call. One
  /// program may do several.
  [[nodiscard]] std::vector<std::size_t> find_calls(std::string_view function,
                                                    const std::vector<std::int64_t>& rows) const;
  /// REQUIRES: not on_demand.
  [[nodiscard]] std::vector<std::size_t> find_calls(graph::Role role, const std::vector<std::int64_t>& rows) const;
};

/// What a rank sends: mesh axis by name, then collective by name, to bytes.
using SentBytes = std::map<std::string, std::map<std::string, std::uint64_t>>;

/// The bytes that a rank sends in a ring, with blocks as they are (of an all_reduce: as even as they can be): all but
/// its own block to reduce, all but its neighbour's to gather. Over all members: all_reduce 2(n−1)·size,
/// reduce_scatter, all_gather and all_to_all (n−1)·size. Whatever the transport really does.
[[nodiscard]] std::uint64_t sent_bytes(const Transfer& transfer, std::int64_t member, std::int64_t members,
                                       std::size_t element_bytes);

/// Adds what one execution of the program sends; what sends nothing, as a receive does, has no entry.
void add_sent_bytes(SentBytes& sum, const Programs& programs, const Program& program, std::size_t f32_bytes);

[[nodiscard]] const char* to_string(Collective collective) noexcept;
[[nodiscard]] const char* to_string(Category category) noexcept;
[[nodiscard]] std::string to_string(const Programs& programs);

/// What a hook does in all programs: the same on all ranks along its mesh axis.
[[nodiscard]] std::string hook_text(const Programs& programs, plan::HookKind kind);

}  // namespace shardrun::partition
