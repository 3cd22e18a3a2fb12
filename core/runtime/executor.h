#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
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
  /// Sort key: microbatch, phase, layer (counted backwards in the backward phase), whether another stage sent it,
  /// instruction. A tensor sorts before everything computed from it, on any rank.
  Order order{};

  /// The number of the call, among those that an execution of the program covers.
  [[nodiscard]] std::int32_t call() const noexcept { return order[0]; }
};

/// The failure of a queued transfer. The host may notice it only in a later step.
class TransferError : public Error {
 public:
  TransferError(const Error& error, std::optional<std::int64_t> step) : Error(error), step_(step) {}

  /// The step that started the transfer; see Executor::begin_step().
  [[nodiscard]] std::optional<std::int64_t> step() const noexcept { return step_; }

 private:
  std::optional<std::int64_t> step_;
};

/// Runs one rank's programs over its arena. Between calls, all state is in the arena. Only one thread may use it. On
/// the cpu a call allocates nothing. A call returns when all its work has been enqueued, which can be long before it is
/// done. It waits only for hooks, for transfers that the host runs, and for a queued one that must start again. Errors
/// of queued transfers are thrown by functions that read results or return the queue.
class Executor {
 public:
  /// Allocates the arena and prepares every instruction's kernel for its addresses. `bind` prepares transfers; programs
  /// of a single rank do not need it. `hooks`: the strategy's own functions, which outlive this object; null if the
  /// programs call none.
  Executor(const partition::Programs& programs, const device::Device& device, const plugins::Hooks* hooks = nullptr);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  /// If it runs because of an exception, queued transfers are aborted.
  ~Executor();

  /// Prepares every transfer. REQUIRES: `communicator` knows the arena and outlives every call; if it has queued
  /// transfers, it outlives this object.
  void bind(Communicator& communicator);

  /// Fails the queued transfers, because this rank has failed: they would wait for ranks that wait for this one. Has no
  /// effect on transfers that the host runs. Does not wait.
  void abort_transfers(const std::string& reason) const noexcept;

  /// The index of the program for a name and a number of rows. `last`: the function's last call in a step. Throws
  /// Error{internal} if there is none.
  [[nodiscard]] std::size_t find(std::string_view function, std::int64_t rows, bool last = true) const;
  [[nodiscard]] std::size_t find(graph::Role role) const;  ///< REQUIRES: not on_demand
  /// Indices of the programs that run a function's calls of a step, in order. `function`: a name or a role. `rows`: the
  /// rows of each call.
  template <class Function>
  [[nodiscard]] std::vector<std::size_t> find_calls(Function function, const std::vector<std::int64_t>& rows) const {
    return programs_.find_calls(function, rows);
  }

  /// This rank's part of a state, as it is between two steps.
  [[nodiscard]] device::TensorView state(graph::StateId id) const { return finalized_[id]; }
  /// Which part of the whole state this rank has.
  [[nodiscard]] const mesh::Box& part(graph::StateId id) const { return programs_.finalized[id].box; }
  /// The input of call `call`, among those that an execution covers. Nothing if this rank does not use it.
  [[nodiscard]] std::optional<device::TensorView> find_input(std::size_t program, std::string_view name,
                                                             std::size_t call = 0) const;
  [[nodiscard]] device::TensorView input(std::size_t program, std::string_view name) const;
  [[nodiscard]] device::TensorView output(std::size_t program, std::string_view name) const;

  /// The number of rows of each call that an execution of the program covers.
  [[nodiscard]] const std::vector<std::int64_t>& call_rows(std::size_t program) const {
    return programs_.programs[program].call_rows;
  }

  /// Sets the step, counted from 0, that later errors name: see TransferError.
  void begin_step(std::int64_t step) {
    step_ = step;
    queue_->begin_step(step);
  }

  /// Runs a program. `scalars`: one for each call that the execution covers.
  void run(std::size_t program, std::span<const device::Scalars> scalars);
  void run(std::size_t program, const device::Scalars& scalars) { run(program, {&scalars, 1}); }

  // The following are for calls that overlap (partition::Programs::stages), on all stages except the last.

  /// Begins a call. First waits until the next stage has received what the program's previous call sent. Then runs the
  /// program up to where it receives what later stages send back.
  void begin(std::size_t program, const device::Scalars& scalars);
  /// Ends the program's call that was begun first. Other calls may have been begun since.
  void end(std::size_t program);
  /// Waits until the next stage has all that calls sent. REQUIRES: all calls have ended on all stages.
  void finish_sends();

