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

/// The first buffers of a program are the states, with the states' numbers.
using BufferId = Id<struct BufferTag>;
using TransferId = Id<struct TransferTag>;

[[nodiscard]] constexpr BufferId buffer_of(graph::StateId state) noexcept { return BufferId(state.number()); }

/// Numbers that the host reads later than the work that makes them, each in a slot of its own.
inline constexpr std::size_t late_slots = 8;
inline constexpr std::size_t late_slot_bytes = 64;

/// The kind of memory that a buffer counts towards in MemoryUse.
enum class Category : std::uint8_t { parameters, gradients, optimizer, activations, communication, scratch };

/// The memory of a tensor, or of this rank's part of it, in the arena or in staging memory (see Programs).
struct Buffer {
  std::string name;
  graph::TensorType type;                    ///< of the part, as the device stores it
  graph::DType rounded = graph::DType::f32;  ///< the graph's type of its elements, to which results are rounded
  mesh::Box box;                             ///< which part of the whole it is
  std::vector<std::int64_t> global;          ///< shape of the whole tensor
  Category category = Category::activations;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  ///< from the beginning of the memory
  std::int32_t first = 0;    ///< a transient lives from this instruction to `last`; states always live
  std::int32_t last = 0;
  BufferId part_of = {};   ///< the state whose memory it shares; none: it has its own memory
  bool is_staged = false;  ///< in staging memory
};

/// Whether an instruction adds to the buffer of its first result or overwrites it.
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
  halo,  ///< an all_to_all of the edges of parts, with empty blocks for ranks that are not neighbours
  send,
  receive
};

/// Consecutive elements in memory, from element `first` of a buffer. A bucket's region continues into the states that
/// lie behind that buffer.
struct Region {
  BufferId buffer = {};
  std::int64_t elements = 0;
  std::int64_t first = 0;
};

/// The place in staging memory of a copy of a region.
struct Staged {
  BufferId buffer = {};
  std::uint64_t offset = 0;  ///< in bytes, in the buffer
};

/// One collective or message along one mesh axis, as seen by this rank. Blocks are in the order of the group's members;
/// counts are in elements.
struct Transfer {
  std::string name;  ///< of the tensor, or of a bucket's first tensor
  Collective collective = Collective::all_reduce;
  mesh::AxisId axis = {};
  Reduction reduction = Reduction::sum;
  graph::DType dtype = graph::DType::f32;    ///< of the elements in memory
  graph::DType rounded = graph::DType::f32;  ///< of a reduction: the graph's type, to which its results are rounded
  Region send;
  Region recv;
  std::vector<std::int64_t> send_counts;              ///< per member: for all_to_all
  std::vector<std::int64_t> recv_counts;              ///< per member: for reduce_scatter, all_gather and all_to_all
  BufferId scratch = {};                              ///< the transport's scratch memory
  Link link = {};                                     ///< for send and receive: coordinates along the axis
  std::optional<plan::HookKind> hook = std::nullopt;  ///< the hook that it belongs to
  std::vector<std::uint64_t>
      check_bytes;                  ///< per member, that it sends beside the data: see TransferChecks; empty: none
  bool is_direct = false;           ///< moved in the device's memory, which the host cannot address
  std::vector<Staged> staged = {};  ///< of `send` and `recv`, if it is moved in staging memory
};

/// Whether it is a send or a receive.
[[nodiscard]] inline bool is_message(const Transfer& transfer) noexcept {
  return transfer.collective == Collective::send || transfer.collective == Collective::receive;
}

