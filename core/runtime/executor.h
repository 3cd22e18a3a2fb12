#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/device/device.h"
#include "core/device/hash.h"
#include "core/device/host_tensor.h"
#include "core/device/memory.h"
#include "core/device/queue.h"
#include "core/device/threads.h"
#include "core/partition/program.h"
#include "core/runtime/communicator.h"
#include "core/runtime/timeline.h"

namespace shardrun::plugins {
class Hooks;
class HookTables;
}  // namespace shardrun::plugins

namespace shardrun::runtime {

/// Time spent in the instructions of one op of one function.
struct OpTime {
  std::string function;
  std::string op;
  std::int64_t calls = 0;
  double seconds = 0;
  std::int64_t flops = 0;
};

/// A tensor with NaN or Inf that a checked run found.
struct NonFiniteResult {
  using Order = std::array<std::int32_t, 5>;

  std::string name;  ///< includes op and function
  /// Sort key: microbatch, phase, layer (in backward from the last), whether another stage sent it, instruction. A
  /// tensor sorts before everything computed from it, on any rank.
  Order order{};

  /// Number among the calls that the program does at once.
  [[nodiscard]] std::int32_t call() const noexcept { return order[0]; }
};

/// The failure of a queued transfer. The host may notice it only in a later step.
class TransferError : public Error {
 public:
  TransferError(const Error& error, std::optional<std::int64_t> step) : Error(error), step_(step) {}

  /// That started the transfer; see Executor::begin_step().
  [[nodiscard]] std::optional<std::int64_t> step() const noexcept { return step_; }

 private:
  std::optional<std::int64_t> step_;
};

/// Runs one rank's programs over its arena. Between calls, all state is in the arena. Used by one thread. On the cpu a
/// call allocates nothing. A call returns when all its work, transfers included, was given to the queue, which may do
/// it later. It waits for hooks, and for a transfer that is to start again. The error of a transfer is thrown by
/// functions that read results or return the queue.
class Executor {
 public:
  /// Allocates the arena and prepares every instruction's kernel for its addresses. `bind` prepares transfers; programs
  /// of one rank do not need it. `hooks`: the strategy's own functions, which outlive this; null if the programs call
  /// none.
  Executor(const partition::Programs& programs, const device::Device& device, const plugins::Hooks* hooks = nullptr);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  /// If it ends because of an exception, queued transfers are aborted.
  ~Executor();

  /// Prepares every transfer. REQUIRES: `communicator` knows the arena and outlives every call; if it has transfers in
  /// queues, it outlives this.
  void bind(Communicator& communicator);

  /// Fails the transfers in queues, because this rank has failed: they would wait for ranks that wait for this one. The
  /// host's own transfers end with their calls. Does not wait.
  void abort_transfers(const std::string& reason) const noexcept;

  /// The program for a name and row count; for `run` and the ports. `last`: the function's last call in a step. Throws
  /// Error{internal} if there is none.
  [[nodiscard]] std::size_t find(std::string_view function, std::int64_t rows, bool last = true) const;
  [[nodiscard]] std::size_t find(graph::Role role) const;  ///< REQUIRES: not on_demand
  /// As Programs::find_calls; `function`: its name or role.
  template <class Function>
  [[nodiscard]] std::vector<std::size_t> find_calls(Function function, const std::vector<std::int64_t>& rows) const {
    return programs_.find_calls(function, rows);
  }

  /// This rank's part of a state, between two steps.
  [[nodiscard]] device::TensorView state(graph::StateId id) const { return finalized_[id]; }
  /// Which part of the whole state that is.
  [[nodiscard]] const mesh::Box& part(graph::StateId id) const { return programs_.finalized[id].box; }
  /// The input of one of the calls that the program does at once; nothing if this rank does not use it.
  [[nodiscard]] std::optional<device::TensorView> find_input(std::size_t program, std::string_view name,
                                                             std::size_t call = 0) const;
  [[nodiscard]] device::TensorView input(std::size_t program, std::string_view name) const;
  [[nodiscard]] device::TensorView output(std::size_t program, std::string_view name) const;

  /// Rows of each call that the program does at once.
  [[nodiscard]] const std::vector<std::int64_t>& call_rows(std::size_t program) const {
    return programs_.programs[program].call_rows;
  }

  /// Errors of transfers in queues that are started from now on name this step, counted from 0: see TransferError.
  void begin_step(std::int64_t step) {
    step_ = step;
    queue_->begin_step(step);
  }

  /// `scalars`: one per call.
  void run(std::size_t program, std::span<const device::Scalars> scalars);
  void run(std::size_t program, const device::Scalars& scalars) { run(program, {&scalars, 1}); }

  /// Runs one of the programs of partition/agreements.h: each number becomes the largest of the ranks'.
  void agree(std::size_t program, std::span<std::int32_t> numbers);

