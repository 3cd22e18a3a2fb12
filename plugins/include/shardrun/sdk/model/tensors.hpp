#pragma once

/// Ops that contract, reduce, rearrange and index tensors. Dimensions are counted from 0; a negative number counts from
/// the end, so that -1 is the last.

#include <shardrun/sdk/model/arithmetic.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace shardrun::sdk {

namespace detail {

[[nodiscard]] inline std::int64_t dimension(const Value& x, std::int64_t dim) {
  const auto rank = static_cast<std::int64_t>(x.dims().size());
  if (dim < -rank || dim >= rank) {
    throw std::invalid_argument("there is no dimension " + std::to_string(dim) + " of a value that has " +
                                std::to_string(rank));
  }
  return dim < 0 ? dim + rank : dim;
}

[[nodiscard]] inline std::vector<std::int64_t> dimensions(const Value& x, std::vector<std::int64_t> dims) {
  for (std::int64_t& dim : dims) {
    dim = dimension(x, dim);
  }
  return dims;
}

[[nodiscard]] inline Value reduce(const char* op, const Value& x, const std::vector<std::int64_t>& dims) {
  return x.function().call(op, {x}, {{"dims", dimensions(x, dims)}});
}

[[nodiscard]] inline std::vector<std::int64_t> all_dimensions(const Value& x) {
  std::vector<std::int64_t> dims(x.dims().size());
  for (std::size_t d = 0; d < dims.size(); ++d) {
    dims[d] = static_cast<std::int64_t>(d);
  }
  return dims;
}

}  // namespace detail

/// The sum of all elements.
[[nodiscard]] inline Value sum(const Value& x) { return x.function().call("sum_all", {x}, {{"scale", 1.0}}); }
/// The sum over these dimensions, which the result lacks. The next three functions take dimensions in the same way.
[[nodiscard]] inline Value sum(const Value& x, const std::vector<std::int64_t>& dims) {
  return detail::reduce("sum", x, dims);
}
[[nodiscard]] inline Value mean(const Value& x, const std::vector<std::int64_t>& dims) {
  return detail::reduce("mean", x, dims);
}
[[nodiscard]] inline Value max(const Value& x, const std::vector<std::int64_t>& dims) {
  return detail::reduce("max", x, dims);
}
[[nodiscard]] inline Value min(const Value& x, const std::vector<std::int64_t>& dims) {
  return detail::reduce("min", x, dims);
}
/// The mean of all elements.
[[nodiscard]] inline Value mean(const Value& x) { return mean(x, detail::all_dimensions(x)); }
[[nodiscard]] inline Value max(const Value& x) { return max(x, detail::all_dimensions(x)); }
[[nodiscard]] inline Value min(const Value& x) { return min(x, detail::all_dimensions(x)); }

/// The index of the largest element along a dimension, i32; the first one of several. The result lacks the dimension.
[[nodiscard]] inline Value argmax(const Value& x, std::int64_t dim) {
  return x.function().call("argmax", {x}, {{"dim", detail::dimension(x, dim)}});
}

/// x repeated along the dimensions `dims` of `like`, which x lacks. The reverse of a reduction over `dims`.
[[nodiscard]] inline Value expand(const Value& x, const Value& like, const std::vector<std::int64_t>& dims) {
  return x.function().call("broadcast", {x, like}, {{"dims", detail::dimensions(like, dims)}, {"scale", 1.0}});
}

/// x with its dimensions in another order: dimension d of the result is dimension order[d] of x.
[[nodiscard]] inline Value transpose(const Value& x, const std::vector<std::int64_t>& order) {
  return x.function().call("transpose", {x}, {{"order", detail::dimensions(x, order)}});
}
/// x with its dimensions reversed.
[[nodiscard]] inline Value transpose(const Value& x) {
  const std::vector<std::int64_t> dims = detail::all_dimensions(x);
  return transpose(x, {dims.rbegin(), dims.rend()});
}

/// The elements of x in row-major order, with other dimensions.
[[nodiscard]] inline Value reshape(const Value& x, const Dims& dims) {
  std::vector<std::int64_t> shape;
  std::string axes;
  for (const Dim& dim : dims) {
    shape.push_back(dim.size);
    axes += (shape.size() == 1 ? "" : " ") + dim.axis;
  }
  return x.function().call("reshape", {x}, {{"shape", shape}, {"axes", axes}});
}

/// Joins the values along a dimension.
[[nodiscard]] inline Value concatenate(const std::vector<Value>& values, std::int64_t dim) {
  return values.at(0).function().call("concatenate", values, {{"dim", detail::dimension(values[0], dim)}});
}

