#include "core/device/cuda/runtime/products.h"

#include <fmt/format.h>

#include <optional>
#include <utility>
#include <variant>

#include "core/base/error.h"
#include "core/device/cuda/copies.h"
#include "core/device/cuda/runtime/product_fusion.h"
#include "core/device/cuda/runtime/product_steps.h"
#include "core/device/queue.h"

namespace shardrun::device::cuda {
namespace {

/// A step, bound to its memory.
struct BoundProduct {
  ProductStep step;
  std::shared_ptr<const LibraryProduct> product;
  ProductMemory memory;
};
struct BoundCopy {
  CopyStep step;
  const void* from = nullptr;
  void* to = nullptr;
};

/// An op of products that is prepared.
struct BoundSteps {
  const Kernel* own = nullptr;  ///< computes the op if there are no steps
  std::vector<std::variant<BoundCopy, BoundProduct>> steps;
  bool touched = false;  ///< the scratch, by the first call
};

void run_steps(const KernelCall& call) {
  auto& bound = *static_cast<BoundSteps*>(call.prepared);
  if (!bound.touched) {
    // The memory that is measured as used is to be what is planned, and a product need not use all of its scratch.
    fill_elements(call, call.scratch.data(), static_cast<std::int64_t>(call.scratch.size() / 8), 8, 0);
    bound.touched = true;
  }
  if (bound.steps.empty()) {
    run_kernel(*bound.own, call);
    return;
  }
  for (const auto& each : bound.steps) {
    if (const auto* const copy = std::get_if<BoundCopy>(&each)) {
      if (!copy->step.only_adding || call.accumulate) {
        copy_box(call, {.from = copy->from,
                        .to = copy->to,
                        .element_bytes = copy->step.element_bytes,
                        .shape = copy->step.shape,
                        .from_strides = copy->step.from_strides,
                        .to_strides = copy->step.to_strides});
      }
    } else {
      const auto& product = std::get<BoundProduct>(each);
      product.product->run(product.memory, call.accumulate, static_cast<cudaStream_t>(call.stream));
    }
  }
}

/// Its kernel is the op's own, but for how it runs.
struct PreparedProduct final : PreparedKernel {
  Kernel through;
  BoundSteps bound;
  std::string ops;  ///< the names of those that are fused

  /// Takes what it reads and writes from the arguments of an op.
  void take(const graph::Attributes& of, std::vector<TensorView> reads, std::vector<TensorView> writes,
            std::span<std::byte> memory, std::string_view tensor) {
    kernel = &through;
    attributes = &of;
    inputs = std::move(reads);
    outputs = std::move(writes);
    scratch = memory;
    makes = tensor;
    prepared = std::shared_ptr<void>(std::shared_ptr<void>(), &bound);  // it is part of what it is given to
  }
};

/// Where the op's tensors and scratch are.
class Memories {
 public:
  Memories(const std::vector<TensorView>& inputs, const std::vector<TensorView>& outputs, std::span<std::byte> scratch)
      : begins_{static_cast<std::byte*>(inputs[0].data), static_cast<std::byte*>(inputs[1].data),
                static_cast<std::byte*>(outputs[0].data), scratch.data()} {
    constexpr auto alignment = static_cast<std::uintptr_t>(ProductSteps::alignment);
    begins_[Place::scratch] += -reinterpret_cast<std::uintptr_t>(scratch.data()) % alignment;
  }
  [[nodiscard]] std::byte* at(const Place& place) const { return begins_[place.tensor] + place.byte; }

