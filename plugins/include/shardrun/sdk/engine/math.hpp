#pragma once

/// NumPy's functions for an engine's arrays: `einsum`, elementwise arithmetic, rearranging. Results are new arrays with
/// their own memory. Errors are std::invalid_argument whose message names the function, what it was given and what it
/// expects. Needs Eigen 3.4.

#include <shardrun/sdk/engine/array.hpp>
#include <shardrun/sdk/engine/einsum.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace shardrun::sdk {

namespace detail {

/// The strides with which the array `from` is repeated to the shape `to`. Dimensions are aligned at the last one.
[[nodiscard]] inline std::vector<std::int64_t> broadcast_strides(const Shape& from, const Shape& to) {
  std::vector<std::int64_t> strides = strides_of(from);
  for (std::size_t d = 0; d < from.size(); ++d) {
    strides[d] = from[d] == 1 ? 0 : strides[d];
  }
  strides.insert(strides.begin(), to.size() - from.size(), 0);
  return strides;
}

[[nodiscard]] inline Shape broadcast_shape(const Shape& a, const Shape& b) {
  Shape shape = a.size() >= b.size() ? a : b;
  const Shape& other = a.size() >= b.size() ? b : a;
  for (std::size_t d = 0; d < other.size(); ++d) {
    std::int64_t& extent = shape[shape.size() - other.size() + d];
    if (extent != other[d] && extent != 1 && other[d] != 1) {
      throw std::invalid_argument(
          "arrays " + to_string(a) + " and " + to_string(b) +
          " are combined element by element: from the last dimension on, extents are equal or 1");
    }
    extent = extent == 1 ? other[d] : extent;
  }
  return shape;
}

/// act(a, b) for all elements. An operand is repeated along dimensions that it lacks or in which its size is 1.
template <class T, class Act>
[[nodiscard]] BasicArray<T> combined(const BasicArray<T>& a, const BasicArray<T>& b, Act act) {
  if (a.shape() == b.shape()) {
    BasicArray<T> result(a.shape());
    std::transform(a.begin(), a.end(), b.begin(), result.begin(), act);
    return result;
  }
  BasicArray<T> result(broadcast_shape(a.shape(), b.shape()));
  for_elements<2>(result.shape(),
                  {broadcast_strides(a.shape(), result.shape()), broadcast_strides(b.shape(), result.shape())},
                  [&](std::int64_t i, const std::int64_t* from) { result[i] = act(a[from[0]], b[from[1]]); });
  return result;
}

template <class T, class Act>
[[nodiscard]] BasicArray<T> mapped(const BasicArray<T>& a, Act act) {
  BasicArray<T> result(a.shape());
  std::transform(a.begin(), a.end(), result.begin(), act);
  return result;
}

[[nodiscard]] inline std::size_t axis_in(const char* function, const Shape& shape, std::int64_t axis) {
  const auto rank = static_cast<std::int64_t>(shape.size());
  if (axis < -rank || axis >= rank) {
    throw std::invalid_argument(std::string(function) + ": there is no axis " + std::to_string(axis) + " in an array " +
                                to_string(shape));
  }
  return static_cast<std::size_t>(axis < 0 ? axis + rank : axis);
}

}  // namespace detail

// Elementwise operators, with NumPy's broadcasting. A comparison gives 1 if it holds, else 0.

#define SHARDRUN_ARRAY_OPERATOR(op)                                                            \
  template <class T>                                                                           \
  [[nodiscard]] BasicArray<T> operator op(const BasicArray<T>& a, const BasicArray<T>& b) {    \
    return detail::combined(a, b, [](T x, T y) { return static_cast<T>(x op y); });            \
  }                                                                                            \
  template <class T>                                                                           \
  [[nodiscard]] BasicArray<T> operator op(const BasicArray<T>& a, std::type_identity_t<T> y) { \
    return detail::mapped(a, [y](T x) { return static_cast<T>(x op y); });                     \
  }                                                                                            \
  template <class T>                                                                           \
  [[nodiscard]] BasicArray<T> operator op(std::type_identity_t<T> x, const BasicArray<T>& b) { \
    return detail::mapped(b, [x](T y) { return static_cast<T>(x op y); });                     \
  }
SHARDRUN_ARRAY_OPERATOR(+)
SHARDRUN_ARRAY_OPERATOR(-)
SHARDRUN_ARRAY_OPERATOR(*)
SHARDRUN_ARRAY_OPERATOR(/)
SHARDRUN_ARRAY_OPERATOR(>)
SHARDRUN_ARRAY_OPERATOR(<)
SHARDRUN_ARRAY_OPERATOR(>=)
SHARDRUN_ARRAY_OPERATOR(<=)
#undef SHARDRUN_ARRAY_OPERATOR

