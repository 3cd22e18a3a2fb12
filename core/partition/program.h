#pragma once

#include <array>
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

/// A program's first buffers are the states: the buffer of a state has the state's number.
using BufferId = Id<struct BufferTag>;
using TransferId = Id<struct TransferTag>;

[[nodiscard]] constexpr BufferId buffer_of(graph::StateId state) noexcept { return BufferId(state.number()); }

/// Slots in staging memory for numbers that the host reads only after later work has started.
inline constexpr std::size_t late_slots = 8;
inline constexpr std::size_t late_slot_bytes = 64;

/// The kind of memory that a buffer counts towards in MemoryUse.
enum class Category : std::uint8_t { parameters, gradients, optimizer, activations, communication, scratch };

/// The memory of a tensor, or of this rank's part of it, in the arena or in staging memory (see Programs).
struct Buffer {
  std::string name;
  graph::TensorType type;                    ///< type of this rank's part, as the device stores it
  graph::DType rounded = graph::DType::f32;  ///< element type in the graph, to which results are rounded
  mesh::Box box;                             ///< this rank's part of the tensor
  std::vector<std::int64_t> global;          ///< shape of the whole tensor
  Category category = Category::activations;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  ///< in bytes, from the beginning of the arena or of staging memory
  std::int32_t first = 0;    ///< a transient lives from instruction `first` to `last`; states always live
  std::int32_t last = 0;
  BufferId part_of = {};   ///< the state whose memory it shares; none: it has memory of its own
  bool is_staged = false;  ///< whether it is in staging memory
  bool is_kept = false;    ///< whether no other call may use its memory: the next stage might not have received it yet
};

/// Whether an instruction adds to the buffer of its first result, or overwrites it.
enum class Accumulate : std::uint8_t {
  never,
  after_first,  ///< overwrites in a step's first microbatch, adds in the others
  always,
};

/// A collective, or one side of a point-to-point message.
enum class Collective : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  all_to_all,
  halo,  ///< an all_to_all of the edges of parts; blocks are empty except for neighbours
  send,
  receive
};

/// Consecutive elements in memory, from element `first` of a buffer. A bucket's region continues into the states that
/// follow that buffer.
struct Region {
  BufferId buffer = {};
  std::int64_t elements = 0;
  std::int64_t first = 0;
};

/// The place of a region's copy in staging memory.
struct Staged {
  BufferId buffer = {};
  std::uint64_t offset = 0;  ///< in bytes, in the buffer
};

/// One collective or message along one mesh axis, as seen by this rank. Blocks are in the order of the group's members;
/// counts are in elements.
struct Transfer {
  std::string name;  ///< name of the tensor, or of a bucket's first tensor
  Collective collective = Collective::all_reduce;
  mesh::AxisId axis = {};
  Reduction reduction = Reduction::sum;
  graph::DType dtype = graph::DType::f32;  ///< element type in memory
  /// For a reduction: element type in the graph, to which results are rounded.
  graph::DType rounded = graph::DType::f32;
  Region send;
  Region recv;
  std::vector<std::int64_t> send_counts;  ///< elements per member: for all_to_all and halo
  /// Elements per member: for reduce_scatter, all_gather, all_to_all and halo.
  std::vector<std::int64_t> recv_counts;
  BufferId scratch = {};                              ///< the transport's scratch memory
  Link link = {};                                     ///< for send and receive: the stages
  std::optional<plan::HookKind> hook = std::nullopt;  ///< the hook whose exchange it is
  std::vector<std::uint64_t> check_bytes;  ///< bytes of hashes that each member sends (TransferChecks); empty: none
  bool is_direct = false;                  ///< whether it moves device memory that the host cannot address
  std::vector<Staged> staged = {};         ///< the copies of `send` and `recv`, if it moves staging memory
};

/// Whether a transfer is a send or a receive.
[[nodiscard]] inline bool is_message(const Transfer& transfer) noexcept {
  return transfer.collective == Collective::send || transfer.collective == Collective::receive;
}

/// A copy of a strided box of one buffer to a strided box of another. Indices and strides are in elements.
struct Copy {
  std::int64_t from = 0;  ///< index of the first element in its buffer
  std::int64_t to = 0;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> from_strides;
  std::vector<std::int64_t> to_strides;
};

/// Numbers of samples that a hook gets. `all`: the samples of a step over all ranks. `own`: the samples of the ranks
/// with this rank's coordinate along the hook's mesh axis. Their gradients have been summed when the hook is called.
struct HookSamples {
  std::uint64_t all = 0;
  std::uint64_t own = 0;
};

