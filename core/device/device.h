#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/graph/attributes.h"
#include "core/graph/op.h"
#include "core/graph/tensor_type.h"

namespace shardrun::device {

class Memory;
class Queue;
class Threads;

inline constexpr std::size_t max_rank = 8;

/// A contiguous, row-major tensor, or one shard of one. `origin` is the global index of its first element in each
/// dimension (zero for a whole tensor). Kernels whose results depend on the position use `origin`, such as look-ups in
/// a sharded vocabulary and random numbers.
struct TensorView {
  void* data = nullptr;
  graph::DType dtype = graph::DType::f32;    ///< the type of the elements in memory
  graph::DType rounded = graph::DType::f32;  ///< the graph's type of the elements; run_kernel() rounds results to it
  std::uint32_t rank = 0;
  std::array<std::int64_t, max_rank> shape = {};
  std::array<std::int64_t, max_rank> origin = {};
  std::array<std::int64_t, max_rank> global = {};  ///< the whole tensor's shape

  [[nodiscard]] std::int64_t elements() const noexcept {
    std::int64_t count = 1;
    for (std::uint32_t d = 0; d < rank; ++d) {
      count *= shape[d];
    }
    return count;
  }
  [[nodiscard]] std::size_t bytes() const noexcept {
    return static_cast<std::size_t>(elements()) * graph::element_bytes(dtype);
  }
  /// The device address of element number `element`.
  [[nodiscard]] std::byte* address_of(std::int64_t element) const noexcept {
    return static_cast<std::byte*>(data) + static_cast<std::size_t>(element) * graph::element_bytes(dtype);
  }
};

/// The shapes and the element types in memory. Axes have no names.
[[nodiscard]] std::vector<graph::TensorType> types_of(std::span<const TensorView> tensors);

/// Addresses, in the device's memory, of the numbers that decide whether a step's updates are held back. Once the loss
/// or the gradient's norm is not finite, updates leave parameters and moments unchanged. See Device::can_hold_updates.
struct Guard {
  const float* loss = nullptr;
  std::int32_t* held = nullptr;  ///< *held is not 0: updates are held back; null: they never are
};

/// Two hashes (hash.h) of an in-place pair: of an operand as the kernel read it, and of the result that replaced it.
struct InPlaceHash {
  std::uint64_t read = 0;
  std::uint64_t written = 0;
};

struct KernelCall;

/// Rounds the results of a kernel call.
using RoundResults = std::function<void(const KernelCall& call)>;

/// Arguments that differ between the calls of a function.
struct Scalars {
  std::uint64_t seed = 0;
  std::int64_t step = 0;          ///< the optimizer's step, from 0
  double learning_rate = 0;       ///< of this step
  std::int64_t first_sample = 0;  ///< global index of row 0 of this call's batch: step * batch + rows before
  std::int64_t position = 0;      ///< the position in a sequence that the op take_position reads
  bool first_microbatch = true;
  Guard guard = {};  ///< for updates
  /// The kernel adds to these if it has Kernel::hashes: one entry for each in-place pair of the op. Null: no hashes.
  InPlaceHash* hashes = nullptr;
  /// If not null, run_kernel() calls this instead of rounding the results itself.
  const RoundResults* round = nullptr;
};

/// One execution of a kernel. All memory is in the arena.
struct KernelCall {
  const graph::Attributes& attributes;
  std::span<const TensorView> inputs;
  std::span<const TensorView> outputs;
  bool accumulate = false;  ///< add to outputs[0] instead of overwriting it (only ops that declare `accumulates`)
  std::span<std::byte> scratch;
  const Scalars& scalars;
  Threads& threads;
  void* prepared = nullptr;  ///< the result of Kernel::prepare
  void* stream = nullptr;    ///< the GPU stream on which the kernel is enqueued; null on the processor
};

/// A kernel as an object, for an op that is added while the program runs. Its functions have the contracts of Kernel's.
struct AddedKernel {
  virtual ~AddedKernel() = default;
  virtual void run(const KernelCall& call) const = 0;
  [[nodiscard]] virtual std::size_t scratch_bytes(const graph::OpShape& shape) const = 0;
  [[nodiscard]] virtual std::shared_ptr<void> prepare(const graph::OpShape& shape) const = 0;
};

/// One device's implementation of one op.
struct Kernel {
  void (*run)(const KernelCall& call) = nullptr;
  /// Bytes of scratch that `run` uses for these (local) shapes and threads, exactly. Null: none.
  std::size_t (*scratch_bytes)(const graph::OpShape& shape, int threads) = nullptr;
  /// Makes state that calls with these (local) shapes need besides memory, such as a library's descriptors. Each
  /// instruction has its own state, which one call at a time uses. Null, or a null result: no state.
  std::shared_ptr<void> (*prepare)(const graph::OpShape& shape) = nullptr;
  /// For people: how the kernel multiplies bfloat16 matrices on this machine. Null: there is only one way.
  std::string_view (*bf16_products)() noexcept = nullptr;
  /// Whether the kernel fills Scalars::hashes if the pairs have four-byte elements.
  bool hashes = false;
  /// If not null, its functions are used instead of the pointers above.
  const AddedKernel* added = nullptr;
  /// The op's name, set when the kernel is registered.
  std::string_view op = {};
};

/// Calls Kernel::prepare, or the function of Kernel::added.
[[nodiscard]] std::shared_ptr<void> prepare_kernel(const Kernel& kernel, const graph::OpShape& shape);

/// A kernel with the arguments that stay the same in all calls, as Device::prepare() makes it. A device can derive a
/// type from this one to keep more data.
struct PreparedKernel {
  PreparedKernel() = default;
  PreparedKernel(const PreparedKernel&) = delete;
  PreparedKernel& operator=(const PreparedKernel&) = delete;
  virtual ~PreparedKernel() = default;

