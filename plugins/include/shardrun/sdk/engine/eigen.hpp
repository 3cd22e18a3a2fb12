#pragma once

/// Eigen's view of an engine's arrays, without a copy. Needs Eigen 3.4.

#include <shardrun/sdk/engine/array.hpp>

#include <Eigen/Core>
#include <stdexcept>

namespace shardrun::sdk {

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// An array of two dimensions as a matrix.
template <class T>
[[nodiscard]] Eigen::Map<Matrix<T>> matrix(BasicArray<T>& array) {
  if (array.shape().size() != 2) {
    throw std::invalid_argument("an array " + to_string(array.shape()) + " is no matrix");
  }
  return {array.data(), array.extent(0), array.extent(1)};
}

template <class T>
[[nodiscard]] Eigen::Map<const Matrix<T>> matrix(const BasicArray<T>& array) {
  if (array.shape().size() != 2) {
    throw std::invalid_argument("an array " + to_string(array.shape()) + " is no matrix");
  }
  return {array.data(), array.extent(0), array.extent(1)};
}

/// Some rows of an array of two dimensions.
template <class AnyArray>
[[nodiscard]] auto rows_of(AnyArray& array, Part rows) {
  return matrix(array).middleRows(rows.begin, rows.size);
}

/// An array with the values of an expression of matrices.
template <class Expression>
[[nodiscard]] BasicArray<typename Expression::Scalar> array_of(const Eigen::MatrixBase<Expression>& expression) {
  BasicArray<typename Expression::Scalar> array(Shape{expression.rows(), expression.cols()});
  matrix(array) = expression;
  return array;
}

}  // namespace shardrun::sdk