  /// Runs one of the programs of partition/agreements.h: each number becomes the largest one of all ranks that agree.
  void agree(std::size_t program, std::span<std::int32_t> numbers);

  /// Runs instructions from number `at` on, until one waits for a transfer that is not complete. Returns its number, or
  /// the number of all instructions at the end. REQUIRES: the communicator has no queued transfers.
  [[nodiscard]] std::size_t advance(std::size_t program, std::span<const device::Scalars> scalars, std::size_t at);
  [[nodiscard]] std::size_t advance(std::size_t program, const device::Scalars& scalars, std::size_t at) {
    return advance(program, {&scalars, 1}, at);
  }

  // Seconds for the programs' transfers so far: see Communicator. If transfers are queued, agreements are left out.
  [[nodiscard]] double exposed_seconds() const noexcept {
    return communicator_ == nullptr ? 0 : communicator_->exposed_seconds() - uncounted_exposed_;
  }
  [[nodiscard]] double hidden_seconds() const noexcept {
    return communicator_ == nullptr ? 0 : communicator_->hidden_seconds() - uncounted_hidden_;
  }
  /// Seconds by which transfers began late so far: see Communicator.
  [[nodiscard]] double late_seconds() const noexcept {
    return communicator_ == nullptr ? 0 : communicator_->late_seconds();
  }
  [[nodiscard]] Starved starved() const noexcept {
    return communicator_ == nullptr ? Starved{} : communicator_->starved();
  }
  /// Seconds that the host took so far to read the programs' inputs. Callers that write inputs add their times.
  [[nodiscard]] double input_seconds() const noexcept { return input_seconds_; }
  void add_input_seconds(double seconds) noexcept { input_seconds_ += seconds; }
  /// The total bytes that started transfers sent, assuming rings: see partition::sent_bytes().
  [[nodiscard]] partition::SentBytes sent() const;
  /// The same for the transfers of one program.
  [[nodiscard]] const partition::SentBytes& sent(std::size_t program) const { return sent_[program]; }

  /// Like `run`, but checks every result and everything that transfers bring, and uses no fused kernels. Returns the
  /// first one in `order` that has NaN or Inf, or nothing. Runs to the end, because other ranks wait for this one.
  [[nodiscard]] std::optional<NonFiniteResult> run_checked(std::size_t program,
                                                           std::span<const device::Scalars> scalars);
  [[nodiscard]] std::optional<NonFiniteResult> run_checked(std::size_t program, const device::Scalars& scalars) {
    return run_checked(program, {&scalars, 1});
  }

  /// Begins to detect bits that change in states while no program writes them: hashes the watched ranges, which
  /// programs verify and hash as they run (partition::watch_states). Call it when the states have their values for the
  /// first step. Afterwards only programs may write them. Has no effect for programs that watch nothing.
  void watch();
  /// Verifies all watched states in a separate pass. Throws Error{damaged}, which names the state, the rank and the
  /// host; programs throw it, too.
  void verify_states() const;

  /// Prepares run_twice(): allocates its hashes.
  void expect_twice();
  /// Runs a program, then runs it again with each part of its work on another thread. Compares the bits of all states
  /// that do not last: gradients and metrics. Returns the first that differs, or null. `refill` is called in between,
  /// because a program may reuse its inputs' memory. REQUIRES: expect_twice() was called, and the program can run
  /// again, because it overwrites everything that it writes.
  [[nodiscard]] const partition::Buffer* run_twice(std::size_t program, std::span<const device::Scalars> scalars,
                                                   const std::function<void()>& refill);

  /// From now on calls `asked` before every instruction; if it returns true, the call ends with Error{aborted}. Only
  /// for programs of a single rank: other ranks would wait for this one.
  void end_where(std::function<bool()> asked) { ends_ = std::move(asked); }

  /// Records every instruction from now on, also one that throws, in `timeline`, which outlives the recording. Null
  /// ends it.
  void record(Timeline* timeline);
  /// The timeline that is being recorded; null: none.
  [[nodiscard]] Timeline* timeline() const noexcept { return timeline_; }

  // The following record the calls of an engine: see TimedCall. The engine's operations count as ops of the function in
  // which they are called.

  [[nodiscard]] bool times_calls() const noexcept { return timed_; }
  void begin_call(const Timeline::Call& call);
  void end_call(Timeline::Call call);

  /// Times every instruction from now on.
  void start_profile();
  /// The sums by function and op, longest first.
  [[nodiscard]] std::vector<OpTime> profile() const;

