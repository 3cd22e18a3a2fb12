#include "core/data/finite.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "core/base/error.h"

namespace shardrun::data {
namespace {

/// Values that are looked at without a branch, so that the compiler can make vectors of them.
constexpr std::int64_t block = 4096;

template <class Real>
Real value_at(const std::byte* values, std::int64_t i) noexcept {
  Real value;
  std::memcpy(&value, values + static_cast<std::size_t>(i) * sizeof(Real), sizeof(Real));
  return value;
}

/// NaN compares as false.
template <class Real>
bool is_usable(Real value) noexcept {
  return std::abs(value) <= static_cast<Real>(FLT_MAX);
}

/// The first of [begin, end) that is not usable, or `end`.
template <class Real>
std::int64_t first_bad(const std::byte* values, std::int64_t begin, std::int64_t end) noexcept {
  for (std::int64_t from = begin; from < end; from += block) {
    const std::int64_t to = std::min(from + block, end);
    int bad = 0;
    for (std::int64_t i = from; i < to; ++i) {
      bad |= is_usable(value_at<Real>(values, i)) ? 0 : 1;
    }
    for (std::int64_t i = from; bad != 0 && i < to; ++i) {
      if (!is_usable(value_at<Real>(values, i))) {
        return i;
      }
    }
  }
  return end;
}

/// As `first_bad` of all, or `count`. Each thread has a run of consecutive values, as files are best read.
template <class Real>
std::int64_t first_bad_of_all(const std::byte* values, std::int64_t count, int threads) {
  constexpr std::int64_t worth_a_thread = std::int64_t{1} << 20U;
  const std::int64_t parts = std::clamp<std::int64_t>(count / worth_a_thread, 1, std::max(threads, 1));
  std::atomic<std::int64_t> first = count;
  const auto search = [&](std::int64_t part) {
    const std::int64_t end = count / parts * (part + 1) + (part + 1 == parts ? count % parts : 0);
    const std::int64_t found = first_bad<Real>(values, count / parts * part, end);
    std::int64_t known = first;
    while (found < end && found < known && !first.compare_exchange_weak(known, found)) {
    }
  };
  std::vector<std::jthread> others;
  for (std::int64_t part = 1; part < parts; ++part) {
    others.emplace_back(search, part);
  }
  search(0);
  others.clear();
  return first;
}

/// "row 3", "row 3, column 17", or "row 3, at [2, 5]" of it.
std::string place_of(const NpyArray& array, std::int64_t element) {
  const std::vector<std::int64_t>& shape = array.shape();
  std::vector<std::int64_t> index(shape.size());
  for (std::size_t d = shape.size(); d-- > 0;) {
    index[d] = element % shape[d];
    element /= shape[d];
  }
  const std::string row = fmt::format("row {}", index[0]);
  if (index.size() == 1) {
    return row;
  }
  return index.size() == 2 ? fmt::format("{}, column {}", row, index[1])
                           : fmt::format("{}, at [{}]", row, fmt::join(index.begin() + 1, index.end(), ", "));
}

template <class Real>
void require_usable(const NpyArray& array, int threads) {
  const std::byte* const values = array.values().data();
  const std::int64_t bad = first_bad_of_all<Real>(values, array.elements(), threads);
  if (bad == array.elements()) {
    return;
  }
  const Real value = value_at<Real>(values, bad);
  const std::string found = std::isnan(value)   ? "NaN"
                            : std::isinf(value) ? (value > 0 ? "Inf" : "-Inf")
                                                : fmt::format("{}, which float32 cannot hold", value);
  throw Error(ErrorCode::data, fmt::format("'{}' has {} in {} (counted from 0): training needs finite numbers; remove "
                                           "such rows, or put numbers there (numpy.isfinite finds them)",
                                           array.path().native(), found, place_of(array, bad)));
}

}  // namespace

void require_finite(const NpyArray& array, int threads) {
  if (array.type() == NpyType::f32) {
    require_usable<float>(array, threads);
  } else if (array.type() == NpyType::f64) {
    require_usable<double>(array, threads);
  }
}

}  // namespace shardrun::data