/// The indices from `begin` to `end` - 1 of a dimension. Negative indices count from the end.
[[nodiscard]] inline Value slice(const Value& x, std::int64_t dim, std::int64_t begin, std::int64_t end) {
  dim = detail::dimension(x, dim);
  const std::int64_t size = x.dims().at(static_cast<std::size_t>(dim)).size;
  return x.function().call(
      "slice", {x}, {{"dim", dim}, {"begin", begin < 0 ? begin + size : begin}, {"end", end < 0 ? end + size : end}});
}

/// x with `low` more elements before and `high` more after those of a dimension.
[[nodiscard]] inline Value pad(const Value& x, std::int64_t dim, std::int64_t low, std::int64_t high,
                               double value = 0) {
  return x.function().call("pad", {x},
                           {{"dim", detail::dimension(x, dim)}, {"low", low}, {"high", high}, {"value", value}});
}

/// The elements of x at these i32 indices of a dimension. The dimensions of the indices replace that dimension.
[[nodiscard]] inline Value gather(const Value& indices, const Value& x, std::int64_t dim = 0) {
  return x.function().call("gather", {indices, x}, {{"dim", detail::dimension(x, dim)}});
}
/// The reverse of gather: index r of `rows` gets the sum of the elements of x whose index is r.
[[nodiscard]] inline Value scatter_add(const Value& indices, const Value& x, std::int64_t dim, const Dim& rows) {
  return x.function().call("scatter_add", {indices, x},
                           {{"dim", detail::dimension(x, dim)}, {"rows", rows.size}, {"axis", rows.axis}});
}
/// Adds a last dimension `rows`, which is 1 at the index and 0 elsewhere.
[[nodiscard]] inline Value one_hot(const Value& indices, const Dim& rows) {
  return indices.function().call("one_hot", {indices}, {{"rows", rows.size}, {"axis", rows.axis}});
}
/// The numbers 0, 1, 2, …
[[nodiscard]] inline Value iota(Function& f, const Dim& rows, Element element = Element::f32) {
  return f.call("iota", {},
                {{"rows", rows.size}, {"axis", rows.axis}, {"dtype", element == Element::f32 ? "f32" : "i32"}});
}
/// x as another element type. Fractions are cut off when real numbers become i32.
[[nodiscard]] inline Value cast(const Value& x, Element element) {
  return x.function().call("cast", {x}, {{"dtype", element == Element::f32 ? "f32" : "i32"}});
}

namespace detail {

/// Computes an einsum from the letters of its operands and of its result.
class Contraction {
 public:
  Contraction(const std::string& spec, std::vector<Value> operands) : spec_(spec), operands_(std::move(operands)) {
    parse();
    expand_ellipses();
    for (std::size_t i = 0; i < letters_.size(); ++i) {
      if (const std::size_t rank = operands_[i].dims().size(); rank != letters_[i].size()) {
        refuse("operand " + std::to_string(i) + " has " + std::to_string(rank) + " dimensions, expected " +
               std::to_string(letters_[i].size()));
      }
      take_diagonals(i);
    }
  }

  [[nodiscard]] Value result() {
    if (operands_.size() == 1) {
      return single();
    }
    // Contracts from left to right. A letter is kept as long as the result or a later operand has it.
    for (std::size_t i = 1; i < operands_.size(); ++i) {
      std::string later = result_;
      for (std::size_t j = i + 1; j < operands_.size(); ++j) {
        later += letters_[j];
      }
      const std::string kept = i + 1 == operands_.size() ? result_ : common(letters_[0] + letters_[i], later);
      operands_[0] = operands_[0].function().call("einsum", {operands_[0], operands_[i]},
                                                  {{"spec", letters_[0] + "," + letters_[i] + "->" + kept}});
      letters_[0] = kept;
    }
    return operands_[0];
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw std::invalid_argument("einsum \"" + spec_ + "\": " + why);
  }

  /// The letters that are in both texts, once each.
  [[nodiscard]] static std::string common(const std::string& text, const std::string& other) {
    std::string found;
    for (const char c : text) {
      if (other.find(c) != std::string::npos && found.find(c) == std::string::npos) {
        found += c;
      }
    }
    return found;
  }

  void parse() {
    std::string dense;
    for (const char c : spec_) {
      dense += c == ' ' ? "" : std::string(1, c);
    }
    const std::size_t arrow = dense.find("->");
    if (arrow == std::string::npos) {
      refuse("expected operands, -> and the result, as in \"bij,bjk->bik\"");
    }
    result_ = dense.substr(arrow + 2);
    for (std::size_t begin = 0; begin <= arrow;) {
      const std::size_t end = std::min(dense.find(',', begin), arrow);
      letters_.push_back(dense.substr(begin, end - begin));
      begin = end + 1;
    }
    if (letters_.size() != operands_.size()) {
      refuse("it has " + std::to_string(letters_.size()) + " operands, and " + std::to_string(operands_.size()) +
             " are given");
    }
  }