  /// Runs instructions from number `at` on, until one waits for a transfer that is not complete. Returns that one's
  /// number, or the number of instructions at the end. REQUIRES: the communicator has no transfers in queues.
  [[nodiscard]] std::size_t advance(std::size_t program, std::span<const device::Scalars> scalars, std::size_t at);
  [[nodiscard]] std::size_t advance(std::size_t program, const device::Scalars& scalars, std::size_t at) {
    return advance(program, {&scalars, 1}, at);
  }

  // Of the programs' transfers so far: see Communicator. If transfers are queued, without agreements.
  [[nodiscard]] double exposed_seconds() const noexcept {
    return communicator_ == nullptr ? 0 : communicator_->exposed_seconds() - uncounted_exposed_;
  }
  [[nodiscard]] double hidden_seconds() const noexcept {
    return communicator_ == nullptr ? 0 : communicator_->hidden_seconds() - uncounted_hidden_;
  }
  /// The bytes that started transfers sent in all, in a ring, by partition::sent_bytes().
  [[nodiscard]] const partition::SentBytes& sent() const noexcept { return sent_; }

  /// As `run`, but checks every result and everything that transfers bring, and runs no fused kernels. Returns the
  /// first in `order` with NaN or Inf, or nothing. Runs to the end, because other ranks wait for this one.
  [[nodiscard]] std::optional<NonFiniteResult> run_checked(std::size_t program,
                                                           std::span<const device::Scalars> scalars);
  [[nodiscard]] std::optional<NonFiniteResult> run_checked(std::size_t program, const device::Scalars& scalars) {
    return run_checked(program, {&scalars, 1});
  }

  /// From now on finds bits that change in states while no program writes them: hashes the watched ranges, which
  /// programs verify and hash as they run (core/partition/watch.h). Call it when the states have the values of the
  /// first step's beginning. Afterwards only programs may write them. No effect for programs that watch nothing.
  void watch();
  /// Verifies all states that are watched, in a pass of its own. Throws Error{damaged}, which names the state, the rank
  /// and the host; programs throw it too.
  void verify_states() const;

  /// Prepares run_twice().
  void expect_twice();
  /// Runs a program, then again with each part of its work on another thread, and compares the bits of all states that
  /// do not last: gradients and metrics. Returns the first that differs; null: none does. REQUIRES: expect_twice() was
  /// called, and the program may run again, because it overwrites whatever it writes.
  /// `refill` is called between the two, because a program may use its inputs' memory for something else.
  [[nodiscard]] const partition::Buffer* run_twice(std::size_t program, std::span<const device::Scalars> scalars,
                                                   const std::function<void()>& refill);

  /// From now on `asked` is called before every instruction; if it returns true, the call ends with Error{aborted}.
  /// Only for programs of one rank: other ranks would wait for this one.
  void end_where(std::function<bool()> asked) { ends_ = std::move(asked); }

  /// Records every instruction from now on, also one that throws; null ends it. `timeline` outlives the recording.
  void record(Timeline* timeline);
  /// The recorder that is at work; null: none.
  [[nodiscard]] Timeline* timeline() const noexcept { return timeline_; }

  // Of an engine, which makes its calls itself: see TimedCall. They count as ops of the function that they are within.

  [[nodiscard]] bool times_calls() const noexcept { return timed_; }
  void begin_call(const Timeline::Call& call);
  void end_call(Timeline::Call call);

  /// Times every instruction from now on.
  void start_profile();
  /// Sums by function and op, longest first.
  [[nodiscard]] std::vector<OpTime> profile() const;

  [[nodiscard]] device::Threads& threads() const noexcept { return threads_; }
  /// The memory that transports use. Whoever gives others its address, as a communicator does, shares ownership while
  /// they may use it.
  [[nodiscard]] TransportMemory transport_memory() const noexcept {
    return staging_ == nullptr ? TransportMemory{.host = arena_, .of_device = nullptr}
                               : TransportMemory{.host = staging_, .of_device = arena_};
  }
  /// Bytes of the pages of both that were touched so far.
  [[nodiscard]] std::uint64_t touched_bytes() const;
  [[nodiscard]] const std::shared_ptr<const device::Memory>& arena() const noexcept { return arena_; }
  [[nodiscard]] const device::Device& device() const noexcept { return device_; }
  /// The queue that runs the programs. The host reads and writes tensors through it. Waits for the transfers that the
  /// programs wait for, and throws their errors.
  [[nodiscard]] device::Queue& queue() const;
  /// The same, with planned room for copies of a call's inputs, of a program's outputs or of a metric. Use it between
  /// programs. For writing it does not wait. There are two rooms, which take turns: while the device copies from one,
  /// the host may write in the other.
  [[nodiscard]] device::HostAccess host(device::Access access) const;

