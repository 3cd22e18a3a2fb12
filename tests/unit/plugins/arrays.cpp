// Arrays of engines. einsum and the other functions of sdk/engine/math.hpp equal loops that are written out.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <shardrun/sdk/engine/math.hpp>
#include <string>
#include <vector>

#include "tests/support/catch.h"

using namespace shardrun::sdk;
using Catch::Contains;

namespace {

/// Small integers, which every element type adds and multiplies exactly.
template <class T>
BasicArray<T> small_numbers(const Shape& shape, int seed) {
  BasicArray<T> array(shape);
  for (std::int64_t i = 0; i < array.size(); ++i) {
    array[i] = static_cast<T>((i * 7 + i / 3 + seed) % 4);
  }
  return array;
}

/// The extents of letters: all differ, and one is 1.
const std::map<char, std::int64_t> extents = {{'a', 2}, {'b', 3}, {'c', 4}, {'d', 5}, {'e', 1}, {'z', 0}};

Shape shape_of_letters(const std::string& letters) {
  Shape shape;
  for (const char letter : letters) {
    shape.push_back(extents.at(letter));
  }
  return shape;
}

std::int64_t place_in(const std::string& letters, const std::map<char, std::int64_t>& index) {
  std::int64_t place = 0;
  for (const char letter : letters) {
    place = place * extents.at(letter) + index.at(letter);
  }
  return place;
}

/// einsum by its definition: for each index of all letters, adds the product of the operands' elements to the result.
template <class T>
BasicArray<T> by_loops(const std::vector<std::string>& of, const std::string& to,
                       const std::vector<BasicArray<T>>& operands) {
  BasicArray<T> result(shape_of_letters(to));
  std::map<char, std::int64_t> index;
  std::int64_t count = 1;
  for (const std::string& letters : of) {
    for (const char letter : letters) {
      count *= index.emplace(letter, 0).second ? extents.at(letter) : 1;
    }
  }
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i;
    for (auto& [letter, at] : index) {
      at = rest % extents.at(letter);
      rest /= extents.at(letter);
    }
    T product = 1;
    for (std::size_t o = 0; o < of.size(); ++o) {
      product = static_cast<T>(product * operands[o][place_in(of[o], index)]);
    }
    T& sum = result[place_in(to, index)];
    sum = static_cast<T>(sum + product);
  }
  return result;
}

template <class T>
void require_equal(const BasicArray<T>& found, const BasicArray<T>& expected) {
  REQUIRE(found.shape() == expected.shape());
  CHECK(std::vector<T>(found.begin(), found.end()) == std::vector<T>(expected.begin(), expected.end()));
}

template <class T>
void require_einsum(const std::string& a, const std::string& b, const std::string& to) {
  const std::string spec = a + (b == "-" ? "" : ", " + b) + " -> " + to;
  INFO(spec << " of elements with " << sizeof(T) << " bytes");
  std::vector<BasicArray<T>> operands = {small_numbers<T>(shape_of_letters(a), 1)};
  if (b == "-") {
    return require_equal(einsum(spec, operands[0]), by_loops<T>({a}, to, operands));
  }
  operands.push_back(small_numbers<T>(shape_of_letters(b), 2));
  require_equal(einsum(spec, operands[0], operands[1]), by_loops<T>({a, b}, to, operands));
}

}  // namespace

