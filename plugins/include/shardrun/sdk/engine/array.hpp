#pragma once

/// Arrays of an engine. Include eigen.hpp for Eigen's view of them.

#include <shardrun/engine.h>
#include <shardrun/sdk/transport/half.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace shardrun::sdk {

using Shape = std::vector<std::int64_t>;

[[nodiscard]] inline std::int64_t elements_of(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    count *= extent;
  }
  return count;
}

/// Formats a shape: "[2, 3]".
[[nodiscard]] inline std::string to_string(const Shape& shape) {
  std::string text;
  for (const std::int64_t extent : shape) {
    text += (text.empty() ? "" : ", ") + std::to_string(extent);
  }
  return "[" + text + "]";
}

/// An interval of indices of one dimension.
struct Part {
  std::int64_t begin = 0;
  std::int64_t size = 0;
};

/// Part `index` of `extent` indices cut into `parts` parts, as collectives cut them: sizes differ by at most one, and
/// the larger parts come first.
[[nodiscard]] inline Part part_of(std::int64_t extent, std::int64_t parts, std::int64_t index) {
  const std::int64_t least = extent / parts;
  const std::int64_t larger = extent % parts;
  return {index * least + std::min(index, larger), least + (index < larger ? 1 : 0)};
}

/// SR_ELEMENT_... for each type that an array's elements may have; 0 for other types. Half and Bfloat store 16-bit
/// numbers: cast<float>(array) widens them.
template <class T>
inline constexpr std::uint32_t element_code = 0;
template <>
inline constexpr std::uint32_t element_code<float> = SR_ELEMENT_F32;
template <>
inline constexpr std::uint32_t element_code<double> = SR_ELEMENT_F64;
template <>
inline constexpr std::uint32_t element_code<Half> = SR_ELEMENT_F16;
template <>
inline constexpr std::uint32_t element_code<Bfloat> = SR_ELEMENT_BF16;
template <>
inline constexpr std::uint32_t element_code<std::int32_t> = SR_ELEMENT_I32;
template <>
inline constexpr std::uint32_t element_code<std::int64_t> = SR_ELEMENT_I64;
template <>
inline constexpr std::uint32_t element_code<std::uint8_t> = SR_ELEMENT_U8;

/// A contiguous, row-major array of a type with an element_code. A copy has its own elements.
///
/// An array can also refer to memory that someone else owns, such as a parameter's. Then assigning to it copies values
/// into that memory, and both shapes must be the same; a moved array refers to the same memory.
template <class T>
class BasicArray {
 public:
  static_assert(element_code<T> != 0, "an array has elements of float, double, Half, Bfloat, int32, int64 or uint8");
  using Element = T;

  /// Makes an array without elements.
  BasicArray() : shape_{0} {}
  /// Makes an array of zeros.
  explicit BasicArray(Shape shape) : shape_(std::move(shape)), own_(static_cast<std::size_t>(elements_of(shape_))) {
    data_ = own_.data();
  }

  /// Makes an array that refers to `data`, which must outlive it.
  [[nodiscard]] static BasicArray over(T* data, Shape shape) {
    BasicArray array;
    array.shape_ = std::move(shape);
    array.data_ = data;
    array.is_view_ = true;
    return array;
  }

  BasicArray(const BasicArray& other) : shape_(other.shape_), own_(other.begin(), other.end()), data_(own_.data()) {}
  BasicArray(BasicArray&& other) noexcept
      : shape_(std::exchange(other.shape_, {0})),
        own_(std::move(other.own_)),
        data_(std::exchange(other.data_, nullptr)),
        is_view_(std::exchange(other.is_view_, false)) {}
  BasicArray& operator=(const BasicArray& other) {
    if (is_view_) {
      copy_values(other);
    } else if (this != &other) {
      *this = BasicArray(other);
    }
    return *this;
  }
  BasicArray& operator=(BasicArray&& other) {
    if (is_view_) {
      copy_values(other);
    } else {
      shape_ = std::exchange(other.shape_, {0});
      own_ = std::move(other.own_);
      data_ = std::exchange(other.data_, nullptr);
      is_view_ = std::exchange(other.is_view_, false);
    }
    return *this;
  }
  ~BasicArray() = default;

