#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/device/device.h"
#include "core/device/threads.h"
#include "core/memory/arena.h"
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

/// What a checked run has found to hold NaN or Inf.
struct BadResult {
  using Order = std::array<std::int32_t, 5>;

  std::string name;  ///< with op and function
  /// Less than that of what came of it, on this rank or another: microbatch, phase, layer (in backward from the last),
  /// whether another stage sent it, instruction.
  Order order{};

  /// Of the calls that the program does at once.
  [[nodiscard]] std::int32_t call() const noexcept { return order[0]; }
};

/// Runs one rank's programs over its arena. The only state between calls is the arena's. Used by one thread.
/// A call allocates nothing.
class Executor {
 public:
  /// Maps the arena and binds every instruction to its kernel and addresses. Transfers are prepared by `bind`, which
  /// programs of one rank do without. `hooks`: the strategy's own functions, which outlive this; null where the
  /// programs call none.
  Executor(const partition::Programs& programs, const device::Device& device, const plugins::Hooks* hooks = nullptr);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  ~Executor();

  /// Prepares every transfer. REQUIRES: `communicator` outlives every call, and knows the arena.
  void bind(Communicator& communicator);

  /// Which program a name and row count mean; for `run` and the ports. `last`: the function's last call of a step.
  /// Throws Error{internal} when there is none.
  [[nodiscard]] std::size_t find(std::string_view function, std::int64_t rows, bool last = true) const;
  [[nodiscard]] std::size_t find(graph::Role role) const;  ///< REQUIRES: not on_demand
  /// As Programs::find_calls; `function`: its name or role.
  template <class Function>
  [[nodiscard]] std::vector<std::size_t> find_calls(Function function, const std::vector<std::int64_t>& rows) const {
    return programs_.find_calls(function, rows);
  }

  /// What a state holds between two steps: this rank's part of it.
  [[nodiscard]] device::TensorView state(graph::StateId id) const { return settled_[static_cast<std::size_t>(id)]; }
  /// Which part of the whole state that is.
  [[nodiscard]] const mesh::Box& part(graph::StateId id) const {
    return programs_.settled[static_cast<std::size_t>(id)].box;
  }
  /// Of one of the calls that the program does at once; nothing where this rank has no use for it.
  [[nodiscard]] std::optional<device::TensorView> find_input(std::size_t program, std::string_view name,
                                                             std::size_t call = 0) const;
  [[nodiscard]] device::TensorView input(std::size_t program, std::string_view name) const;
  [[nodiscard]] device::TensorView output(std::size_t program, std::string_view name) const;

  /// Rows of each of the calls that the program does at once.
  [[nodiscard]] const std::vector<std::int64_t>& call_rows(std::size_t program) const {
    return programs_.programs[program].call_rows;
  }

  /// `scalars`: of each call.
  void run(std::size_t program, std::span<const device::Scalars> scalars);
  void run(std::size_t program, const device::Scalars& scalars) { run(program, {&scalars, 1}); }

  /// Runs instructions from number `at` on until one waits for a transfer that is not complete: its number; or until
  /// the end: the number of instructions.
  [[nodiscard]] std::size_t advance(std::size_t program, std::span<const device::Scalars> scalars, std::size_t at);
  [[nodiscard]] std::size_t advance(std::size_t program, const device::Scalars& scalars, std::size_t at) {
    return advance(program, {&scalars, 1}, at);
  }

  /// Seconds that `run` has spent on starting transfers and waiting for them so far, and did nothing else.
  [[nodiscard]] double exposed_seconds() const noexcept { return exposed_seconds_; }
  /// Seconds that transfers have been under way so far while it did: see Communicator.
  [[nodiscard]] double hidden_seconds() const noexcept {
    return communicator_ == nullptr ? 0 : communicator_->hidden_seconds();
  }
  /// What transfers that were started sent in all, in a ring: counted from their memory, not taken from the plan.
  [[nodiscard]] const partition::SentBytes& sent() const noexcept { return sent_; }