TEST_CASE("einsum of one and of two operands is its definition", "[arrays]") {
  struct Case {
    std::string a, b, to;  ///< b: "-" for one operand
  };
  const std::vector<Case> cases = {// One: as it is, transposed, summed, diagonals, traces.
                                   {"ab", "-", "ab"},
                                   {"ab", "-", "ba"},
                                   {"abc", "-", "cab"},
                                   {"abcd", "-", "dbca"},
                                   {"abc", "-", "b"},
                                   {"abc", "-", ""},
                                   {"", "-", ""},
                                   {"aa", "-", "a"},
                                   {"aa", "-", ""},
                                   {"aba", "-", "b"},
                                   {"aba", "-", "ab"},
                                   {"aaba", "-", "ba"},
                                   {"az", "-", "a"},
                                   {"az", "-", "az"},
                                   // Products of matrices, either transposed, and the result.
                                   {"ab", "bc", "ac"},
                                   {"ba", "bc", "ac"},
                                   {"ab", "cb", "ac"},
                                   {"ba", "cb", "ac"},
                                   {"ab", "bc", "ca"},
                                   {"ab", "b", "a"},
                                   {"b", "bc", "c"},
                                   {"a", "a", ""},
                                   {"a", "b", "ab"},
                                   {"a", "b", "ba"},
                                   {"az", "zc", "ac"},
                                   // Several contracted letters, and several outer ones.
                                   {"abc", "bcd", "ad"},
                                   {"abc", "cbd", "ad"},
                                   {"abc", "cd", "abd"},
                                   {"abc", "cd", "adb"},
                                   {"abc", "bd", "acd"},
                                   // A batch.
                                   {"abc", "acd", "abd"},
                                   {"abc", "adc", "abd"},
                                   {"bac", "acd", "abd"},
                                   {"abc", "acd", "bad"},
                                   {"ab", "ab", "ab"},
                                   {"ab", "ab", "a"},
                                   {"ab", "ab", ""},
                                   {"ab", "ba", "ab"},
                                   {"ab", "a", "ab"},
                                   {"abcd", "abdc", "abc"},
                                   {"ea", "eb", "eab"},
                                   // Letters of one operand alone are summed; repeated ones are diagonals.
                                   {"abc", "ad", "a"},
                                   {"ab", "cd", ""},
                                   {"ab", "cd", "ad"},
                                   {"aab", "bc", "ac"},
                                   {"aa", "bb", "ab"},
                                   {"aa", "aa", "a"},
                                   {"ab", "bb", "a"},
                                   {"", "ab", "ab"},
                                   {"ab", "", "b"}};
  for (const Case& each : cases) {
    require_einsum<float>(each.a, each.b, each.to);
    require_einsum<double>(each.a, each.b, each.to);
    require_einsum<std::int64_t>(each.a, each.b, each.to);
    require_einsum<std::int32_t>(each.a, each.b, each.to);
    require_einsum<std::uint8_t>(each.a, each.b, each.to);
  }
}

