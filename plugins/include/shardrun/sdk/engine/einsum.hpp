#pragma once

/// numpy.einsum of an engine's arrays. Needs Eigen 3.4.

#include <shardrun/sdk/engine/array.hpp>

#include <Eigen/Core>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace shardrun::sdk {

namespace detail {

/// Calls `act(place in the result, place in each operand)` for all elements of a row-major result of that shape, in
/// order. `strides`: the strides of each operand along the result's dimensions, in elements.
template <std::size_t operands, class Act>
void for_elements(const Shape& shape, const std::vector<std::int64_t> (&strides)[operands], Act act) {
  Shape index(shape.size(), 0);
  std::int64_t places[operands] = {};
  const std::int64_t count = elements_of(shape);
  for (std::int64_t i = 0; i < count; ++i) {
    act(i, places);
    for (std::size_t d = shape.size(); d-- > 0;) {
      ++index[d];
      for (std::size_t o = 0; o < operands; ++o) {
        places[o] += strides[o][d];
      }
      if (index[d] < shape[d]) {
        break;
      }
      for (std::size_t o = 0; o < operands; ++o) {
        places[o] -= strides[o][d] * index[d];
      }
      index[d] = 0;
    }
  }
}

/// The strides of a row-major array, in elements.
[[nodiscard]] inline std::vector<std::int64_t> strides_of(const Shape& shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * shape[d];
  }
  return strides;
}

/// An operand of einsum, with a letter for each dimension.
template <class T>
struct Lettered {
  const BasicArray<T>& array;
  std::string letters;

  /// The letter's extent; -1 if the operand lacks it.
  [[nodiscard]] std::int64_t extent(char letter) const {
    const std::size_t found = letters.find(letter);
    return found == std::string::npos ? -1 : array.shape()[found];
  }

  /// The elements with one dimension for each letter of `wanted`, in that order. Other letters are summed over. A
  /// letter that names several dimensions selects their diagonal.
  [[nodiscard]] BasicArray<T> arranged(const std::string& wanted) const {
    const std::vector<std::int64_t> own = strides_of(array.shape());
    std::vector<std::int64_t> strides;
    std::vector<std::int64_t> summed_strides;
    Shape shape;
    Shape summed;
    for (const bool is_wanted : {true, false}) {
      for (std::size_t d = 0; d < (is_wanted ? wanted.size() : letters.size()); ++d) {
        const char letter = is_wanted ? wanted[d] : letters[d];
        if (!is_wanted && (wanted.find(letter) != std::string::npos || letters.find(letter) < d)) {
          continue;
        }
        std::int64_t stride = 0;
        for (std::size_t at = 0; at < letters.size(); ++at) {
          stride += letters[at] == letter ? own[at] : 0;
        }
        (is_wanted ? strides : summed_strides).push_back(stride);
        (is_wanted ? shape : summed).push_back(extent(letter));
      }
    }
    std::vector<std::int64_t> terms;  // offsets of the elements that are added up, from the first
    for_elements<1>(summed, {summed_strides},
                    [&](std::int64_t, const std::int64_t* from) { terms.push_back(from[0]); });
    BasicArray<T> result(shape);
    for_elements<1>(shape, {strides}, [&](std::int64_t i, const std::int64_t* from) {
      std::conditional_t<std::is_floating_point_v<T>, double, T> sum = 0;
      for (const std::int64_t term : terms) {
        sum = static_cast<decltype(sum)>(sum + array[from[0] + term]);
      }
      result[i] = static_cast<T>(sum);
    });
    return result;
  }
};

[[noreturn]] inline void refuse_einsum(std::string_view spec, const std::string& why) {
  throw std::invalid_argument("einsum(\"" + std::string(spec) + "\"): " + why);
}

