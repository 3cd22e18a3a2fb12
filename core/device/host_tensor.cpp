#include "core/device/host_tensor.h"

#include <fmt/format.h>

#include <type_traits>

#include "core/base/error.h"
#include "core/memory/layout.h"

namespace shardrun::device {
namespace {

template <typename T>
constexpr graph::DType dtype_of() noexcept {
  return std::is_same_v<T, float>    ? graph::DType::f32
         : std::is_same_v<T, double> ? graph::DType::f64
                                     : graph::DType::i32;
}

}  // namespace

HostAccess HostAccess::without(const TensorView& tensor) const noexcept {
  const std::uint64_t used = memory::align_up(tensor.bytes());
  HostAccess rest = *this;
  rest.room = used < room.size() ? room.subspan(used) : std::span<std::byte>();
  return rest;
}

HostTensor::HostTensor(const HostAccess& host, const TensorView& tensor, Access access)
    : queue_(host.queue), tensor_(tensor), view_(tensor) {
  if (!queue_.device().is_addressable()) {
    const bool fits = tensor.bytes() <= host.room.size();
    own_.resize(fits ? 0 : tensor.bytes());
    view_.data = fits ? host.room.data() : own_.data();
    writes_ = fits ? host.writes : nullptr;
    if (access == Access::read) {
      queue_.read(tensor.data, bytes());
    }
  }
  if (access == Access::read || writes_ == nullptr) {
    queue_.finish();
  } else if (writes_->queue != nullptr) {
    queue_.finish(*writes_);
  }
}

void HostTensor::store() {
  if (view_.data == tensor_.data) {
    return;
  }
  queue_.write(bytes(), tensor_.data);
  if (writes_ != nullptr) {
    *writes_ = queue_.record();
  } else {
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
