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

/// A contiguous, row-major tensor, or one shard of one. `origin` is the global index of its first element per dimension
/// (zero for a whole tensor). Kernels that depend on the position use it: look-ups in a sharded vocabulary, random
/// numbers.
struct TensorView {
  void* data = nullptr;
  graph::DType dtype = graph::DType::f32;    ///< of the elements in memory
  graph::DType rounded = graph::DType::f32;  ///< the graph's type of the elements, to which run_kernel() rounds results
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
  /// The address of an element, on the device.
  [[nodiscard]] std::byte* address_of(std::int64_t element) const noexcept {
    return static_cast<std::byte*>(data) + static_cast<std::size_t>(element) * graph::element_bytes(dtype);
  }
};

/// Their element types in memory and shapes. Axes have no names.
[[nodiscard]] std::vector<graph::TensorType> types_of(std::span<const TensorView> tensors);

/// Numbers of a step in the device's memory, by which updates are held back: once the loss or the gradient's norm is
/// not finite, they leave parameters and moments as they are. See Device::can_hold_updates.
struct Guard {
  const float* loss = nullptr;
  std::int32_t* held = nullptr;  ///< not 0: updates are held; null: they never are
};

/// Hashes (hash.h) of an operand as a kernel has read it and of the result that it has written in its place.
struct InPlaceHash {
  std::uint64_t read = 0;
  std::uint64_t written = 0;
};

struct KernelCall;

/// Rounds the results of a call of a kernel.
using RoundResults = std::function<void(const KernelCall& call)>;

/// Arguments that change from call to call of a function.
struct Scalars {
  std::uint64_t seed = 0;
  std::int64_t step = 0;          ///< of the optimizer, from 0
  double learning_rate = 0;       ///< of this step
  std::int64_t first_sample = 0;  ///< global index of row 0 of this call's batch: step * batch + rows before
  std::int64_t position = 0;      ///< position in the sequence to predict (prediction)
  bool first_microbatch = true;
  Guard guard = {};  ///< of an update
  /// Kernel::hashes: one for each of the op's in-place pairs that the call has; the kernel adds to them. Null: none are
  /// asked for.
  InPlaceHash* hashes = nullptr;
  /// Rounds results in place of run_kernel(). Null: run_kernel() does.
  const RoundResults* round = nullptr;
};

/// One execution of a kernel. All memory is in the arena.
struct KernelCall {
  const graph::Attributes& attributes;
  std::span<const TensorView> inputs;
  std::span<const TensorView> outputs;
  bool accumulate = false;  ///< add to outputs[0] instead of overwriting it (ops that declare `accumulates` only)
  std::span<std::byte> scratch;
  const Scalars& scalars;
  Threads& threads;
  void* prepared = nullptr;  ///< what Kernel::prepare made
  void* stream = nullptr;    ///< of a GPU, on which the kernel is enqueued; devices of the processor have none
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
  /// Bytes of scratch for these (local) shapes and threads, exactly what `run` uses. Null: none.
  std::size_t (*scratch_bytes)(const graph::OpShape& shape, int threads) = nullptr;
  /// Makes what calls with these (local) shapes need in addition to memory, such as a library's descriptors. Called
  /// once for an instruction, before its first call; one call at a time uses the result. Null, or a null result:
  /// nothing.
  std::shared_ptr<void> (*prepare)(const graph::OpShape& shape) = nullptr;
  /// For people: how it multiplies bfloat16 matrices on this machine. Null: it has no ways to choose from.
  std::string_view (*bf16_products)() noexcept = nullptr;
  /// Whether it fills Scalars::hashes, where the pairs have elements of four bytes.
  bool hashes = false;
  /// In place of the functions. Null: these count.
  const AddedKernel* added = nullptr;
  /// The op's name, set when the kernel is registered.
  std::string_view op = {};
};

/// Kernel::prepare, for every kernel.
[[nodiscard]] std::shared_ptr<void> prepare_kernel(const Kernel& kernel, const graph::OpShape& shape);

/// A kernel with the arguments that stay the same from call to call, as Device::prepare() made it. A device may derive
/// from it to keep more.
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
  std::shared_ptr<void> prepared;  ///< what Kernel::prepare made
  std::string_view makes;          ///< the name of the tensor that it makes, for messages
};

/// What a device is, for people.
struct DeviceFacts {
  std::string kind;  ///< "cpu"
  std::int64_t cores = 0;
  std::optional<std::uint64_t> memory;  ///< bytes available; nothing: unknown
  std::string vectors;                  ///< the instruction set of the fastest kernels
  std::vector<graph::DType> computes;   ///< real types that its kernels take
  std::string bf16_products;            ///< how it multiplies bfloat16 matrices; empty: not known
  std::string unit;                     ///< that this process uses: "0 (NVIDIA H200, …)"; empty: it has none
};

/// One of a device's processors, each with memory of its own, such as a GPU.
struct Unit {
  std::string name;          ///< "NVIDIA H200"
  std::uint64_t memory = 0;  ///< bytes in all
  std::string architecture;  ///< "compute capability 9.0"
};