/// Numbers of the hook's buffers that a copy reads and writes.
struct HookCopy {
  std::uint32_t from = 0;
  std::uint32_t to = 0;
};

/// A call of the strategy's own function (sr_hook_call in shardrun/strategy.h).
struct HookCall {
  std::uint32_t group = 0;  ///< index in Programs::hook_groups
  std::uint32_t call = 0;
  /// Instead of the call: a copy, which is all that an exchange needs with a single member.
  std::optional<HookCopy> copy = {};
  std::uint32_t member = 0;
  HookSamples samples;
  std::vector<Region> buffers;      ///< the group's tensors, then their hook states, then the hook's own buffers
  std::vector<Staged> staged = {};  ///< the copies of `buffers`, if the hook works in staging memory
};

struct Instruction {
  enum class Kind : std::uint8_t {
    compute,  ///< runs `op`
    move,     ///< copies elements from the input to the output, as `copies` say
    start,    ///< starts `transfer`: until the wait for it, nothing else writes to its buffers
    wait,     ///< waits until `transfer` has ended
    hook,     ///< calls `hook`
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
  TransferId transfer = {};
  std::size_t call = 0;  ///< index in Program::call_rows
  ActionId action = {};  ///< none in updates and in finalizations of gradients
  std::optional<HookCall> hook = std::nullopt;
};

struct Port {
  std::string name;
  BufferId buffer = {};
  std::size_t call = 0;
};

/// A range of the arena with all or part of a state that lasts between steps. Its hash is kept from each write to the
/// next, so that bits that change in between are found.
struct Watched {
  graph::StateId state = {};
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// A place in a program where a watched range is verified or hashed.
struct Watch {
  std::int32_t instruction = 0;
  enum class When : std::uint8_t {
    before,    ///< its hash is verified before the instruction
    in_place,  ///< the instruction's kernel verifies and hashes it, as its in-place pair number `pair`
    after,     ///< its hash is computed after the instruction
  } when = When::before;
  std::uint32_t range = 0;  ///< index in Programs::watched
  std::uint32_t pair = 0;
};

/// The hash of a watched range, in memory that the host can address.
struct KeptHash {
  std::uint64_t hash = 0;
  std::int64_t step = -1;  ///< the step in which it was computed, counted from 0; −1: before the first
};

/// One function on one rank: a flat list of instructions. Buffers have fixed offsets.
struct Program {
  std::string function;
  graph::Role role = graph::Role::on_demand;
  std::int64_t rows = 0;  ///< rows of the whole call, over all ranks
  /// The rows of each call that an execution of the program covers: one call, or all calls of a step.
  std::vector<std::int64_t> call_rows;
  bool finalizes = false;  ///< whether it finalizes partial states, as after a step's last call
  bool counts = true;      ///< whether the bytes that it sends are counted; false for agreements
  IdVector<BufferId, Buffer> buffers;
  std::vector<Instruction> instructions;
  std::size_t head = 0;  ///< number of instructions before the call's end, which receives what later stages send back
  IdVector<TransferId, Transfer> transfers;
  std::vector<Port> inputs;
  std::vector<Port> outputs;
  std::vector<Watch> watches;         ///< sorted by instruction, then by `when`; empty: nothing is watched
  std::uint64_t transient_bytes = 0;  ///< the memory of its transients and scratch
  /// The largest sum of live transients at one instruction: no layout needs less.
  std::uint64_t least_bytes = 0;
  std::int32_t peak_instruction = 0;  ///< the instruction with that sum
};

/// Bytes of one rank by category. Transients count at the busiest instruction of the function that needs the most
/// memory. Unused gaps of its layout count as activations.
struct MemoryUse {
  std::uint64_t parameters = 0;
  std::uint64_t gradients = 0;
  std::uint64_t optimizer = 0;
  std::uint64_t activations = 0;
  std::uint64_t communication = 0;
  std::uint64_t scratch = 0;
  std::uint64_t peak = 0;     ///< the sum of the categories: all bytes of all pages that a run touches
  std::uint64_t staging = 0;  ///< the part of `communication` that is in the host's staging memory