  /// The same, looking at every result and at what every transfer has brought: the least in `order` that holds NaN or
  /// Inf, or nothing. It runs to the end, as other ranks wait for this one.
  [[nodiscard]] std::optional<BadResult> run_checked(std::size_t program, std::span<const device::Scalars> scalars);
  [[nodiscard]] std::optional<BadResult> run_checked(std::size_t program, const device::Scalars& scalars) {
    return run_checked(program, {&scalars, 1});
  }

  /// From now on `asked` is called before every instruction, and where it says true the call ends with Error{aborted}.
  /// For programs of one rank: others would wait for this one.
  void end_where(std::function<bool()> asked) { ends_ = std::move(asked); }

  /// From now on every instruction is noted there, until it is null; one that throws, too. It outlives that.
  void record(Timeline* timeline);

  /// From now on every instruction is timed.
  void start_profile();
  /// Sums by function and op, most seconds first.
  [[nodiscard]] std::vector<OpTime> profile() const;

  [[nodiscard]] device::Threads& threads() noexcept { return threads_; }
  /// Whoever tells others where it lies, as a communicator does, holds it for as long as they may use it.
  [[nodiscard]] const std::shared_ptr<const memory::Arena>& arena() const noexcept { return arena_; }
  [[nodiscard]] const device::Device& device() const noexcept { return device_; }

 private:
  struct Call {
    const device::Kernel* kernel = nullptr;  ///< of an instruction that computes
    const partition::Instruction* instruction = nullptr;
    std::uint32_t program = 0;
    std::uint32_t number = 0;  ///< of the instruction
    std::vector<device::TensorView> inputs;
    std::vector<device::TensorView> outputs;
    std::span<std::byte> scratch;
    Communicator::Handle transfer = 0;
    std::vector<void*> hook_buffers;
    std::vector<std::uint64_t> hook_elements;
    std::uint64_t* sent = nullptr;  ///< where the bytes of a start are counted
    std::uint64_t bytes = 0;
    double seconds = 0;
    std::int64_t count = 0;
  };

  void bind_transfers(std::size_t program);
  [[nodiscard]] std::optional<std::string> bad_result(std::size_t program, const Call& call) const;
  [[nodiscard]] std::optional<std::string> bad_arrival(std::size_t program, const partition::Transfer& transfer) const;
  void execute(Call& call, std::span<const device::Scalars> scalars);
  void compute(Call& call, const device::Scalars& scalars);
  void bind_hook(Call& call);
  void call_hook(const Call& call, const device::Scalars& scalars);
  void perform(Call& call, std::span<const device::Scalars> scalars);
  void note(Call& call, std::int64_t begin, bool failed) noexcept;
  [[nodiscard]] Communicator::Place place_of(std::size_t program, const partition::Transfer& transfer) const;
  [[nodiscard]] std::byte* address_of(std::size_t program, partition::BufferId buffer) const;

  const partition::Programs programs_;
  const device::Device& device_;
  const plugins::Hooks* hooks_;
  std::vector<std::unique_ptr<const plugins::HookTables>> hook_groups_;  ///< as Programs::hook_groups
  Communicator* communicator_ = nullptr;
  device::Threads threads_;
  std::shared_ptr<const memory::Arena> arena_;
  std::vector<device::TensorView> settled_;             ///< of each state
  std::vector<std::vector<device::TensorView>> views_;  ///< of each program's buffers; the states come first
  std::vector<std::vector<Call>> calls_;
  partition::SentBytes sent_;
  double exposed_seconds_ = 0;
  bool profiling_ = false;
  Timeline* timeline_ = nullptr;
  bool timed_ = false;  ///< either of them
  std::function<bool()> ends_;
};

/// Whether an f32 tensor holds NaN or Inf, on either device; never for i32.
[[nodiscard]] bool has_non_finite(const device::TensorView& view, std::size_t element_bytes) noexcept;

/// Gives every state its first values; what copies a parameter, that parameter's.
void initialize(const graph::Graph& graph, std::uint64_t seed, Executor& executor);

/// Fills a state with its first values: constants, or normal draws keyed by (seed, name, global element index).
/// Box & Muller 1958, in float64. `part` is which part of the state `view` holds: it draws what the whole has there.
void initialize(const device::TensorView& view, const mesh::Box& part, std::size_t element_bytes,
                const graph::State& state, std::uint64_t seed, device::Threads& threads);

}  // namespace shardrun::runtime