/// Programs run on a device. It owns the memory of tensors, decides when kernels run, and says in which type it stores
/// each element type. It has one kernel for each op.
///
/// Addresses in views are the device's. Outside this folder only host tensors (host_tensor.h) are dereferenced.
class Device {
 public:
  /// A device by name. One that is in a library (library.h) is loaded and registered first. Throws Error{usage} for an
  /// unknown name, listing the known ones, and for a library that is not there.
  [[nodiscard]] static const Device& find(std::string_view name);
  /// The devices that are registered, in that order.
  [[nodiscard]] static const std::vector<std::unique_ptr<const Device>>& all();

  /// `kernels`: the name under which its kernels are registered.
  /// `reals`: the type in which it stores all real numbers; nothing: each in its own type.
  explicit Device(std::string name, std::string kernels, std::optional<graph::DType> reals = std::nullopt)
      : name_(std::move(name)), kernels_(std::move(kernels)), reals_(reals) {}
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// The type in which it stores the elements of a graph's tensor.
  [[nodiscard]] graph::DType stored(graph::DType dtype) const noexcept {
    return graph::is_real(dtype) ? reals_.value_or(dtype) : dtype;
  }
  /// Throws Error{internal} when the device has no kernel for the op.
  [[nodiscard]] const Kernel& kernel(std::string_view op) const;
  /// Null when the device has no kernel for the op.
  [[nodiscard]] const Kernel* find_kernel(std::string_view op) const;

  [[nodiscard]] virtual DeviceFacts facts() const = 0;
  /// Whether it has units: then units() is not empty, unless it throws.
  [[nodiscard]] virtual bool has_units() const noexcept { return false; }
  /// The processors (GPUs) on this machine; a process uses one. Throws Error{job}, with what is missing, if the device
  /// cannot be used on this machine.
  [[nodiscard]] virtual std::vector<Unit> units() const { return {}; }
  /// The unit, by its index in units(), that this process computes on. Until it is called: the first. REQUIRES: no
  /// memory has been allocated.
  virtual void use_unit(std::size_t unit) const;
  /// Whether the host, and so every transport, may use the addresses of its memory.
  [[nodiscard]] virtual bool is_addressable() const noexcept = 0;
  /// Whether its kernels of updates heed Scalars::guard. The host then reads the loss of a step after the next step's
  /// work was given.
  [[nodiscard]] virtual bool can_hold_updates() const noexcept { return false; }
  /// Makes copies between the device and this host memory fast: it is not moved and not swapped out while the result
  /// lives. Null: they are as fast without. Throws Error{io} when the system refuses.
  [[nodiscard]] virtual std::shared_ptr<const void> pin(std::span<std::byte> memory) const;
  /// Memory for tensors, with undefined contents. Throws Error{io} if there is not enough. It outlives the queues that
  /// use it.
  [[nodiscard]] virtual std::shared_ptr<const Memory> allocate(std::uint64_t bytes) const = 0;
  /// A queue whose kernels share `threads`, which outlive it.
  [[nodiscard]] virtual std::unique_ptr<Queue> open_queue(Threads& threads) const = 0;
  /// Bytes of scratch that prepare() needs for these (local) shapes and threads: by default Kernel::scratch_bytes.
  [[nodiscard]] virtual std::size_t scratch_bytes(const Kernel& kernel, const graph::OpShape& shape, int threads) const;
  /// Prepares a kernel of this device for arguments in its memory. `makes`: the name of the result, for messages.
  /// `attributes`, `kernel` and `makes` outlive the returned kernel.
  [[nodiscard]] virtual std::unique_ptr<const PreparedKernel> prepare(
      const Kernel& kernel, const graph::Attributes& attributes, std::vector<TensorView> inputs,
      std::vector<TensorView> outputs, std::span<std::byte> scratch, std::string_view makes = {}) const;
  /// One kernel for two kernels of this device that would run one directly after the other, without adding to their
  /// results. It writes all that both write, perhaps rounded less often. Null: there is none. It needs the same objects
  /// to outlive it as the two kernels.
  [[nodiscard]] virtual std::unique_ptr<const PreparedKernel> fuse(const PreparedKernel& first,
                                                                   const PreparedKernel& next) const;

 private:
  std::string name_;
  std::string kernels_;
  std::optional<graph::DType> reals_;
};

/// Runs a kernel at once. All arguments are in host memory. If results are stored in float64 and the graph's type is
/// bf16 or f16, they are rounded to it, unless Scalars::round does. Results of type f32 keep all digits.
void run_kernel(const Kernel& kernel, const KernelCall& call);

/// `const RegisterDevice d(std::make_unique<Mine>());` at namespace scope.
class RegisterDevice {
 public:
  explicit RegisterDevice(std::unique_ptr<const Device> device);
};

/// `const RegisterKernel k("cpu", "matmul", kernel, level);` at namespace scope. Of several kernels for one device and
/// op the one with the highest level is used. An instruction-set variant passes the level that it needs, and registers
/// only on machines that have it.
class RegisterKernel {
 public:
  RegisterKernel(std::string_view device, std::string_view op, Kernel kernel, int level = 0);
};

/// Adds the kernel of an op that was added while the program runs (graph::add_op). REQUIRES: no other thread looks for
/// kernels.
void add_kernel(std::string_view device, std::string_view op, std::unique_ptr<const AddedKernel> kernel);

}  // namespace shardrun::device