/// A copy of a strided box of one buffer to a strided box of another. Indices and strides are in elements.
struct Copy {
  std::int64_t from = 0;  ///< the first element's index in its buffer
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

/// From which of a hook's buffers a copy goes to which.
struct HookCopy {
  std::uint32_t from = 0;
  std::uint32_t to = 0;
};

/// A call of the strategy's own function (sr_hook_call in shardrun/strategy.h).
struct HookCall {
  std::uint32_t group = 0;  ///< index in Programs::hook_groups
  std::uint32_t call = 0;
  std::optional<HookCopy> copy = {};  ///< in place of the call: what an exchange of a single member does
  std::uint32_t member = 0;
  HookSamples samples;
  std::vector<Region> buffers;      ///< the group's tensors, then their hook states, then the hook's own buffers
  std::vector<Staged> staged = {};  ///< of `buffers`, if they are staged
};

struct Instruction {
  enum class Kind : std::uint8_t {
    compute,  ///< runs `op`
    move,     ///< makes `copies` from the input to the output; they fill the output
    start,    ///< starts `transfer`, which uses its buffers exclusively until the wait
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
  ActionId action = {};  ///< none for updates and for finalizing gradients
  std::optional<HookCall> hook = std::nullopt;
};

struct Port {
  std::string name;
  BufferId buffer = {};
  std::size_t call = 0;
};

/// A range of the arena that holds (a part of) a state which lasts from step to step. Its hash is kept from where it
/// was written to where it is overwritten, to find bits that change in between.
struct Watched {
  graph::StateId state = {};
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// A place in a program where a watched range is verified or hashed.
struct Watch {
  std::int32_t instruction = 0;
  enum class When : std::uint8_t {
    before,    ///< it must have its hash before the instruction
    in_place,  ///< the instruction's kernel verifies and hashes it, as in-place pair number `pair` of those that it has
    after,     ///< it is hashed after the instruction
  } when = When::before;
  std::uint32_t range = 0;  ///< index in Programs::watched
  std::uint32_t pair = 0;
};

/// The hash of a watched range, in memory that the host can address.
struct KeptHash {
  std::uint64_t hash = 0;
  std::int64_t step = -1;  ///< counted from 0, in which it was hashed; -1: before the first
};

/// One function on one rank: a flat list of instructions. Buffers have fixed offsets.
struct Program {
  std::string function;
  graph::Role role = graph::Role::on_demand;
  std::int64_t rows = 0;  ///< of the whole call, over all ranks
  /// The rows of each call that one run executes: of one call, or of all calls of a step.
  std::vector<std::int64_t> call_rows;
  bool finalizes = false;  ///< whether it finalizes partial states: the variant for a step's last call
  bool counts = true;      ///< whether plans and measurements count what it sends; false for agreements
  IdVector<BufferId, Buffer> buffers;
  std::vector<Instruction> instructions;
  IdVector<TransferId, Transfer> transfers;
  std::vector<Port> inputs;
  std::vector<Port> outputs;
  std::vector<Watch> watches;         ///< by instruction, then `when`; empty: nothing is watched
  std::uint64_t transient_bytes = 0;  ///< what the function needs in addition to the states
  std::uint64_t least_bytes = 0;      ///< the most bytes that live at one instruction; no layout needs less
  std::int32_t peak_instruction = 0;  ///< that instruction
};

/// Bytes of one rank by category. Transients are counted at the busiest instruction of the function that needs the
/// most. Bytes that the layout needs beyond the live ones count as activations.
struct MemoryUse {
  std::uint64_t parameters = 0;
  std::uint64_t gradients = 0;
  std::uint64_t optimizer = 0;
  std::uint64_t activations = 0;
  std::uint64_t communication = 0;
  std::uint64_t scratch = 0;
  std::uint64_t peak = 0;     ///< the sum of the above: all bytes of all pages that a run touches
  std::uint64_t staging = 0;  ///< the part of `communication` in staging memory of the host, apart from the device's