  /// A letter that nothing uses yet.
  [[nodiscard]] char unused() {
    std::string all = result_;
    for (const std::string& letters : letters_) {
      all += letters;
    }
    for (char c = 'A'; c <= 'z'; c = c == 'Z' ? 'a' : static_cast<char>(c + 1)) {
      if (all.find(c) == std::string::npos && ellipsis_.find(c) == std::string::npos) {
        return c;
      }
    }
    refuse("it has too many dimensions");
  }

  /// Replaces "..." by letters for the dimensions that an operand has in addition to its letters. Operands share these
  /// letters, aligned at the last one.
  void expand_ellipses() {
    for (std::size_t i = 0; i < letters_.size(); ++i) {
      const std::size_t at = letters_[i].find("...");
      if (at == std::string::npos) {
        continue;
      }
      const std::size_t rank = operands_[i].dims().size();
      const std::size_t named = letters_[i].size() - 3;
      if (rank < named) {
        refuse("operand " + std::to_string(i) + " has only " + std::to_string(rank) + " dimensions");
      }
      while (ellipsis_.size() < rank - named) {
        ellipsis_.insert(ellipsis_.begin(), unused());
      }
      letters_[i].replace(at, 3, ellipsis_.substr(ellipsis_.size() - (rank - named)));
    }
    if (const std::size_t at = result_.find("..."); at != std::string::npos) {
      result_.replace(at, 3, ellipsis_);
    }
  }

  /// A letter that occurs twice in an operand means its diagonal. The second occurrence becomes a new letter. The
  /// operand is multiplied by an identity matrix over both letters, and summed over the new one.
  void take_diagonals(std::size_t i) {
    std::string& letters = letters_[i];
    std::string pairs;
    for (std::size_t d = 0; d < letters.size(); ++d) {
      if (letters.find(letters[d]) < d) {
        pairs += letters[d];
        letters[d] = unused();
        pairs += letters[d];
      }
    }
    for (std::size_t p = 0; p < pairs.size(); p += 2) {
      const Dims dims = operands_[i].dims();
      const Dim& first = dims.at(letters.find(pairs[p]));
      const Dim& second = dims.at(letters.find(pairs[p + 1]));
      if (first.size != second.size) {
        refuse(std::string("'") + pairs[p] + "' stands for dimensions of different sizes");
      }
      std::string kept = letters;
      kept.erase(kept.find(pairs[p + 1]), 1);
      Function& f = operands_[i].function();
      const Value identity = one_hot(iota(f, first, Element::i32), second);
      operands_[i] =
          f.call("einsum", {operands_[i], identity}, {{"spec", letters + "," + pairs.substr(p, 2) + "->" + kept}});
      letters = kept;
    }
  }

  /// An einsum of one operand: sums over the letters that the result lacks, and orders the others.
  [[nodiscard]] Value single() const {
    std::vector<std::int64_t> summed;
    std::string left;
    for (std::size_t d = 0; d < letters_[0].size(); ++d) {
      if (result_.find(letters_[0][d]) == std::string::npos) {
        summed.push_back(static_cast<std::int64_t>(d));
      } else {
        left += letters_[0][d];
      }
    }
    std::vector<std::int64_t> order;
    for (const char c : result_) {
      const std::size_t at = left.find(c);
      if (at == std::string::npos) {
        refuse(std::string("the result's '") + c + "' stands in no operand");
      }
      order.push_back(static_cast<std::int64_t>(at));
    }
    const Value x = summed.empty() ? operands_[0] : sum(operands_[0], summed);
    return result_ == left ? x : transpose(x, order);
  }

  std::string spec_;
  std::vector<Value> operands_;
  std::vector<std::string> letters_;  ///< for each operand: a letter for each dimension
  std::string result_;
  std::string ellipsis_;  ///< the letters for which "..." stands
};

}  // namespace detail

/// Einstein's sum: each letter names a dimension, and the result is the sum over the letters that it lacks.
///
///     einsum("bd,df->bf", {x, w})    einsum("...ij->...ji", {x})    einsum("ii->", {x})
[[nodiscard]] inline Value einsum(const std::string& spec, const std::vector<Value>& operands) {
  return detail::Contraction(spec, operands).result();
}
[[nodiscard]] inline Value einsum(const std::string& spec, const Value& x) { return einsum(spec, std::vector{x}); }
[[nodiscard]] inline Value einsum(const std::string& spec, const Value& a, const Value& b) {
  return einsum(spec, std::vector{a, b});
}

}  // namespace shardrun::sdk