  bool operator==(const MemoryUse&) const = default;
};

/// All programs of one rank, in one arena: first the states, then memory for the transients of one program at a time.
/// If the host cannot address the arena, the host has staging memory too. It contains copies of the buffers of hooks
/// and of transfers over host memory, and the scratch of transports.
struct Programs {
  std::string device;
  int threads = 1;
  mesh::Mesh mesh;
  std::int64_t rank = 0;
  /// If calls overlap: the rank's stage, and how many calls can be under way (Partition::overlaps). Otherwise 0 and 1.
  std::size_t stage = 0;
  std::size_t stages = 1;
  IdVector<graph::StateId, Buffer> states;
  /// The part of each state that is complete on this rank after a step's finalization. The rest of the state holds
  /// partial sums.
  IdVector<graph::StateId, Buffer> finalized;
  std::vector<Program> programs;
  /// The actions that the repeated function executes: those of the stage, or without a pipeline one forward and one
  /// backward, whose microbatch 0 stands for the call's microbatch.
  IdVector<ActionId, plan::Action> actions;
  std::uint64_t arena_bytes = 0;
  std::uint64_t staging_bytes = 0;
  // The end of staging memory has two areas of host_bytes each, in which the host writes and reads between programs,
  // and then the late slots.
  std::uint64_t host_offset = 0;
  std::uint64_t host_bytes = 0;  ///< size in bytes of each of these two areas
  /// The offset in the arena of the word that holds back updates (device::Guard); nothing if none are ever held back.
  std::optional<std::uint64_t> guard_offset;
  std::vector<Watched> watched;  ///< empty if nothing is watched
  /// The offset of the watched ranges' hashes (KeptHash). They lie in the arena if the host can address it, otherwise
  /// in staging memory.
  std::uint64_t hashes_offset = 0;
  MemoryUse memory;
  std::vector<plan::HookGroup> hook_groups;  ///< the groups of tensors that the strategy's hooks process

  [[nodiscard]] std::uint64_t hashes_bytes() const noexcept { return watched.size() * sizeof(KeptHash); }

  /// The offset of the late slots in staging memory.
  [[nodiscard]] std::uint64_t late_offset() const noexcept { return host_offset + 2 * host_bytes; }

  /// The buffers of a program other than the states.
  [[nodiscard]] IdRange<BufferId> transients(const Program& program) const noexcept {
    return {buffer_of(states.next()), program.buffers.next()};
  }

  /// Whether there is a program for a function of that name.
  [[nodiscard]] bool has(std::string_view function) const noexcept;

  /// The program for a call of a function. `rows`: the call's rows. `last`: whether it is the function's last call in a
  /// step. Throws Error{internal} if there is none.
  [[nodiscard]] const Program& find(std::string_view function, std::int64_t rows, bool last = true) const;
  /// The program for the function with this role. REQUIRES: the role is not on_demand.
  [[nodiscard]] const Program& find(graph::Role role, std::int64_t rows = 0, bool last = true) const;
  /// Indices of the programs that execute a function's calls of one step, in order. `rows`: the rows of each call. One
  /// program may execute all of them.
  [[nodiscard]] std::vector<std::size_t> find_calls(std::string_view function,
                                                    const std::vector<std::int64_t>& rows) const;
  /// find_calls() for the function with this role. REQUIRES: the role is not on_demand.
  [[nodiscard]] std::vector<std::size_t> find_calls(graph::Role role, const std::vector<std::int64_t>& rows) const;
};

/// Bytes that a rank sends, by the names of the mesh axis and of the collective.
using SentBytes = std::map<std::string, std::map<std::string, std::uint64_t>>;

/// The bytes that one rank sends for a transfer by a ring algorithm; a transport may use another algorithm. Block sizes
/// are the transfer's; an all_reduce splits its elements as evenly as possible.
///  - To reduce, and in an all_to_all, a rank sends all blocks except its own.
///  - To gather, it sends all blocks except its neighbour's.
///  - The hashes that check the transfer (Transfer::check_bytes) are added.
/// Without them, n members send 2(n−1)·size in an all_reduce, (n−1)·size in a reduce_scatter, all_gather or all_to_all.
[[nodiscard]] std::uint64_t sent_bytes(const Transfer& transfer, std::int64_t member, std::int64_t members);

/// Adds the bytes that one execution of the program sends. A transfer of which this rank sends nothing adds no entry.
void add_sent_bytes(SentBytes& sum, const Programs& programs, const Program& program);

[[nodiscard]] const char* to_string(Collective collective) noexcept;
[[nodiscard]] const char* to_string(Category category) noexcept;
[[nodiscard]] std::string to_string(const Programs& programs);

/// The calls and transfers of a hook in all programs, as text; the same on all ranks along the hook's mesh axis.
[[nodiscard]] std::string hook_text(const Programs& programs, plan::HookKind kind);

}  // namespace shardrun::partition