template <class T>
[[nodiscard]] BasicArray<T> operator-(const BasicArray<T>& a) {
  return detail::mapped(a, [](T x) { return static_cast<T>(-x); });
}
template <class T>
[[nodiscard]] BasicArray<T> maximum(const BasicArray<T>& a, std::type_identity_t<T> least) {
  return detail::mapped(a, [least](T x) { return std::max(x, least); });
}
template <class T>
[[nodiscard]] BasicArray<T> relu(const BasicArray<T>& a) {
  return maximum(a, 0);
}
template <class T>
[[nodiscard]] BasicArray<T> exp(const BasicArray<T>& a) {
  return detail::mapped(a, [](T x) { return std::exp(x); });
}
template <class T>
[[nodiscard]] BasicArray<T> tanh(const BasicArray<T>& a) {
  return detail::mapped(a, [](T x) { return std::tanh(x); });
}

/// The sum of all elements, or of those along a dimension, which the result lacks. -1 is the last dimension.
template <class T>
[[nodiscard]] T sum(const BasicArray<T>& a) {
  const Shape all{a.size()};
  return einsum("a->", BasicArray<T>::over(const_cast<T*>(a.data()), all))[0];
}
template <class T>
[[nodiscard]] BasicArray<T> sum(const BasicArray<T>& a, std::int64_t axis) {
  std::string letters;
  for (std::size_t d = 0; d < a.shape().size(); ++d) {
    letters += static_cast<char>('a' + d);
  }
  std::string kept = letters;
  kept.erase(detail::axis_in("sum", a.shape(), axis), 1);
  return einsum(letters + "->" + kept, a);
}

/// Dimension d of the result is dimension order[d] of the array. Without an order, dimensions are reversed.
template <class T>
[[nodiscard]] BasicArray<T> transpose(const BasicArray<T>& a, std::vector<std::int64_t> order = {}) {
  const auto rank = static_cast<std::int64_t>(a.shape().size());
  for (std::int64_t d = rank; order.size() < a.shape().size() && d-- > 0;) {
    order.push_back(d);
  }
  std::string letters;
  std::string wanted;
  for (std::int64_t d = 0; d < rank; ++d) {
    letters += static_cast<char>('a' + d);
  }
  for (const std::int64_t d : order) {
    wanted += letters[detail::axis_in("transpose", a.shape(), d)];
  }
  if (!std::is_permutation(wanted.begin(), wanted.end(), letters.begin(), letters.end())) {
    throw std::invalid_argument("transpose: the order " + to_string(order) + " does not name each dimension of " +
                                to_string(a.shape()) + " once");
  }
  return einsum(letters + "->" + wanted, a);
}

template <class T>
[[nodiscard]] BasicArray<T> reshape(const BasicArray<T>& a, const Shape& shape) {
  BasicArray<T> result(shape);
  if (result.size() != a.size()) {
    throw std::invalid_argument("reshape: an array " + to_string(a.shape()) + " has not as many elements as " +
                                to_string(shape));
  }
  std::copy(a.begin(), a.end(), result.begin());
  return result;
}

/// Indices begin to end - 1 of a dimension.
template <class T>
[[nodiscard]] BasicArray<T> slice(const BasicArray<T>& a, std::int64_t axis, std::int64_t begin, std::int64_t end) {
  return a.slice(detail::axis_in("slice", a.shape(), axis), {begin, end - begin});
}

/// Joins the arrays along a dimension. The arrays' sizes can differ in this dimension only.
template <class T>
[[nodiscard]] BasicArray<T> concatenate(const std::vector<BasicArray<T>>& arrays, std::int64_t axis = 0) {
  if (arrays.empty()) {
    throw std::invalid_argument("concatenate: there is no array");
  }
  Shape shape = arrays.front().shape();
  const std::size_t along = detail::axis_in("concatenate", shape, axis);
  shape[along] = 0;
  for (const BasicArray<T>& each : arrays) {
    Shape other = each.shape();
    const std::int64_t extent = other.size() == shape.size() ? std::exchange(other[along], shape[along]) : 0;
    if (other != shape) {
      throw std::invalid_argument("concatenate: an array " + to_string(each.shape()) + " follows " +
                                  to_string(arrays.front().shape()) + " along axis " + std::to_string(axis));
    }
    shape[along] += extent;
  }
  BasicArray<T> result(shape);
  const auto from = static_cast<std::ptrdiff_t>(along);
  const std::int64_t inner = elements_of(Shape(shape.begin() + from + 1, shape.end()));
  const std::int64_t outer = elements_of(Shape(shape.begin(), shape.begin() + from));
  std::int64_t begin = 0;
  for (const BasicArray<T>& each : arrays) {
    const std::int64_t run = each.extent(along) * inner;
    for (std::int64_t o = 0; o < outer; ++o) {
      std::copy_n(each.data() + o * run, run, result.data() + o * shape[along] * inner + begin);
    }
    begin += run;
  }
  return result;
}

}  // namespace shardrun::sdk