/// The letters of each operand, and those of the result as the last.
[[nodiscard]] inline std::vector<std::string> einsum_letters(std::string_view spec, std::size_t operands) {
  std::vector<std::string> parts(1);
  const std::size_t arrow = spec.find("->");
  if (arrow == std::string_view::npos) {
    refuse_einsum(spec, "it has no '->' with the letters of the result behind it");
  }
  for (std::size_t i = 0; i < spec.size(); ++i) {
    const char letter = spec[i];
    if (i == arrow || (letter == ',' && i < arrow)) {
      parts.emplace_back();
      i += i == arrow ? 1 : 0;
    } else if ((letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z')) {
      parts.back() += letter;
    } else if (letter == '.') {
      refuse_einsum(spec, "'...' is not known here: write a letter for each dimension");
    } else if (letter != ' ') {
      refuse_einsum(spec, std::string("it has a '") + letter + "', expected letters, ',' and '->'");
    }
  }
  if (parts.size() != operands + 1) {
    refuse_einsum(spec, "it names " + std::to_string(parts.size() - 1) + " operands, and is called with " +
                            std::to_string(operands));
  }
  return parts;
}

template <class T>
[[nodiscard]] BasicArray<T> einsum_of(std::string_view spec, const std::vector<const BasicArray<T>*>& arrays) {
  const std::vector<std::string> letters = einsum_letters(spec, arrays.size());
  const std::string& to = letters.back();
  std::vector<Lettered<T>> operands;
  const auto extent_of = [&](char letter) {
    std::int64_t extent = -1;
    for (const Lettered<T>& operand : operands) {
      extent = extent < 0 ? operand.extent(letter) : extent;
    }
    return extent;
  };
  for (std::size_t o = 0; o < arrays.size(); ++o) {
    const Shape& shape = arrays[o]->shape();
    if (letters[o].size() != shape.size()) {
      refuse_einsum(spec, "operand " + std::to_string(o + 1) + " is an array " + to_string(shape) + ", and has " +
                              std::to_string(letters[o].size()) + " letters");
    }
    operands.push_back({*arrays[o], letters[o]});
    for (std::size_t d = 0; d < shape.size(); ++d) {
      if (const std::int64_t extent = extent_of(letters[o][d]); extent != shape[d]) {
        refuse_einsum(spec, std::string("the letter '") + letters[o][d] + "' has the extents " +
                                std::to_string(extent) + " and " + std::to_string(shape[d]));
      }
    }
  }
  for (std::size_t d = 0; d < to.size(); ++d) {
    if (extent_of(to[d]) < 0 || to.find(to[d]) < d) {
      refuse_einsum(spec, std::string("the letter '") + to[d] + "' of the result is " +
                              (extent_of(to[d]) < 0 ? "in no operand" : "there twice"));
    }
  }
  if (operands.size() == 1) {
    return operands[0].arranged(to);
  }

  const Lettered<T>& a = operands[0];
  const Lettered<T>& b = operands[1];
  std::string batch;
  std::string left;
  std::string right;
  std::string added;
  Shape shape;
  for (const char letter : to) {
    (a.extent(letter) < 0 ? right : b.extent(letter) < 0 ? left : batch) += letter;
  }
  for (const char letter : a.letters) {
    if (to.find(letter) == std::string::npos && b.extent(letter) >= 0 && added.find(letter) == std::string::npos) {
      added += letter;
    }
  }
  const auto size_of = [&](const std::string& some) {
    std::int64_t size = 1;
    for (const char letter : some) {
      size *= extent_of(letter);
    }
    return size;
  };
  // Computes a matrix product for each index of the batch: [left, added] · [added, right]. Either can be transposed.
  BasicArray<T> own_a;
  BasicArray<T> own_b;
  const auto take = [&](const Lettered<T>& operand, const std::string& straight, const std::string& turned,
                        BasicArray<T>& own) -> std::pair<const T*, bool> {
    if (operand.letters == turned && turned != straight) {
      return {operand.array.data(), true};
    }
    if (operand.letters == straight) {
      return {operand.array.data(), false};
    }
    own = operand.arranged(straight);
    return {own.data(), false};
  };
  const auto [from_a, turned_a] = take(a, batch + left + added, batch + added + left, own_a);
  const auto [from_b, turned_b] = take(b, batch + added + right, batch + right + added, own_b);
  const std::int64_t rows = size_of(left);
  const std::int64_t inner = size_of(added);
  const std::int64_t columns = size_of(right);
  for (const char letter : batch + left + right) {
    shape.push_back(extent_of(letter));
  }
  BasicArray<T> result(shape);
  using RowMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using Map = Eigen::Map<const RowMajor>;
  for (std::int64_t i = 0; i < (result.size() == 0 ? 0 : size_of(batch)); ++i) {
    const T* const at_a = from_a + i * rows * inner;
    const T* const at_b = from_b + i * inner * columns;
    if (rows * inner * columns == 1) {
      result[i] = static_cast<T>(*at_a * *at_b);
      continue;
    }
    Eigen::Map<RowMajor> product(result.data() + i * rows * columns, rows, columns);
    const Map as_a(at_a, turned_a ? inner : rows, turned_a ? rows : inner);
    const Map as_b(at_b, turned_b ? columns : inner, turned_b ? inner : columns);
    if (turned_a && turned_b) {
      product.noalias() = as_a.transpose() * as_b.transpose();
    } else if (turned_a) {
      product.noalias() = as_a.transpose() * as_b;
    } else if (turned_b) {
      product.noalias() = as_a * as_b.transpose();
    } else {
      product.noalias() = as_a * as_b;
    }
  }
  return batch + left + right == to ? result : Lettered<T>{result, batch + left + right}.arranged(to);
}

}  // namespace detail

/// numpy.einsum of one or two operands: "bd,df->bf". Each dimension has a letter; the result has the letters after the
/// arrow. Letters that the result lacks are summed over; a letter that an operand has twice selects the diagonal. Eigen
/// computes the matrix products.
template <class T>
[[nodiscard]] BasicArray<T> einsum(std::string_view spec, const BasicArray<T>& a) {
  return detail::einsum_of<T>(spec, {&a});
}
template <class T>
[[nodiscard]] BasicArray<T> einsum(std::string_view spec, const BasicArray<T>& a, const BasicArray<T>& b) {
  return detail::einsum_of<T>(spec, {&a, &b});
}

}  // namespace shardrun::sdk
