#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/device/device.h"
#include "core/device/threads.h"
#include "core/memory/arena.h"
#include "core/partition/program.h"

namespace shardrun::runtime {

/// Time spent in the instructions of one op of one function.
struct OpTime {
  std::string function;
  std::string op;
  std::int64_t calls = 0;
  double seconds = 0;
  std::int64_t flops = 0;
};

/// Runs one rank's programs over its arena. The only state between calls is the arena's. Used by one thread.
/// A call allocates nothing.
class Executor {
 public:
  /// Maps the arena and binds every instruction to its kernel and addresses.
  Executor(const partition::Programs& programs, const device::Device& device);

  /// Which program a name and row count mean; for `run` and the ports. Throws Error{internal} when there is none.
  [[nodiscard]] std::size_t find(std::string_view function, std::int64_t rows) const;

  [[nodiscard]] device::TensorView state(graph::StateId id) const {
    return views_.front()[static_cast<std::size_t>(id)];
  }
  [[nodiscard]] device::TensorView input(std::size_t program, std::string_view name) const;
  [[nodiscard]] device::TensorView output(std::size_t program, std::string_view name) const;

  void run(std::size_t program, const device::Scalars& scalars);

  /// The same, looking at every result: the name of the first that holds NaN or Inf, or nothing.
  [[nodiscard]] std::optional<std::string> run_checked(std::size_t program, const device::Scalars& scalars);

  /// From now on every instruction is timed.
  void start_profile();
  /// Sums by function and op, most seconds first.
  [[nodiscard]] std::vector<OpTime> profile() const;

  [[nodiscard]] device::Threads& threads() noexcept { return threads_; }
  [[nodiscard]] const memory::Arena& arena() const noexcept { return arena_; }
  [[nodiscard]] const device::Device& device() const noexcept { return device_; }

 private:
  struct Call {
    const device::Kernel* kernel = nullptr;
    const partition::Instruction* instruction = nullptr;
    std::vector<device::TensorView> inputs;
    std::vector<device::TensorView> outputs;
    std::span<std::byte> scratch;
    double seconds = 0;
    std::int64_t count = 0;
  };

  void execute(Call& call, const device::Scalars& scalars);

  const partition::Programs programs_;
  const device::Device& device_;
  device::Threads threads_;
  memory::Arena arena_;
  std::vector<std::vector<device::TensorView>> views_;  ///< of each program's buffers; the states come first
  std::vector<std::vector<Call>> calls_;
  bool profiling_ = false;
};

/// Whether an f32 tensor holds NaN or Inf, on either device; never for i32.
[[nodiscard]] bool has_non_finite(const device::TensorView& view, std::size_t element_bytes) noexcept;

/// Fills a state with its first values: constants, or normal draws keyed by (seed, name, global element index).
/// Box & Muller 1958, in float64. A shard draws what the whole tensor has there.
void initialize(const device::TensorView& view, std::size_t element_bytes, const graph::State& state,
                std::uint64_t seed, device::Threads& threads);

}  // namespace shardrun::runtime
