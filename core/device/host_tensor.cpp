#include "core/device/host_tensor.h"

#include <fmt/format.h>

#include <type_traits>

#include "core/base/error.h"

namespace shardrun::device {
namespace {

template <typename T>
constexpr graph::DType dtype_of() noexcept {
  return std::is_same_v<T, float>    ? graph::DType::f32
         : std::is_same_v<T, double> ? graph::DType::f64
                                     : graph::DType::i32;
}

}  // namespace

HostTensor::HostTensor(Queue& queue, const TensorView& tensor, Access access)
    : queue_(queue), tensor_(tensor), view_(tensor) {
  if (!queue.device().is_addressable()) {
    copy_.resize(tensor.bytes());
    view_.data = copy_.data();
    if (access == Access::read) {
      queue.read(tensor.data, copy_);
    }
  }
  queue.finish();
}

void HostTensor::store() {
  if (view_.data != tensor_.data) {
    queue_.write(copy_, tensor_.data);
    queue_.finish();
  }
}

template <typename T>
std::span<T> elements_of(const TensorView& view) {
  if (view.dtype != dtype_of<T>()) {
    throw Error(ErrorCode::internal,
                fmt::format("a tensor of {} was taken for one of {}", to_string(view.dtype), to_string(dtype_of<T>())));
  }
  return {static_cast<T*>(view.data), static_cast<std::size_t>(view.elements())};
}

template std::span<float> elements_of(const TensorView& view);
template std::span<double> elements_of(const TensorView& view);
template std::span<std::int32_t> elements_of(const TensorView& view);

}  // namespace shardrun::device
