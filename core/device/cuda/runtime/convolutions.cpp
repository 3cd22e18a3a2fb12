#include "core/device/cuda/runtime/library_ops.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/device/cuda/copies.h"
#include "core/device/cuda/runtime/cudnn_library.h"

namespace shardrun::device::cuda {
namespace {

/// The convolution of a part of the images, bound to its memory.
struct BoundConvolution {
  std::vector<std::pair<TensorView, TensorView>> casts;  ///< casts to make first, each from one tensor to another
  ConvolutionRun setting;                                ///< overwrites the result; empty: every call adds
  ConvolutionRun adding;                                 ///< adds to the result; empty: no call adds
};

struct BoundParts {
  std::vector<BoundConvolution> parts;
  /// The float32 sum of the parts, and the result to which it is rounded.
  std::optional<std::pair<TensorView, TensorView>> sum;

  void operator()(const KernelCall& call) const;
};

void BoundParts::operator()(const KernelCall& call) const {
  if (sum && call.accumulate) {
    cast_elements(call, sum->second, sum->first);
  }
  for (const BoundConvolution& part : parts) {
    for (const auto& [from, to] : part.casts) {
      cast_elements(call, from, to);
    }
    const bool adds = !part.setting || call.accumulate;
    (adds ? part.adding : part.setting)(static_cast<cudaStream_t>(call.stream));
  }
  if (sum) {
    cast_elements(call, sum->first, sum->second);
  }
}

/// Whether the tensors have whole images. The library's windows reach over whole images.
bool has_whole_images(const std::vector<TensorView>& tensors) {
  return std::ranges::all_of(tensors, [](const TensorView& tensor) {
    for (std::uint32_t d = 2; d < tensor.rank; ++d) {
      if (tensor.origin[d] != 0 || tensor.shape[d] != tensor.global[d]) {
        return false;
      }
    }
    return true;
  });
}

/// Images [first, first + count) of a tensor.
TensorView images_of(const TensorView& tensor, std::int64_t first, std::int64_t count) {
  TensorView part = tensor;
  part.shape[0] = 1;
  part.data = tensor.address_of(first * part.elements());
  part.shape[0] = count;
  return part;
}

/// The tensors x, w and y of an op; `makes` says which of them is the result.
struct Tensors {
  explicit Tensors(const OpToPrepare& op, Convolution::Makes makes)
      : x(makes == Convolution::Makes::y   ? op.inputs[0]
          : makes == Convolution::Makes::x ? op.outputs[0]
                                           : op.inputs[1]),
        w(makes == Convolution::Makes::w ? op.outputs[0] : op.inputs[1]),
        y(makes == Convolution::Makes::y ? op.outputs[0] : op.inputs[0]) {}

  const TensorView& x;
  const TensorView& w;
  const TensorView& y;
};

/// A view like `tensor` with other memory, and perhaps another type.
TensorView cast_of(const TensorView& tensor, graph::DType dtype, void* data) {
  TensorView cast = tensor;
  cast.data = data;
  cast.dtype = cast.rounded = dtype;
  return cast;
}

/// Binds the parts, which run one after the other, to their memory. Returns no parts if the library lacks one of them.
BoundParts bind(const FindConvolution& find, const ConvolutionSteps& steps, const OpToPrepare& op) {
  const Tensors tensors(op, steps.whole.makes);
  std::byte* const scratch = op.scratch_at(ProductSteps::alignment, steps.scratch_bytes);
  const bool is_sum = steps.whole.makes == Convolution::Makes::w;
  BoundParts bound;
  if (steps.sums) {
    bound.sum.emplace(cast_of(tensors.w, steps.whole.dtype, scratch + steps.sum), tensors.w);
  }
  for (std::int64_t first = 0; first < steps.whole.x[0]; first += steps.images) {
    const std::int64_t count = std::min(steps.images, steps.whole.x[0] - first);
    const Convolution convolution = steps.part(count);
    BoundConvolution part;
    const auto memory_of = [&](const TensorView& tensor, std::int64_t cast_at) {
      const TensorView images = images_of(tensor, first, count);
      if (!steps.casts) {
        return images.data;
      }
      part.casts.emplace_back(images, cast_of(images, steps.whole.dtype, scratch + cast_at));
      return part.casts.back().second.data;
    };
    const ConvolutionMemory memory = {.x = memory_of(tensors.x, steps.cast_x),
                                      .w = bound.sum ? bound.sum->first.data : tensors.w.data,
                                      .y = memory_of(tensors.y, steps.cast_y),
                                      .workspace = {scratch, steps.workspace_bytes}};
    const bool sets = !is_sum || first == 0;
    part.setting = sets ? find(convolution, false, memory) : nullptr;
    part.adding = is_sum ? find(convolution, true, memory) : nullptr;
    if ((sets && !part.setting) || (is_sum && !part.adding)) {
      return {};
    }
    bound.parts.push_back(std::move(part));
  }
  return bound;
}

LibraryWork work_of(const FindConvolution& find, const OpToPrepare& op, std::int64_t most_bytes) {
  const std::vector<graph::TensorType> inputs = op.input_types();
  const std::vector<graph::TensorType> outputs = op.output_types();
  const std::optional<ConvolutionSteps> steps =
      convolution_steps(op.kernel.op, {op.attributes, inputs, outputs}, most_bytes);
  if (!steps || !has_whole_images(op.inputs) || !has_whole_images(op.outputs)) {
    return nullptr;
  }
  BoundParts bound = bind(find, *steps, op);
  if (bound.parts.empty()) {
    return nullptr;
  }
  return bound;
}

}  // namespace

std::unique_ptr<const PreparedKernel> prepare_convolution(const FindConvolution* library, OpToPrepare op,
                                                          std::int64_t most_bytes) {
  return prepare_for_library(op, [&] { return library == nullptr ? nullptr : work_of(*library, op, most_bytes); });
}

}  // namespace shardrun::device::cuda