  // Numbers that the host reads later than the work that makes them, while the queue has been given more. Each is in a
  // slot below partition::late_slots. REQUIRES: the host cannot address the arena.

  /// Gives the queue a copy of a tensor of at most partition::late_slot_bytes to the slot.
  void keep(std::size_t slot, const device::TensorView& tensor);
  /// Agrees on one number, as agree() does, and puts it into the slot. `give(argument)` writes this rank's number there
  /// once the work before is done; see Queue::call. REQUIRES: the slot is not in use.
  void agree_later(std::size_t program, std::size_t slot, void (*give)(void* argument), void* argument);
  /// The end of the work so far.
  [[nodiscard]] device::Event mark() { return queue_->record(); }
  /// Waits until then. Throws the errors of the work and of its transfers.
  void reach(const device::Event& mark) const;
  /// The slot's contents, once the queue has reached a mark behind it.
  [[nodiscard]] std::span<std::byte> kept(std::size_t slot) const;

  /// For the scalars of updates that are to be held back once this loss is not finite. REQUIRES:
  /// Device::can_hold_updates().
  [[nodiscard]] device::Guard guard(graph::StateId loss) const;

 private:
  /// Memory of the arena and its copy in staging memory.
  struct Copied {
    std::byte* in_arena = nullptr;
    std::span<std::byte> staged;
  };

  struct Call {
    std::unique_ptr<const device::PreparedKernel> kernel;  ///< of instructions that compute
    std::unique_ptr<const device::PreparedKernel> fused;   ///< does the calls after it that are `is_fused`, too
    bool is_fused = false;                                 ///< an earlier call's `fused` does it
    const partition::Instruction* instruction = nullptr;
    std::uint32_t program = 0;
    std::uint32_t number = 0;  ///< number of the instruction
    Communicator::Handle transfer = 0;
    bool is_direct = false;  ///< the transfer moves the device's memory
    Call* waiter = nullptr;  ///< of a start: the call that waits for its transfer
    bool joined = false;     ///< of a wait: it was given to the queue, and the host has not asked for its end yet
    std::optional<std::int64_t> step;  ///< of a wait: that started the transfer
    device::Event passed;              ///< of a wait: the queue has gone on
    Communicator::Times waited;        ///< of a wait: when the queue stood still
    std::vector<Copied> before;        ///< copied to staging memory before the instruction
    std::vector<Copied> after;         ///< copied to the arena after it
    std::vector<void*> hook_buffers;
    std::vector<std::uint64_t> hook_elements;
    std::span<const partition::Watch> watches;  ///< of this instruction
    std::uint64_t* sent = nullptr;              ///< where a start counts its bytes
    std::uint64_t bytes = 0;
    std::int64_t begin = 0;  ///< time of the latest run, if it was timed
    std::int64_t end = 0;
    double seconds = 0;
    std::int64_t count = 0;
  };

  [[nodiscard]] std::unique_ptr<const device::PreparedKernel> prepare(
      const partition::Program& program, const partition::Instruction& instruction,
      const IdVector<partition::BufferId, device::TensorView>& views) const;
  void bind_transfers(std::size_t program);
  void fuse(std::vector<Call>& calls) const;
  [[nodiscard]] bool is_bad(const device::TensorView& view) const { return !device::is_finite(*queue_, view); }
  /// Makes the call's result `first` if it is not finite and comes before it.
  void check(const Call& call, std::optional<NonFiniteResult>& first) const;
  [[nodiscard]] std::optional<std::string> non_finite_result(std::size_t program, const Call& call) const;
  [[nodiscard]] std::optional<std::string> bad_arrival(std::size_t program, const partition::Transfer& transfer) const;
  void execute(Call& call, std::span<const device::Scalars> scalars);
  void compute(Call& call, const device::Scalars& scalars);
  void move(const Call& call);
  void start(Call& call);
  void wait(Call& call);
  void copy_before(const Call& call);
  void copy_after(const Call& call);
  void finish_first_transfer() const;
  /// Throws TransferError.
  void finish_transfer(const Call& call) const;
  /// Waits for all transfers that queues wait for.
  void finish_transfers() const;
  void bind_hook(Call& call);
  void bind_copies(Call& call, const partition::Transfer& transfer);
  void call_hook(const Call& call, const device::Scalars& scalars);
  void perform(Call& call, std::span<const device::Scalars> scalars);
  void perform_watched(Call& call, std::span<const device::Scalars> scalars);
  [[nodiscard]] partition::KeptHash& kept_hash(std::size_t range) const;
  /// Throws Error{damaged} unless a watched range has the hash that was kept.
  void require_kept(std::size_t range, std::uint64_t found) const;
  /// Calls `run`, which executes calls from number `at` on and moves `at` along. If they are timed, their times are
  /// noted when the queue has done them.
  template <typename Run>
  void noting(std::vector<Call>& calls, std::size_t& at, const Run& run);
  void note(Call& call, bool failed) noexcept;
  [[nodiscard]] Communicator::TransferBuffers buffers_of(std::size_t program,
                                                         const partition::Transfer& transfer) const;
  [[nodiscard]] std::span<std::byte> memory_of(std::size_t program, const partition::Region& region) const;
  [[nodiscard]] Copied copied(std::size_t program, const partition::Region& region,
                              const partition::Staged& staged) const;