TEST_CASE("einsum refuses what it does not know, and names it", "[arrays]") {
  const Array a({2, 3});
  const Array b({3, 4});
  const auto refusal = [](const auto& act) {
    try {
      static_cast<void>(act());
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string("no refusal");
  };
  CHECK(refusal([&] { return einsum("ab,bc", a, b); }) ==
        "einsum(\"ab,bc\"): it has no '->' with the letters of the result behind it");
  CHECK_THAT(refusal([&] { return einsum("...b->...", a); }), Contains("'...' is not known here"));
  CHECK_THAT(refusal([&] { return einsum("ab->a", a, b); }), Contains("it names 1 operands, and is called with 2"));
  CHECK_THAT(refusal([&] { return einsum("abc->a", a); }), Contains("operand 1 is an array [2, 3], and has 3 letters"));
  CHECK_THAT(refusal([&] { return einsum("ab,ac->bc", a, b); }), Contains("the letter 'a' has the extents 2 and 3"));
  CHECK_THAT(refusal([&] { return einsum("aa->a", a); }), Contains("the letter 'a' has the extents 2 and 3"));
  CHECK_THAT(refusal([&] { return einsum("ab->ac", a); }), Contains("'c' of the result is in no operand"));
  CHECK_THAT(refusal([&] { return einsum("ab->aa", a); }), Contains("'a' of the result is there twice"));
  CHECK_THAT(refusal([&] { return einsum("a1->a", a); }), Contains("it has a '1'"));
  CHECK_THAT(refusal([&] { return a + b; }), Contains("arrays [2, 3] and [3, 4] are combined element by element"));
  CHECK_THAT(refusal([&] { return transpose(a, {0, 0}); }), Contains("does not name each dimension"));
  CHECK_THAT(refusal([&] { return reshape(a, {4}); }), Contains("has not as many elements as [4]"));
  CHECK_THAT(refusal([&] { return concatenate<float>({a, b}); }), Contains("an array [3, 4] follows [2, 3]"));
  CHECK_THAT(refusal([&] { return sum(a, 2); }), Contains("there is no axis 2 in an array [2, 3]"));
  CHECK_THAT(refusal([&] { return slice(a, 1, 2, 4); }), Contains("indices 2 to 4 of axis 1"));
}

TEST_CASE("arrays are combined element by element, as NumPy does", "[arrays]") {
  Array a({2, 3});
  std::copy_n(std::vector<float>{-2, -1, 0, 1, 2, 3}.begin(), 6, a.begin());
  const auto values = [](const Array& array) { return std::vector<float>(array.begin(), array.end()); };
  CHECK(values(relu(a)) == std::vector<float>{0, 0, 0, 1, 2, 3});
  CHECK(values(a * (a > 0)) == std::vector<float>{0, 0, 0, 1, 2, 3});
  CHECK(values(a <= 0) == std::vector<float>{1, 1, 1, 0, 0, 0});
  CHECK(values((a < 0) + (a >= 2)) == std::vector<float>{1, 1, 0, 0, 1, 1});
  CHECK(values(1 - a / 2) == std::vector<float>{2, 1.5F, 1, 0.5F, 0, -0.5F});
  CHECK(values(-maximum(a, 1)) == std::vector<float>{-1, -1, -1, -1, -2, -3});
  CHECK(values(exp(a))[4] == std::exp(2.0F));
  CHECK(values(tanh(a))[0] == std::tanh(-2.0F));
  // Along dimensions that an operand lacks, or of which it has one index.
  const Array columns = sum(a, 0);
  CHECK(values(columns) == std::vector<float>{-1, 1, 3});
  CHECK(values(a + columns) == std::vector<float>{-3, 0, 3, 0, 3, 6});
  CHECK(values(columns - a) == std::vector<float>{1, 2, 3, -2, -1, 0});
  const Array rows = reshape(sum(a, -1), {2, 1});
  CHECK(values(rows) == std::vector<float>{-3, 6});
  CHECK(values(a * rows) == std::vector<float>{6, 3, 0, 6, 12, 18});
  CHECK((rows + columns).shape() == Shape{2, 3});
  CHECK(values(rows + columns) == std::vector<float>{-4, -2, 0, 5, 7, 9});
  CHECK(sum(a) == 3);
  // Rearranged.
  CHECK(values(transpose(a)) == std::vector<float>{-2, 1, -1, 2, 0, 3});
  CHECK(transpose(small_numbers<float>({2, 3, 4}, 0), {1, -1, 0}).shape() == Shape{3, 4, 2});
  CHECK(values(slice(a, -1, 1, 3)) == std::vector<float>{-1, 0, 2, 3});
  CHECK(values(concatenate<float>({a, slice(a, 0, 1, 2)})) == std::vector<float>{-2, -1, 0, 1, 2, 3, 1, 2, 3});
  CHECK(values(concatenate<float>({a, rows, slice(a, 1, 0, 0)}, 1)) == std::vector<float>{-2, -1, 0, -3, 1, 2, 3, 6});
}

TEST_CASE("arrays of every element type are cast, and 16-bit floats are rounded to nearest even", "[arrays]") {
  Array a({4});
  std::copy_n(std::vector<float>{0, 1, 254.75F, 1.00390625F}.begin(), 4, a.begin());  // the last: 1 + 2^-8
  const auto back = [](const auto& array) {
    const Array widened = cast<float>(array);
    return std::vector<float>(widened.begin(), widened.end());
  };
  CHECK(back(cast<double>(a)) == std::vector<float>{0, 1, 254.75F, 1.00390625F});
  CHECK(back(cast<Half>(a)) == std::vector<float>{0, 1, 254.75F, 1.00390625F});
  CHECK(back(cast<Bfloat>(a)) == std::vector<float>{0, 1, 255, 1});
  CHECK(back(cast<std::int32_t>(a)) == std::vector<float>{0, 1, 254, 1});
  CHECK(back(cast<std::int64_t>(a)) == std::vector<float>{0, 1, 254, 1});
  CHECK(back(cast<std::uint8_t>(a)) == std::vector<float>{0, 1, 254, 1});
  CHECK(back(cast<std::uint8_t>(cast<Half>(a))) == std::vector<float>{0, 1, 254, 1});
}
