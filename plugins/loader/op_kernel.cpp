#include "plugins/loader/model_op.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/device/threads.h"
#include "plugins/loader/call.h"
#include "plugins/loader/find.h"
#include "plugins/loader/guard.h"
#include "plugins/loader/raw_attributes.h"

namespace shardrun::plugins {
namespace {

using Dims = std::array<std::int64_t, device::max_rank>;

std::uint32_t element_of_op(graph::DType dtype) {
  switch (dtype) {
    case graph::DType::f32: return SR_ELEMENT_F32;
    case graph::DType::f64: return SR_ELEMENT_F64;
    case graph::DType::i32: return SR_ELEMENT_I32;
    default: throw Error(ErrorCode::internal, fmt::format("a plugin's op has no kernel for {}", to_string(dtype)));
  }
}

/// The C form of a call. It points into the tensors of the latest fill() and into the op's attributes.
class RawCall {
 public:
  RawCall(const ModelOp& op, const graph::Attributes& attributes, std::size_t operands, std::size_t results)
      : attributes_(raw_attributes(op.attributes, attributes)),
        operands_(operands),
        results_(results),
        strides_(operands + results) {
    call_.struct_size = sizeof(call_);
    call_.operand_count = static_cast<std::uint32_t>(operands);
    call_.operands = operands_.data();
    call_.results = results_.data();
    call_.attributes = attributes_.data();
    call_.operand_stride = sizeof(sr_tensor_view);
    call_.result_count = static_cast<std::uint32_t>(results);
    call_.result_stride = sizeof(sr_tensor_view);
    call_.attribute_count = static_cast<std::uint32_t>(attributes_.size());
    call_.attribute_stride = sizeof(sr_attribute);
  }
  RawCall(const RawCall&) = delete;
  RawCall& operator=(const RawCall&) = delete;

  void fill(std::span<const device::TensorView> operands, std::span<const device::TensorView> results) {
    for (std::size_t i = 0; i < operands_.size(); ++i) {
      fill(operands[i], operands_[i], strides_[i]);
    }
    for (std::size_t o = 0; o < results_.size(); ++o) {
      fill(results[o], results_[o], strides_[operands_.size() + o]);
    }
  }

  [[nodiscard]] sr_kernel_call& call() noexcept { return call_; }

 private:
  static void fill(const device::TensorView& tensor, sr_tensor_view& view, Dims& strides) {
    std::int64_t stride = 1;
    for (std::uint32_t d = tensor.rank; d-- > 0;) {
      strides[d] = stride;
      stride *= tensor.shape[d];
    }
    view = {.struct_size = sizeof(sr_tensor_view),
            .element = element_of_op(tensor.dtype),
            .data = tensor.data,
            .shape = tensor.shape.data(),
            .strides = strides.data(),
            .origin = tensor.origin.data(),
            .whole = tensor.global.data(),
            .rank = tensor.rank,
            .reserved = 0};
  }

  std::vector<sr_attribute> attributes_;
  std::vector<sr_tensor_view> operands_;
  std::vector<sr_tensor_view> results_;
  std::vector<Dims> strides_;
  sr_kernel_call call_{};
};

/// Views, without data, of tensors of these types. `reals`: the element type in place of every real type.
std::vector<device::TensorView> views_of(const std::vector<graph::TensorType>& types, graph::DType reals) {
  std::vector<device::TensorView> views;
  for (const graph::TensorType& type : types) {
    device::TensorView& view = views.emplace_back();
    view.dtype = graph::is_real(type.dtype) ? reals : type.dtype;
    view.rank = static_cast<std::uint32_t>(type.shape.size());
    std::ranges::copy(type.shape, view.shape.begin());
    view.global = view.shape;
  }
  return views;
}

void split(void* self, std::int64_t count, std::int64_t grain,
           void (*body)(void* argument, std::int64_t begin, std::int64_t end), void* argument) {
  static_cast<device::Threads*>(self)->split(count, std::max<std::int64_t>(grain, 1),
                                             [&](std::int64_t begin, std::int64_t end) { body(argument, begin, end); });
}

}  // namespace

OpKernel::OpKernel(std::shared_ptr<const ModelOp> op, Reals reals) : op_(std::move(op)), reals_(reals) {}

void OpKernel::run(const device::KernelCall& call) const {
  auto& raw = *static_cast<RawCall*>(call.prepared);
  raw.fill(call.inputs, call.outputs);
  raw.call().scratch = call.scratch.data();
  raw.call().scratch_bytes = call.scratch.size();
  raw.call().self = &call.threads;
  raw.call().split = split;
  const auto kernel = reals_ == Reals::f32 ? op_->raw.kernel : op_->raw.kernel_f64;
  call_plugin(op_->label, ErrorCode::plugin,
              [&](sr_error* error) { return kernel(op_->plugin.table().self, &raw.call(), error); });
}

std::size_t OpKernel::scratch_bytes(const graph::OpShape& shape) const {
  if (op_->raw.scratch_bytes == nullptr) {
    return 0;
  }
  const graph::DType reals = reals_ == Reals::f32 ? graph::DType::f32 : graph::DType::f64;
  const std::vector<device::TensorView> operands = views_of(shape.inputs, reals);
  const std::vector<device::TensorView> results = views_of(shape.outputs, reals);
  RawCall raw(*op_, shape.attributes, operands.size(), results.size());
  raw.fill(operands, results);
  std::uint64_t bytes = 0;
  const CallGuard guard(label_of(op_->plugin), fmt::format("scratch_bytes of {}", op_->name), call_limit());
  call_plugin(op_->label, ErrorCode::plugin, [&](sr_error*) {
    bytes = op_->raw.scratch_bytes(op_->plugin.table().self, &raw.call());
    return SR_OK;
  });
  constexpr std::uint64_t most = std::uint64_t{1} << 40;
  if (bytes > most) {
    throw Error(ErrorCode::plugin,
                fmt::format("{} wants {} bytes of scratch, expected at most {}", op_->label, bytes, most));
  }
  return bytes;
}

std::shared_ptr<void> OpKernel::prepare(const graph::OpShape& shape) const {
  return std::make_shared<RawCall>(*op_, shape.attributes, shape.inputs.size(), shape.outputs.size());
}

}  // namespace shardrun::plugins