  [[nodiscard]] device::Threads& threads() const noexcept { return threads_; }
  /// The memory that transports use. A communicator gives the memory's address to transports, so it shares ownership as
  /// long as they can use it.
  [[nodiscard]] TransportMemory transport_memory() const noexcept {
    return staging_ == nullptr ? TransportMemory{.host = arena_, .of_device = nullptr}
                               : TransportMemory{.host = staging_, .of_device = arena_};
  }
  /// Bytes of the pages of arena and staging memory that have been touched so far.
  [[nodiscard]] std::uint64_t touched_bytes() const;
  [[nodiscard]] const std::shared_ptr<const device::Memory>& arena() const noexcept { return arena_; }
  [[nodiscard]] const device::Device& device() const noexcept { return device_; }
  [[nodiscard]] const partition::Programs& programs() const noexcept { return programs_; }
  /// The queue that runs the programs. The host reads and writes tensors through it. This call waits for all
  /// transfers that programs wait for, and throws their errors.
  [[nodiscard]] device::Queue& queue() const;
  /// Access like queue(), with planned memory for copies of a call's inputs, a program's outputs or a metric. Use it
  /// between programs. A write does not wait: two areas are used in turn, so the host may write to one while the device
  /// copies from the other.
  [[nodiscard]] device::HostAccess host(device::Access access) const;

  // The following are for numbers that the host reads only after it has enqueued more work. Each has a slot, a number
  // below partition::late_slots. REQUIRES: the host cannot address the arena.

  /// Enqueues a copy of a tensor of at most partition::late_slot_bytes to the slot.
  void keep(std::size_t slot, const device::TensorView& tensor);
  /// Agrees on one number, as agree() does, and stores it in the slot. `give(argument)` writes this rank's number there
  /// once earlier work is done; see Queue::call. REQUIRES: the slot is not in use.
  void agree_later(std::size_t program, std::size_t slot, void (*give)(void* argument), void* argument);
  /// Marks the end of the work enqueued so far.
  [[nodiscard]] device::Event mark() { return queue_->record(); }
  /// Waits until the mark is passed. Throws errors of the work and of its transfers.
  void reach(const device::Event& mark) const;
  /// The slot's contents. REQUIRES: the queue has passed a mark that was set after they were written.
  [[nodiscard]] std::span<std::byte> kept(std::size_t slot) const;

  /// A guard for the scalars of updates that must be held back once this loss or the gradient's norm is not finite.
  /// REQUIRES: Device::can_hold_updates().
  [[nodiscard]] device::Guard guard(graph::StateId loss) const;

 private:
  /// Memory of the arena and its copy in staging memory.
  struct Copied {
    std::byte* in_arena = nullptr;
    std::span<std::byte> staged;
  };