  const Kernel* kernel = nullptr;
  const graph::Attributes* attributes = nullptr;
  std::vector<TensorView> inputs;
  std::vector<TensorView> outputs;
  std::span<std::byte> scratch;
  std::shared_ptr<void> prepared;  ///< the result of Kernel::prepare
  std::string_view makes;          ///< the name of the tensor that the kernel computes, for messages
};

/// A description of a device for people.
struct DeviceFacts {
  std::string kind;  ///< "cpu"
  std::int64_t cores = 0;
  std::optional<std::uint64_t> memory;  ///< bytes available; nothing: unknown
  std::string vectors;                  ///< the instruction set of the fastest kernels
  std::vector<graph::DType> computes;   ///< real types that its kernels support
  std::string bf16_products;            ///< how it multiplies bfloat16 matrices; empty: not known
  std::string unit;                     ///< the unit that this process uses: "0 (NVIDIA H200, …)"; empty: no units
};

/// One of a device's processors with its own memory, such as a GPU.
struct Unit {
  std::string name;          ///< "NVIDIA H200"
  std::uint64_t memory = 0;  ///< total bytes
  std::string architecture;  ///< "compute capability 9.0"
};

/// Where programs run. A device owns the memory of tensors, decides when kernels run, and chooses the type in which it
/// stores each element type. It has at most one kernel for each op.
///
/// Addresses in views are the device's. Outside this folder only host tensors (host_tensor.h) are dereferenced.
class Device {
 public:
  /// Finds a device by name. Loads and registers a device in a library (library.h) first. Throws Error{usage} if the
  /// name is unknown (the message lists the known names), and as load_device() does.
  [[nodiscard]] static const Device& find(std::string_view name);
  /// The registered devices, in the order of registration.
  [[nodiscard]] static const std::vector<std::unique_ptr<const Device>>& all();

  /// `kernels`: the device name under which its kernels are registered.
  /// `reals`: the type in which it stores all real numbers; nothing: each in its own type.
  explicit Device(std::string name, std::string kernels, std::optional<graph::DType> reals = std::nullopt)
      : name_(std::move(name)), kernels_(std::move(kernels)), reals_(reals) {}
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// The type in which the device stores elements of this graph type.
  [[nodiscard]] graph::DType stored(graph::DType dtype) const noexcept {
    return graph::is_real(dtype) ? reals_.value_or(dtype) : dtype;
  }
  /// Throws Error{internal} if the device has no kernel for the op.
  [[nodiscard]] const Kernel& kernel(std::string_view op) const;
  /// Returns null if the device has no kernel for the op.
  [[nodiscard]] const Kernel* find_kernel(std::string_view op) const;