  bool operator==(const MemoryUse&) const = default;
};

/// All programs of one rank, in one arena: first the states, then room for the transients of any one program. If the
/// host cannot address the device's memory, staging memory of the host has copies of the buffers of hooks and of
/// transfers over host memory, and the transports' scratch.
struct Programs {
  std::string device;
  int threads = 1;
  mesh::Mesh mesh;
  std::int64_t rank = 0;
  IdVector<graph::StateId, Buffer> states;
  /// The part of each state that is complete on this rank after a step's finalization. The rest of the state holds
  /// partial sums.
  IdVector<graph::StateId, Buffer> finalized;
  std::vector<Program> programs;
  /// The actions that the repeated function executes: the stage's list, or without a pipeline one forward and one
  /// backward. Without a pipeline, microbatch 0 means the microbatch of the call.
  IdVector<ActionId, plan::Action> actions;
  std::uint64_t arena_bytes = 0;
  std::uint64_t staging_bytes = 0;
  // The last bytes of staging memory: two rooms for the host's writes and reads between two programs, one behind the
  // other, then slots for numbers that it reads later.
  std::uint64_t host_offset = 0;
  std::uint64_t host_bytes = 0;  ///< of a room
  /// Where the arena has the word of updates that are held back (device::Guard); nothing: the device holds none.
  std::optional<std::uint64_t> guard_offset;
  std::vector<Watched> watched;  ///< empty: nothing is watched
  /// The offset of the watched ranges' hashes (KeptHash). They lie in the arena if the host can address it, otherwise
  /// in staging memory.
  std::uint64_t hashes_offset = 0;
  MemoryUse memory;
  std::vector<plan::HookGroup> hook_groups;  ///< the groups of tensors that the strategy's hooks process

  [[nodiscard]] std::uint64_t hashes_bytes() const noexcept { return watched.size() * sizeof(KeptHash); }

  /// The offset of the slots in staging memory.
  [[nodiscard]] std::uint64_t late_offset() const noexcept { return host_offset + 2 * host_bytes; }

  /// The buffers of one of the programs that are not states.
  [[nodiscard]] IdRange<BufferId> transients(const Program& program) const noexcept {
    return {buffer_of(states.next()), program.buffers.next()};
  }

  /// Whether there is a program for a function of that name.
  [[nodiscard]] bool has(std::string_view function) const noexcept;

  /// The program for a call of a function. `rows`: the call's rows. `last`: whether it is the function's last call in a
  /// step. Throws Error{internal} if there is none.
  [[nodiscard]] const Program& find(std::string_view function, std::int64_t rows, bool last = true) const;
  /// REQUIRES: not on_demand.
  [[nodiscard]] const Program& find(graph::Role role, std::int64_t rows = 0, bool last = true) const;
  /// Indices of the programs that execute a function's calls of one step, in order. `rows`: the rows of each call. One
  /// program may execute all of them.
  [[nodiscard]] std::vector<std::size_t> find_calls(std::string_view function,
                                                    const std::vector<std::int64_t>& rows) const;
  /// REQUIRES: not on_demand.
  [[nodiscard]] std::vector<std::size_t> find_calls(graph::Role role, const std::vector<std::int64_t>& rows) const;
};

/// Bytes that a rank sends, by name of the mesh axis and name of the collective.
using SentBytes = std::map<std::string, std::map<std::string, std::uint64_t>>;

/// The bytes that one rank sends for a transfer if it uses a ring algorithm, whatever the transport really does. Block
/// sizes are the transfer's; an all_reduce splits its elements as evenly as possible.
///  - To reduce, and in an all_to_all, a rank sends all blocks except its own.
///  - To gather, it sends all blocks except its neighbour's.
/// Hashes by which transfers are checked come on top.
/// Summed over n members, an all_reduce sends 2(n−1)·size; a reduce_scatter, all_gather or all_to_all sends (n−1)·size.
[[nodiscard]] std::uint64_t sent_bytes(const Transfer& transfer, std::int64_t member, std::int64_t members);

/// Adds the bytes that one run of the program sends. Transfers that send nothing, such as a receive, add no entry.
void add_sent_bytes(SentBytes& sum, const Programs& programs, const Program& program);

[[nodiscard]] const char* to_string(Collective collective) noexcept;
[[nodiscard]] const char* to_string(Category category) noexcept;
[[nodiscard]] std::string to_string(const Programs& programs);

/// The calls and transfers of a hook in all programs, as text. The text is the same on all ranks along the hook's mesh
/// axis.
[[nodiscard]] std::string hook_text(const Programs& programs, plan::HookKind kind);

}  // namespace shardrun::partition