  struct Call {
    std::unique_ptr<const device::PreparedKernel> kernel;  ///< for instructions that compute
    std::unique_ptr<const device::PreparedKernel> fused;   ///< also does the following calls that are `is_fused`
    bool is_fused = false;                                 ///< the `fused` of an earlier call does it
    const partition::Instruction* instruction = nullptr;
    std::uint32_t program = 0;
    std::uint32_t number = 0;  ///< number of the instruction
    Communicator::Handle transfer = 0;
    bool is_direct = false;            ///< the transfer moves the device's memory directly
    Call* waiter = nullptr;            ///< for a start: the call that waits for its transfer
    bool joined = false;               ///< for a wait: it was enqueued, and the host has not asked for its end yet
    std::optional<std::int64_t> step;  ///< for a wait: the step that started the transfer
    device::Event passed;              ///< for a wait: the queue has passed it
    Communicator::Times waited;        ///< for a wait: when the queue waited
    std::vector<Copied> before;        ///< copied to staging memory before the instruction
    std::vector<Copied> after;         ///< copied to the arena after it
    std::vector<void*> hook_buffers;
    std::vector<std::uint64_t> hook_elements;
    std::span<const partition::Watch> watches;  ///< for this instruction
    std::uint64_t* sent = nullptr;              ///< for a start: where its bytes are counted
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
  /// If the call's result is not finite and sorts before `first`, stores it in `first`.
  void check(const Call& call, std::optional<NonFiniteResult>& first) const;
  [[nodiscard]] std::optional<std::string> non_finite_result(std::size_t program, const Call& call) const;
  [[nodiscard]] std::optional<std::string> bad_arrival(std::size_t program, const partition::Transfer& transfer) const;
  void execute(Call& call, std::span<const device::Scalars> scalars);
  void run_part(std::size_t program, const device::Scalars& scalars, std::size_t first, std::size_t end);
  [[nodiscard]] bool waits_for_send(const Call& call) const;
  void finish_sends(std::size_t program);
  void compute(Call& call, const device::Scalars& scalars);
  void move(const Call& call);
  void start(Call& call);
  void wait(Call& call);
  void copy_before(const Call& call);
  void copy_after(const Call& call);
  void finish_first_transfer() const;
  /// Waits for a transfer. Throws TransferError.
  void finish_transfer(const Call& call) const;
  /// Waits for all transfers for which queues wait.
  void finish_transfers() const;
  void bind_hook(Call& call);
  void bind_copies(Call& call, const partition::Transfer& transfer);
  void call_hook(const Call& call, const device::Scalars& scalars);
  void perform(Call& call, std::span<const device::Scalars> scalars);
  void perform_watched(Call& call, std::span<const device::Scalars> scalars);
  [[nodiscard]] partition::KeptHash& kept_hash(std::size_t range) const;
  /// Throws Error{damaged} unless a watched range still has its hash.
  void require_kept(std::size_t range, std::uint64_t found) const;
  /// Calls `run`, which executes calls from number `at` on and advances `at`. If calls are timed, records their times
  /// when the queue has done them.
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
  std::unique_ptr<device::TensorHashes> hashes_;       ///< for the watched ranges; null: nothing is watched
  std::array<device::InPlaceHash, 4> pairs_ = {};      ///< for the running instruction; no op has more pairs
  std::vector<graph::StateId> made_;                   ///< the states that run_twice() compares
  std::unique_ptr<device::TensorHashes> made_hashes_;  ///< hashes of `made_`
  std::vector<std::uint64_t> first_hashes_;            ///< hashes after the first of the two runs
  std::vector<std::unique_ptr<const plugins::HookTables>> hook_groups_;  ///< as Programs::hook_groups
  Communicator* communicator_ = nullptr;
  mutable device::Threads threads_;
  std::shared_ptr<const device::Memory> arena_;
  std::shared_ptr<const device::Memory> staging_;  ///< null if the host can address the arena
  std::shared_ptr<const void> pinned_;             ///< pins staging memory while it lives
  IdVector<graph::StateId, device::TensorView> finalized_;
  std::vector<IdVector<partition::BufferId, device::TensorView>> views_;  ///< the buffers of each program
  std::vector<std::vector<Call>> calls_;
  std::vector<bool> has_sent_;  ///< per program: whether its sends were begun and not waited for: see begin()
  // The queues come after the memory above, which their work uses.
  std::unique_ptr<device::Queue> queue_;
  std::unique_ptr<device::Queue> second_;  ///< for copies to and from staging memory, and for transfers
  struct Queued;
  const int exceptions_ = std::uncaught_exceptions();  ///< exceptions in flight when this object was made
  std::unique_ptr<Queued> queued_;                     ///< null: the host starts transfers and waits for them
  mutable std::array<device::Event, 2> input_copies_;  ///< for each area of host(); see HostAccess
  mutable std::size_t room_ = 0;                       ///< the area used last
  std::vector<partition::SentBytes> sent_;             ///< by program
  // Bytes that programs sent, and seconds that they took for transfers, where Program::counts is false.
  std::uint64_t uncounted_ = 0;
  mutable double uncounted_exposed_ = 0;
  mutable double uncounted_hidden_ = 0;
  double input_seconds_ = 0;
  std::optional<std::int64_t> step_;  ///< see begin_step()
  bool profiling_ = false;
  Timeline* timeline_ = nullptr;
  std::map<std::pair<std::string, std::string>, OpTime> engine_ops_;  ///< by function and op, while profiling
  std::string engine_function_;                                       ///< the call of the engine that has not ended
  double seconds_in_function_ = 0;                                    ///< of the operations within that call
  bool timed_ = false;                                                ///< profiling or recording
  bool apart_ = false;  ///< every instruction runs separately, so that its results can be inspected
  std::function<bool()> ends_;
};

/// Gives every state its first values, except `loaded`: states whose values are loaded.
void initialize(const graph::Graph& graph, std::uint64_t seed, Executor& executor,
                const std::set<graph::StateId>& loaded = {});

/// Fills a state in host memory with its first values: see graph::Initializer. Random draws are keyed by (seed, stream,
/// global element index); normal ones are by Box & Muller 1958, in float64. `part`: the part of the state that `view`
/// holds. Each element gets the value that it would have in the unsplit state.
void initialize(const device::TensorView& view, const mesh::Box& part, const graph::State& state, std::uint64_t seed,
                device::Threads& threads);

/// Records, for traces and profiles, a call of an engine or of one of its operations. The call lasts as long as this.
class TimedCall {
 public:
  /// `executor`: outlives this object; null: nothing is recorded.
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
