#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/graph/attributes.h"
#include "core/graph/op.h"
#include "core/graph/tensor_type.h"

namespace shardrun::device {

class Threads;

inline constexpr std::size_t max_rank = 8;

/// A contiguous, row-major tensor, or one shard of one. `origin` is the global index of its first element per dimension
/// (zero for a whole tensor). Kernels that depend on the position use it: look-ups in a sharded vocabulary, random
/// numbers.
struct TensorView {
  void* data = nullptr;
  graph::DType dtype = graph::DType::f32;    ///< of the elements in memory
  graph::DType rounded = graph::DType::f32;  ///< the graph's type of the elements, to which Device::run rounds results
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
};

/// Arguments that change from call to call of a function.
struct Scalars {
  std::uint64_t seed = 0;
  std::int64_t step = 0;          ///< of the optimizer, from 0
  double learning_rate = 0;       ///< of this step
  std::int64_t first_sample = 0;  ///< global index of row 0 of this call's batch: step * batch + rows before
  std::int64_t position = 0;      ///< position in the sequence to predict (prediction)
  bool first_microbatch = true;
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
};

/// One device's implementation of one op.
struct Kernel {
  void (*run)(const KernelCall& call) = nullptr;
  /// Bytes of scratch for these (local) shapes and threads, exactly what `run` uses. Null: none.
  std::size_t (*scratch_bytes)(const graph::OpShape& shape, int threads) = nullptr;
  /// Makes what calls with these (local) shapes need beside memory, such as the descriptors of a library. Called once
  /// for an instruction, before its first call; one call at a time uses the result. Null, or a null result: nothing.
  std::shared_ptr<void> (*prepare)(const graph::OpShape& shape) = nullptr;
};

/// Where programs run: the types that it stores and a kernel per op. Kernels are found by device name and op name.
class Device {
 public:
  /// "cpu" (fast) or "reference" (float64). Throws Error{usage} for another name, listing the known ones.
  [[nodiscard]] static const Device& find(std::string_view name);

  /// `reals`: the type in which it stores all real numbers; nothing: each in its own type.
  explicit Device(std::string name, std::optional<graph::DType> reals = std::nullopt)
      : name_(std::move(name)), reals_(reals) {}

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// The type in which it stores the elements of a graph's tensor.
  [[nodiscard]] graph::DType stored(graph::DType dtype) const noexcept {
    return graph::is_real(dtype) ? reals_.value_or(dtype) : dtype;
  }
  /// Throws Error{internal} when the device has no kernel for the op.
  [[nodiscard]] const Kernel& kernel(std::string_view op) const;

  /// Runs a kernel of this device. If the device stores real numbers in a wider type than the graph's, it rounds
  /// results to the graph's type where that is bf16 or f16. Results of type f32 keep all digits.
  void run(const Kernel& kernel, const KernelCall& call) const;

 private:
  std::string name_;
  std::optional<graph::DType> reals_;
};

/// `const RegisterKernel k("cpu", "matmul", kernel, level);` at namespace scope. Of several kernels for one device and
/// op the one with the highest level is used. An instruction-set variant passes the level that it needs, and registers
/// only on machines that have it.
class RegisterKernel {
 public:
  RegisterKernel(std::string_view device, std::string_view op, Kernel kernel, int level = 0);
};

}  // namespace shardrun::device