  [[nodiscard]] virtual DeviceFacts facts() const = 0;
  /// Whether the device has units. If so, units() returns at least one, or throws.
  [[nodiscard]] virtual bool has_units() const noexcept { return false; }
  /// The processors (GPUs) on this machine, of which a process uses one. Throws Error{job}, saying what is missing, if
  /// the device cannot be used on this machine.
  [[nodiscard]] virtual std::vector<Unit> units() const { return {}; }
  /// Chooses the unit on which this process computes, by its index in units(). The default is 0. A device without units
  /// throws Error{internal} for another. REQUIRES: no memory has been allocated.
  virtual void use_unit(std::size_t unit) const;
  /// Whether the host, and so every transport, can use addresses in the device's memory.
  [[nodiscard]] virtual bool is_addressable() const noexcept = 0;
  /// Whether the device's update kernels obey Scalars::guard. If so, the host can enqueue the next step before it has
  /// read this step's loss.
  [[nodiscard]] virtual bool can_hold_updates() const noexcept { return false; }
  /// Pins host memory for fast copies to and from the device: while the result lives, the system does not move or swap
  /// that memory out. Returns null if pinning makes copies no faster. Throws Error{io} if the system refuses.
  [[nodiscard]] virtual std::shared_ptr<const void> pin(std::span<std::byte> memory) const;
  /// Allocates memory for tensors, with undefined contents. The memory must outlive the queues that use it. Throws
  /// Error{io} if there is not enough.
  [[nodiscard]] virtual std::shared_ptr<const Memory> allocate(std::uint64_t bytes) const = 0;
  /// Opens a queue whose kernels share `threads`, which must outlive the queue.
  [[nodiscard]] virtual std::unique_ptr<Queue> open_queue(Threads& threads) const = 0;
  /// Bytes of scratch that prepare() needs for these (local) shapes and this number of threads. By default, they
  /// are what the kernel's own function scratch_bytes returns.
  [[nodiscard]] virtual std::size_t scratch_bytes(const Kernel& kernel, const graph::OpShape& shape, int threads) const;
  /// Prepares a kernel of this device for arguments in its memory. `makes` names the result in messages. `attributes`,
  /// `kernel` and `makes` must outlive what this returns.
  [[nodiscard]] virtual std::unique_ptr<const PreparedKernel> prepare(
      const Kernel& kernel, const graph::Attributes& attributes, std::vector<TensorView> inputs,
      std::vector<TensorView> outputs, std::span<std::byte> scratch, std::string_view makes = {}) const;
  /// Returns one kernel in place of two that would run directly one after the other, and that do not add to their
  /// results. The kernel writes everything that the two write, but can round less often. What must outlive the two
  /// kernels must outlive it, too. Returns null if the device does not fuse these two.
  [[nodiscard]] virtual std::unique_ptr<const PreparedKernel> fuse(const PreparedKernel& first,
                                                                   const PreparedKernel& next) const;

 private:
  std::string name_;
  std::string kernels_;
  std::optional<graph::DType> reals_;
};

/// Runs a kernel at once. All arguments are in host memory. Results that are stored in float64 but are bf16 or f16 in
/// the graph are rounded to that type, unless Scalars::round is set. Results that are f32 in the graph keep all digits
/// of float64.
void run_kernel(const Kernel& kernel, const KernelCall& call);

/// Registers a device. At namespace scope: `const RegisterDevice d(std::make_unique<Mine>());`
class RegisterDevice {
 public:
  explicit RegisterDevice(std::unique_ptr<const Device> device);
};

/// Registers a kernel. At namespace scope: `const RegisterKernel k("cpu", "matmul", kernel, level);` If several kernels
/// are registered for one device and op, the one with the highest level is used. A variant for an instruction set
/// passes the level that it needs, and registers only on machines that have it.
class RegisterKernel {
 public:
  RegisterKernel(std::string_view device, std::string_view op, Kernel kernel, int level = 0);
};

/// Registers the kernel of an op added while the program runs (graph::add_op). REQUIRES: no other thread uses kernels.
void add_kernel(std::string_view device, std::string_view op, std::unique_ptr<const AddedKernel> kernel);

}  // namespace shardrun::device
