#pragma once

/// Passes arrays across the C interface, and handles messages that have been started.

#include <shardrun/engine.h>
#include <shardrun/sdk/engine/array.hpp>
#include <shardrun/sdk/plugin.hpp>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace shardrun::sdk {

namespace detail {

/// Formats an element type: "f32".
[[nodiscard]] inline std::string element_name(std::uint32_t code) {
  constexpr const char* names[] = {"f32", "i32", "f64", "bf16", "f16", "i64", "u8"};
  return code >= SR_ELEMENT_F32 && code <= SR_ELEMENT_U8 ? names[code - SR_ELEMENT_F32] : std::to_string(code);
}

template <class T>
[[nodiscard]] sr_array raw_array(const BasicArray<T>& array) {
  return {sizeof(sr_array),
          element_code<T>,
          array.shape().data(),
          const_cast<T*>(array.data()),
          static_cast<std::uint32_t>(array.shape().size()),
          0};
}

[[nodiscard]] inline Shape shape_of(const sr_array& array) { return Shape(array.shape, array.shape + array.rank); }

/// An array that refers to the elements of `array`.
template <class T>
[[nodiscard]] BasicArray<T> array_over(const sr_array& array) {
  if (array.element != element_code<T>) {
    throw std::logic_error("an array of " + element_name(array.element) + ", expected " +
                           element_name(element_code<T>));
  }
  return BasicArray<T>::over(static_cast<T*>(array.data), shape_of(array));
}

/// Receives a result of the host.
template <class T>
class Maker {
 public:
  Maker() {
    raw_.struct_size = sizeof(raw_);
    raw_.self = this;
    raw_.make = [](void* self, const sr_array* like, void** data, sr_error* error) {
      return guarded(error, [&] {
        if (like->element != element_code<T>) {
          throw std::invalid_argument("it is an array of " + element_name(like->element) + ", expected " +
                                      element_name(element_code<T>));
        }
        BasicArray<T>& made = static_cast<Maker*>(self)->made_;
        made = BasicArray<T>(shape_of(*like));
        *data = made.data();
      });
    };
  }
  Maker(const Maker&) = delete;
  Maker& operator=(const Maker&) = delete;

  [[nodiscard]] const sr_array_maker* raw() const noexcept { return &raw_; }
  [[nodiscard]] BasicArray<T> take() { return std::move(made_); }

 private:
  sr_array_maker raw_{};
  BasicArray<T> made_;
};

}  // namespace detail

/// Messages that have been started, at most two. Movable. If it is destroyed before wait(), they continue.
class Future {
 public:
  Future(const sr_ranks* ranks, std::vector<std::uint64_t> messages) : ranks_(ranks), messages_(std::move(messages)) {}
  Future(Future&&) = default;
  Future& operator=(Future&&) = default;

  /// Whether wait() would return at once. Throws Refused if a message has failed, as wait() does.
  [[nodiscard]] bool ready() {
    while (!messages_.empty()) {
      std::int32_t status = SR_OK;
      detail::call_host([&](sr_error* error) {
        status = ranks_->test(ranks_->self, messages_.back(), error);
        return status == SR_PENDING ? SR_OK : status;
      });
      if (status == SR_PENDING) {
        return false;
      }
      finish_last();
    }
    return true;
  }

  /// Returns once the sent array may change and the received one has arrived.
  void wait() {
    while (!messages_.empty()) {
      finish_last();
    }
  }

 private:
  void finish_last() {
    const std::uint64_t message = messages_.back();
    messages_.pop_back();
    detail::call_host([&](sr_error* error) { return ranks_->wait(ranks_->self, message, error); });
  }

  const sr_ranks* ranks_;
  std::vector<std::uint64_t> messages_;  ///< the last one is waited for first
};

}  // namespace shardrun::sdk