  const partition::Programs programs_;
  const device::Device& device_;
  const plugins::Hooks* hooks_;
  std::unique_ptr<device::TensorHashes> hashes_;       ///< of the watched ranges; null: nothing is watched
  std::array<device::InPlaceHash, 4> pairs_ = {};      ///< of the instruction that runs; no op has more pairs
  std::vector<graph::StateId> made_;                   ///< what run_twice() compares
  std::unique_ptr<device::TensorHashes> made_hashes_;  ///< of these
  std::vector<std::uint64_t> first_hashes_;            ///< after the first of the two runs
  std::vector<std::unique_ptr<const plugins::HookTables>> hook_groups_;  ///< as Programs::hook_groups
  Communicator* communicator_ = nullptr;
  mutable device::Threads threads_;
  std::shared_ptr<const device::Memory> arena_;
  std::shared_ptr<const device::Memory> staging_;  ///< null if the host can address the arena
  std::shared_ptr<const void> pinned_;             ///< staging memory stays in place while this lives
  IdVector<graph::StateId, device::TensorView> finalized_;
  std::vector<IdVector<partition::BufferId, device::TensorView>> views_;  ///< of each program's buffers
  std::vector<std::vector<Call>> calls_;
  // Their work uses the above.
  std::unique_ptr<device::Queue> queue_;
  std::unique_ptr<device::Queue> second_;  ///< of copies to and from staging memory, and of transfers
  struct Queued;
  const int exceptions_ = std::uncaught_exceptions();  ///< before this was made
  std::unique_ptr<Queued> queued_;                     ///< null: the host starts transfers and waits for them
  mutable std::array<device::Event, 2> input_copies_;  ///< of each room of host(); see HostAccess
  mutable std::size_t room_ = 0;                       ///< that was used last
  partition::SentBytes sent_;
  // Of programs that do not count: bytes sent, and seconds.
  std::uint64_t uncounted_ = 0;
  mutable double uncounted_exposed_ = 0;
  mutable double uncounted_hidden_ = 0;
  std::optional<std::int64_t> step_;  ///< see begin_step()
  bool profiling_ = false;
  Timeline* timeline_ = nullptr;
  std::map<std::pair<std::string, std::string>, OpTime> engine_ops_;  ///< by function and op, while profiling
  std::string engine_function_;                                       ///< the call of it that has not ended
  double seconds_in_function_ = 0;                                    ///< of its operations
  bool timed_ = false;                                                ///< profiling or recording
  bool apart_ = false;  ///< every instruction runs by itself, so that its results can be looked at
  std::function<bool()> ends_;
};

/// Gives every state its first values.
void initialize(const graph::Graph& graph, std::uint64_t seed, Executor& executor);

/// Fills a state in host memory with its first values: constants, or normal draws keyed by (seed, name, global element
/// index). Box & Muller 1958, in float64. `part`: the part of the state that `view` holds. Each element gets the value
/// that it would have in the unsplit state.
void initialize(const device::TensorView& view, const mesh::Box& part, const graph::State& state, std::uint64_t seed,
                device::Threads& threads);

/// A call of an engine, or of one of its operations, from here to the end of the scope: for traces and profiles.
class TimedCall {
 public:
  /// `executor`: outlives this; null: nothing is recorded.
  TimedCall(Executor* executor, Timeline::Call::Kind kind, std::string_view name, std::int64_t bytes = 0)
      : executor_(executor != nullptr && executor->times_calls() ? executor : nullptr),
        exceptions_(std::uncaught_exceptions()) {
    if (executor_ != nullptr) {
      call_ = {.kind = kind, .name = std::string(name), .begin = now_in_nanoseconds(), .bytes = bytes};
      executor_->begin_call(call_);
    }
  }
  TimedCall(const TimedCall&) = delete;
  TimedCall& operator=(const TimedCall&) = delete;
  ~TimedCall() {
    if (executor_ != nullptr) {
      call_.end = now_in_nanoseconds();
      call_.failed = std::uncaught_exceptions() > exceptions_;
      executor_->end_call(std::move(call_));
    }
  }

 private:
  Executor* executor_;
  int exceptions_;
  Timeline::Call call_;
};

}  // namespace shardrun::runtime
