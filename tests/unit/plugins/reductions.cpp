#include <shardrun/sdk/transport/reduce.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <type_traits>
#include <vector>

#include "tests/support/catch.h"

using namespace shardrun::sdk;

namespace {

template <class T>
std::vector<T> reduced(std::uint32_t dtype, std::uint32_t reduction, std::vector<T> to, const std::vector<T>& from) {
  reduce(dtype, reduction, to.data(), from.data(), to.size());
  return to;
}

double half_value(std::uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 10U & 31U);
  const double mantissa = bits & 1023U;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000U) != 0 ? -magnitude : magnitude;
}

}  // namespace

TEST_CASE("every half is widened to its value", "[sdk]") {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 65'536; ++bits) {
    const float wide = widen(Half{static_cast<std::uint16_t>(bits)});
    if ((bits & 0x7C00U) != 0x7C00U) {
      wrong += static_cast<double>(wide) == half_value(bits) && std::signbit(wide) == (bits >= 0x8000U) ? 0 : 1;
    } else {
      wrong += (bits & 0x3FFU) == 0 ? !std::isinf(wide) : !std::isnan(wide);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("floats are narrowed to the nearest half, ties to even", "[sdk]") {
  int wrong = 0;
  const auto narrow = [](double value) { return std::uint32_t{narrow_to_half(static_cast<float>(value)).bits}; };
  for (std::uint32_t bits = 0; bits < 0x7BFFU; ++bits) {
    const double low = half_value(bits);
    const double high = half_value(bits + 1);
    const double middle = (low + high) / 2;  // exact in a float
    const float below = std::nextafter(static_cast<float>(middle), 0.0F);
    const float above = std::nextafter(static_cast<float>(middle), 1e9F);
    wrong += narrow(low) == bits ? 0 : 1;
    wrong += narrow(middle) == bits + (bits & 1U) ? 0 : 1;
    wrong += narrow(-middle) == (0x8000U | (bits + (bits & 1U))) ? 0 : 1;
    wrong += narrow(below) == bits && narrow(above) == bits + 1 ? 0 : 1;
  }
  CHECK(wrong == 0);
  CHECK(narrow(65'504) == 0x7BFF);
  CHECK(narrow(65'519.99) == 0x7BFF);
  CHECK(narrow(65'520) == 0x7C00);
  CHECK(narrow(std::numeric_limits<double>::infinity()) == 0x7C00);
  CHECK(narrow(-1e9) == 0xFC00);
  CHECK((narrow(std::nan("")) & 0x7FFFU) == 0x7E00);
}

TEST_CASE("floats are narrowed to the nearest bfloat, ties to even", "[sdk]") {
  const auto narrow = [](float value) { return narrow_to_bfloat(value).bits; };

  CHECK(narrow(1.0F) == 0x3F80);
  CHECK(narrow(1.0F + 0x1p-8F) == 0x3F80);
  CHECK(narrow(1.0F + 3 * 0x1p-8F) == 0x3F82);
  CHECK(narrow(std::nextafter(1.0F + 0x1p-8F, 2.0F)) == 0x3F81);
  CHECK(narrow(-2.5F) == 0xC020);
  CHECK(narrow(std::numeric_limits<float>::max()) == 0x7F80);
  CHECK((narrow(std::numeric_limits<float>::quiet_NaN()) & 0x7FC0U) == 0x7FC0);
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 65'536; ++bits) {
    const auto value = Bfloat{static_cast<std::uint16_t>(bits)};
    wrong += std::isnan(widen(value)) || narrow(widen(value)) == bits ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("sum, product, minimum and maximum are right for each kind of type", "[sdk]") {
  const std::vector<float> a = {1, -2, 3.5F, 0};
  const std::vector<float> b = {4, -5, 0.5F, -1};
  CHECK(reduced(SR_DTYPE_F32, SR_REDUCE_SUM, a, b) == std::vector<float>{5, -7, 4, -1});
  CHECK(reduced(SR_DTYPE_F32, SR_REDUCE_PRODUCT, a, b) == std::vector<float>{4, 10, 1.75F, 0});
  CHECK(reduced(SR_DTYPE_F32, SR_REDUCE_MIN, a, b) == std::vector<float>{1, -5, 0.5F, -1});
  CHECK(reduced(SR_DTYPE_F32, SR_REDUCE_MAX, a, b) == std::vector<float>{4, -2, 3.5F, 0});
  CHECK(reduced<std::uint16_t>(SR_DTYPE_F16, SR_REDUCE_SUM, {0x3C00, 0x6800}, {0x3C00, 0x3C00}) ==
        std::vector<std::uint16_t>{0x4000, 0x6800});  // 1 + 1, and 2048 + 1, which is not there
  CHECK(reduced<std::uint16_t>(SR_DTYPE_BF16, SR_REDUCE_MAX, {0xC000}, {0xC040}) == std::vector<std::uint16_t>{0xC000});
  CHECK(reduced<std::uint64_t>(SR_DTYPE_U64, SR_REDUCE_MAX, {1, std::uint64_t{1} << 63U}, {2, 3}) ==
        std::vector<std::uint64_t>{2, std::uint64_t{1} << 63U});
  CHECK(reduced<std::int64_t>(SR_DTYPE_I64, SR_REDUCE_MIN, {-1}, {1}) == std::vector<std::int64_t>{-1});
}

TEST_CASE("NaN stays NaN in either operand", "[sdk]") {
  const std::uint32_t reduction = GENERATE(SR_REDUCE_SUM, SR_REDUCE_PRODUCT, SR_REDUCE_MIN, SR_REDUCE_MAX);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const double wide_nan = std::numeric_limits<double>::quiet_NaN();
  // Long enough for vectors, and with a rest.
  std::vector<float> floats(37, 1.0F);
  std::vector<double> doubles(37, 1.0);
  std::vector<std::uint16_t> halves(37, 0x3C00);
  std::vector<std::uint16_t> bfloats(37, 0x3F80);

  int numbers = 0;
  for (const bool first : {false, true}) {
    const auto count = [&](std::uint32_t dtype, const auto& plain, auto nan_of, auto is_nan) {
      auto to = plain;
      auto from = plain;
      (first ? to : from).assign(plain.size(), nan_of);
      for (const auto& element : reduced(dtype, reduction, to, from)) {
        numbers += is_nan(element) ? 0 : 1;
      }
    };
    count(SR_DTYPE_F32, floats, nan, [](float x) { return std::isnan(x); });
    count(SR_DTYPE_F64, doubles, wide_nan, [](double x) { return std::isnan(x); });
    count(SR_DTYPE_F16, halves, std::uint16_t{0x7E00}, [](std::uint16_t x) { return (x & 0x7FFFU) > 0x7C00U; });
    count(SR_DTYPE_BF16, bfloats, std::uint16_t{0x7FC0}, [](std::uint16_t x) { return (x & 0x7FFFU) > 0x7F80U; });
  }

  CHECK(numbers == 0);
}

TEST_CASE("integers wrap around", "[sdk]") {
  CHECK(reduced<std::int8_t>(SR_DTYPE_I8, SR_REDUCE_SUM, {127}, {1}) == std::vector<std::int8_t>{-128});
  CHECK(reduced<std::uint8_t>(SR_DTYPE_U8, SR_REDUCE_PRODUCT, {200}, {2}) == std::vector<std::uint8_t>{144});
  CHECK(reduced<std::int32_t>(SR_DTYPE_I32, SR_REDUCE_SUM, {INT32_MAX}, {1}) == std::vector<std::int32_t>{INT32_MIN});
  CHECK(reduced<std::int32_t>(SR_DTYPE_I32, SR_REDUCE_PRODUCT, {-3}, {5}) == std::vector<std::int32_t>{-15});
  CHECK(reduced<std::int64_t>(SR_DTYPE_I64, SR_REDUCE_SUM, {INT64_MAX}, {1}) == std::vector<std::int64_t>{INT64_MIN});
  CHECK(reduced<std::uint32_t>(SR_DTYPE_U32, SR_REDUCE_SUM, {UINT32_MAX}, {2}) == std::vector<std::uint32_t>{1});
}

namespace {

/// Ordinary numbers, special numbers of every kind, and arbitrary bits.
template <class T>
T element(std::uint64_t i) {
  const std::uint64_t bits = (i + 1) * 0x9E3779B97F4A7C15U;
  T value;
  if constexpr (std::is_floating_point_v<T>) {
    using Limits = std::numeric_limits<T>;
    const T special[] = {0,
                         -T{0},
                         1,
                         -1,
                         Limits::infinity(),
                         -Limits::infinity(),
                         Limits::denorm_min(),
                         -Limits::denorm_min(),
                         Limits::max(),
                         Limits::lowest(),
                         Limits::min(),
                         Limits::min() / 2};
    if (bits >> 62U != 0) {
      return special[(bits >> 20U) % std::size(special)];
    }
  }
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

template <class T>
bool is_nan(T value) {
  if constexpr (std::is_same_v<T, Half>) {
    return (value.bits & 0x7FFFU) > 0x7C00U;
  } else if constexpr (std::is_same_v<T, Bfloat>) {
    return (value.bits & 0x7FFFU) > 0x7F80U;
  } else {
    return value != value;
  }
}

/// Whether a result is as defined, to the bit. Only which of two NaNs a sum or product gives is not defined.
template <class T>
bool is_as_defined(std::uint32_t reduction, T a, T b, T found) {
  const T defined = detail::reduced(reduction, a, b);
  const bool is_open = is_nan(a) && is_nan(b) && (reduction == SR_REDUCE_SUM || reduction == SR_REDUCE_PRODUCT);
  return is_open ? is_nan(found) : std::memcmp(&defined, &found, sizeof(T)) == 0;
}

/// The number of elements that are not as defined, or that are written although they must not be.
template <class T>
std::size_t count_wrong(std::uint32_t dtype, std::uint32_t reduction, Vectors vectors, std::size_t targets,
                        std::size_t count, std::size_t shift, bool in_place) {
  constexpr auto guard = std::byte{0xA5};
  const std::size_t bytes = count * sizeof(T);
  std::vector<std::vector<std::byte>> memory(4, std::vector<std::byte>(bytes + shift + 64, guard));
  std::vector<T> a(count);
  std::vector<T> b(count);
  for (std::size_t i = 0; i < count; ++i) {
    a[i] = element<T>(i);
    b[i] = element<T>(i * 31 + 7);
  }
  if (count > 0) {
    std::memcpy(memory[0].data() + shift, a.data(), bytes);
    std::memcpy(memory[1].data() + shift, b.data(), bytes);
  }
  void* const to[2] = {memory[in_place ? 0 : 2].data() + shift, memory[in_place ? 1 : 3].data() + shift};
  find_reduction(dtype, reduction, vectors)(to[0], targets == 2 ? to[1] : nullptr, memory[0].data() + shift,
                                            memory[1].data() + shift, count);
  std::size_t wrong = 0;
  for (std::size_t target = 0; target < targets; ++target) {
    for (std::size_t i = 0; i < count; ++i) {
      T found;
      std::memcpy(&found, static_cast<const std::byte*>(to[target]) + i * sizeof(T), sizeof(T));
      wrong += is_as_defined(reduction, a[i], b[i], found) ? 0 : 1;
    }
  }
  for (const auto& each : memory) {
    wrong += static_cast<std::size_t>(std::count_if(each.begin(), each.begin() + static_cast<std::ptrdiff_t>(shift),
                                                    [&](std::byte byte) { return byte != guard; }));
    wrong += static_cast<std::size_t>(
        std::count_if(each.end() - 64, each.end(), [&](std::byte byte) { return byte != guard; }));
  }
  return wrong;
}

template <class T>
std::size_t count_all_wrong(std::uint32_t dtype) {
  std::size_t wrong = 0;
  for (std::uint32_t set = 0; set <= static_cast<std::uint32_t>(best_vectors()); ++set) {
    for (const std::uint32_t reduction : {SR_REDUCE_SUM, SR_REDUCE_PRODUCT, SR_REDUCE_MIN, SR_REDUCE_MAX}) {
      for (const std::size_t count : {0U, 1U, 3U, 7U, 31U, 64U, 129U, 1000U, 4099U}) {
        for (const std::size_t shift : {0U, 1U, 8U, 52U}) {
          const auto vectors = static_cast<Vectors>(set);
          wrong += count_wrong<T>(dtype, reduction, vectors, 1, count, shift, shift == 8);
          wrong += count_wrong<T>(dtype, reduction, vectors, 2, count, shift, shift == 52);
        }
      }
    }
  }
  return wrong;
}

}  // namespace

TEST_CASE("every reduction of every dtype is right with every vector width, length and alignment", "[sdk]") {
  CHECK(count_all_wrong<float>(SR_DTYPE_F32) == 0);
  CHECK(count_all_wrong<double>(SR_DTYPE_F64) == 0);
  CHECK(count_all_wrong<Half>(SR_DTYPE_F16) == 0);
  CHECK(count_all_wrong<Bfloat>(SR_DTYPE_BF16) == 0);
  CHECK(count_all_wrong<std::int8_t>(SR_DTYPE_I8) == 0);
  CHECK(count_all_wrong<std::uint8_t>(SR_DTYPE_U8) == 0);
  CHECK(count_all_wrong<std::int32_t>(SR_DTYPE_I32) == 0);
  CHECK(count_all_wrong<std::uint32_t>(SR_DTYPE_U32) == 0);
  CHECK(count_all_wrong<std::int64_t>(SR_DTYPE_I64) == 0);
  CHECK(count_all_wrong<std::uint64_t>(SR_DTYPE_U64) == 0);
}

namespace {

template <class T>
T narrowed(float value) {
  if constexpr (std::is_same_v<T, Half>) {
    return narrow_to_half(value);
  } else {
    return narrow_to_bfloat(value);
  }
}

/// One element of each member, reduced in float, and rounded once if T has 16 bits.
template <class T>
T reduced_in_order(std::uint32_t reduction, const std::vector<T>& values) {
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, Bfloat>) {
    float partial = widen(values[0]);
    for (std::size_t i = 1; i < values.size(); ++i) {
      partial = detail::reduced(reduction, partial, widen(values[i]));
    }
    return narrowed<T>(partial);
  } else {
    T partial = values[0];
    for (std::size_t i = 1; i < values.size(); ++i) {
      partial = detail::reduced(reduction, partial, values[i]);
    }
    return partial;
  }
}

/// The number of elements that differ from reduced_in_order(), for `members` sources and `targets` targets. In place,
/// the first target is the last source.
template <class T>
std::size_t count_wrong_in_order(std::uint32_t dtype, std::uint32_t reduction, Vectors vectors, std::size_t members,
                                 std::size_t targets, std::size_t count, bool in_place) {
  std::vector<std::vector<T>> sources(members, std::vector<T>(count));
  for (std::size_t m = 0; m < members; ++m) {
    for (std::size_t i = 0; i < count; ++i) {
      sources[m][i] = element<T>(i * 31 + m * 1009);
    }
  }
  const std::vector<std::vector<T>> given = sources;
  std::vector<std::vector<T>> results(targets, std::vector<T>(count));
  const auto target = [&](std::size_t i) { return in_place && i == 0 ? sources.back().data() : results[i].data(); };
  Reducer(dtype, reduction, vectors)
      .run(
          members, [&](std::size_t i) { return sources[i].data(); }, targets, target, count);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<T> values;
    for (const std::vector<T>& each : given) {
      values.push_back(each[i]);
    }
    const T defined = reduced_in_order(reduction, values);
    const bool is_open = is_nan(defined) && (reduction == SR_REDUCE_SUM || reduction == SR_REDUCE_PRODUCT);
    for (std::size_t t = 0; t < targets; ++t) {
      const T found = target(t)[i];
      wrong += (is_open ? is_nan(found) : std::memcmp(&defined, &found, sizeof(T)) == 0) ? 0 : 1;
    }
  }
  return wrong;
}

template <class T>
std::size_t count_all_wrong_in_order(std::uint32_t dtype) {
  std::size_t wrong = 0;
  for (std::uint32_t set = 0; set <= static_cast<std::uint32_t>(best_vectors()); ++set) {
    for (const std::uint32_t reduction : {SR_REDUCE_SUM, SR_REDUCE_PRODUCT, SR_REDUCE_MIN, SR_REDUCE_MAX}) {
      for (const std::size_t members : {2U, 3U, 5U}) {
        for (const std::size_t targets : {1U, 2U, 4U}) {
          for (const std::size_t count : {0U, 5U, 10'007U}) {
            wrong += count_wrong_in_order<T>(dtype, reduction, static_cast<Vectors>(set), members, targets, count,
                                             targets != 2);
          }
        }
      }
    }
  }
  return wrong;
}

}  // namespace

TEST_CASE("members are reduced in their order, 16-bit floats in float32 and rounded once", "[sdk]") {
  CHECK(count_all_wrong_in_order<float>(SR_DTYPE_F32) == 0);
  CHECK(count_all_wrong_in_order<double>(SR_DTYPE_F64) == 0);
  CHECK(count_all_wrong_in_order<Half>(SR_DTYPE_F16) == 0);
  CHECK(count_all_wrong_in_order<Bfloat>(SR_DTYPE_BF16) == 0);
  CHECK(count_all_wrong_in_order<std::int8_t>(SR_DTYPE_I8) == 0);
  CHECK(count_all_wrong_in_order<std::uint64_t>(SR_DTYPE_U64) == 0);
  const Bfloat one = narrow_to_bfloat(1);
  const Bfloat large = narrow_to_bfloat(256);
  CHECK(widen(reduced_in_order(SR_REDUCE_SUM, std::vector<Bfloat>{large, one, one})) == 258);
  CHECK(widen(detail::reduced(SR_REDUCE_SUM, detail::reduced(SR_REDUCE_SUM, large, one), one)) == 256);
}

TEST_CASE("an unknown dtype or reduction has no function", "[sdk]") {
  CHECK(find_reduction(0, SR_REDUCE_SUM) == nullptr);
  CHECK(find_reduction(SR_DTYPE_F32, 5) == nullptr);
}