  [[nodiscard]] T* data() noexcept { return data_; }
  [[nodiscard]] const T* data() const noexcept { return data_; }
  [[nodiscard]] const Shape& shape() const noexcept { return shape_; }
  [[nodiscard]] std::int64_t extent(std::size_t axis) const { return shape_.at(axis); }
  [[nodiscard]] std::int64_t size() const noexcept { return elements_of(shape_); }
  [[nodiscard]] T* begin() noexcept { return data_; }
  [[nodiscard]] T* end() noexcept { return data_ + size(); }
  [[nodiscard]] const T* begin() const noexcept { return data_; }
  [[nodiscard]] const T* end() const noexcept { return data_ + size(); }
  [[nodiscard]] T& operator[](std::int64_t index) noexcept { return data_[index]; }
  [[nodiscard]] const T& operator[](std::int64_t index) const noexcept { return data_[index]; }

  /// A copy of the indices in `part` of one dimension. Throws std::invalid_argument if there are no such indices.
  [[nodiscard]] BasicArray slice(std::size_t axis, Part part) const {
    if (axis >= shape_.size() || part.begin < 0 || part.size < 0 || part.begin + part.size > shape_[axis]) {
      throw std::invalid_argument("slice: indices " + std::to_string(part.begin) + " to " +
                                  std::to_string(part.begin + part.size) + " of axis " + std::to_string(axis) +
                                  " of an array " + to_string(shape_));
    }
    Shape shape = shape_;
    shape[axis] = part.size;
    BasicArray result(shape);
    const auto from = static_cast<std::ptrdiff_t>(axis);
    const std::int64_t inner = elements_of(Shape(shape_.begin() + from + 1, shape_.end()));
    const std::int64_t outer = elements_of(Shape(shape_.begin(), shape_.begin() + from));
    for (std::int64_t o = 0; o < outer; ++o) {
      std::copy_n(data_ + (o * shape_[axis] + part.begin) * inner, part.size * inner,
                  result.data_ + o * part.size * inner);
    }
    return result;
  }

 private:
  void copy_values(const BasicArray& other) {
    if (other.shape_ != shape_) {
      throw std::invalid_argument("an array " + to_string(other.shape_) + " is assigned to one " + to_string(shape_) +
                                  " that stands for other memory");
    }
    std::copy(other.begin(), other.end(), data_);
  }

  Shape shape_;
  std::vector<T> own_;
  T* data_ = nullptr;
  bool is_view_ = false;
};

using Array = BasicArray<float>;
using IntArray = BasicArray<std::int32_t>;

/// The array with each element converted to `To`, as a C++ cast does; 16-bit floats round to nearest, ties to even.
template <class To, class From>
[[nodiscard]] BasicArray<To> cast(const BasicArray<From>& array) {
  BasicArray<To> result(array.shape());
  const auto widened = [](From value) {
    if constexpr (std::is_class_v<From>) {
      return widen(value);
    } else {
      return value;
    }
  };
  std::transform(array.begin(), array.end(), result.begin(), [&](From value) {
    if constexpr (std::is_same_v<To, Half>) {
      return narrow_to_half(static_cast<float>(widened(value)));
    } else if constexpr (std::is_same_v<To, Bfloat>) {
      return narrow_to_bfloat(static_cast<float>(widened(value)));
    } else {
      return static_cast<To>(widened(value));
    }
  });
  return result;
}

/// Arrays by name.
class Arrays : public std::map<std::string, Array> {
 public:
  using std::map<std::string, Array>::map;

  /// Throws std::out_of_range, whose message lists the names that exist.
  [[nodiscard]] const Array& at(const std::string& name) const {
    const auto found = find(name);
    if (found == end()) {
      std::string names;
      for (const auto& each : *this) {
        names += (names.empty() ? "" : ", ") + each.first;
      }
      throw std::out_of_range("there is no array '" + name + "'; there are: " + (names.empty() ? "none" : names));
    }
    return found->second;
  }
};

}  // namespace shardrun::sdk