 private:
  std::array<std::byte*, 4> begins_;
};

/// Adds the steps; none if the library lacks a product.
void bind(LibraryProducts& library, const ProductSteps& of, const Memories& memories, BoundSteps& bound) {
  const std::span<std::byte> workspace = {memories.at(of.workspace), of.workspace_bytes};
  for (const auto& each : of.steps) {
    if (const auto* const copy = std::get_if<CopyStep>(&each)) {
      bound.steps.emplace_back(BoundCopy{*copy, memories.at(copy->from), memories.at(copy->to)});
      continue;
    }
    const auto& step = std::get<ProductStep>(each);
    const ProductMemory memory = {.a = memories.at(step.places[0]),
                                  .b = memories.at(step.places[1]),
                                  .c = memories.at(step.places[2]),
                                  .workspace = workspace};
    std::shared_ptr<const LibraryProduct> product = library.find(step, memory);
    if (product == nullptr) {
      bound.steps.clear();
      return;
    }
    bound.steps.emplace_back(BoundProduct{step, std::move(product), memory});
  }
}

/// One for each op, because a kernel's function is not told which op it is asked for.
template <const char* op>
std::size_t scratch_of_product(const graph::OpShape& shape, int) {
  const std::optional<ProductSteps> steps = product_steps(op, shape);
  return steps ? steps->scratch_bytes : 0;
}
constexpr char matmul_name[] = "matmul";
constexpr char gradient_name[] = "matmul_gradient_weights";
constexpr char einsum_name[] = "einsum";

}  // namespace

std::vector<LibraryKernel> with_scratch_of_products(std::vector<LibraryKernel> own) {
  for (LibraryKernel& each : own) {
    if (is_product(each.op)) {
      each.kernel.scratch_bytes = each.op == matmul_name     ? scratch_of_product<matmul_name>
                                  : each.op == gradient_name ? scratch_of_product<gradient_name>
                                                             : scratch_of_product<einsum_name>;
    }
  }
  return own;
}

std::unique_ptr<const PreparedKernel> prepare_product(LibraryProducts* library, const Kernel& kernel,
                                                      const graph::Attributes& attributes,
                                                      std::vector<TensorView> inputs, std::vector<TensorView> outputs,
                                                      std::span<std::byte> scratch, std::string_view makes) {
  auto made = std::make_unique<PreparedProduct>();
  made->through = {.run = run_steps, .op = kernel.op};
  made->bound.own = &kernel;
  if (library != nullptr) {
    const std::vector<graph::TensorType> of_inputs = types_of(inputs);
    const std::vector<graph::TensorType> of_outputs = types_of(outputs);
    const std::optional<ProductSteps> steps =
        product_steps(kernel.op, {attributes, of_inputs, of_outputs}, library->padding());
    if (steps && steps->scratch_bytes > scratch.size()) {
      throw Error(ErrorCode::internal, fmt::format("op {}: {} bytes of scratch were planned, and {} are needed",
                                                   kernel.op, scratch.size(), steps->scratch_bytes));
    }
    if (steps) {
      try {
        bind(*library, *steps, Memories(inputs, outputs, scratch), made->bound);
      } catch (const Error& error) {
        throw Error(error.code(), fmt::format("op {}{}: {}", kernel.op,
                                              makes.empty() ? "" : fmt::format(" ({})", makes), error.message()));
      }
    }
  }
  made->take(attributes, std::move(inputs), std::move(outputs), scratch, makes);
  return made;
}

std::unique_ptr<const PreparedKernel> fuse_product(LibraryProducts& library, const PreparedKernel& first,
                                                   const PreparedKernel& next) {
  const auto* const product = dynamic_cast<const PreparedProduct*>(&first);
  if (product == nullptr || product->bound.steps.size() != 1) {
    return nullptr;
  }
  BoundProduct bound = std::get<BoundProduct>(product->bound.steps.front());
  std::optional<Fusion> fusion = fusion_of(bound.step, bound.memory.epilogue, first, next);
  if (!fusion) {
    return nullptr;
  }
  bound.memory.c = fusion->outputs.front().data;
  bound.memory.epilogue = fusion->epilogue;
  bound.product = library.find(bound.step, bound.memory);
  if (bound.product == nullptr) {
    return nullptr;
  }
  auto made = std::make_unique<PreparedProduct>();
  made->ops = fmt::format("{} + {}", first.kernel->op, next.kernel->op);
  made->through = {.run = run_steps, .op = made->ops};
  made->bound.own = product->bound.own;
  made->bound.steps.emplace_back(std::move(bound));
  made->take(*first.attributes, std::move(fusion->inputs), std::move(fusion->outputs), first.scratch, next.makes);
  return made;
}

}  // namespace shardrun::device::cuda
