#include "core/data/finite.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cfloat>
#include <cmath>
#include <exception>
#include <shardrun/sdk/transport/half.hpp>
#include <thread>
#include <type_traits>
#include <vector>

#include "core/base/error.h"
#include "core/base/stop.h"

namespace shardrun::data {
namespace {

/// The number of values that are read at once, and checked without branches so that the compiler can vectorize.
constexpr std::int64_t block = 16384;

/// Whether a value is finite as a float32. For NaN the comparison is false.
template <class Real>
bool is_usable(Real value) noexcept {
  if constexpr (std::is_same_v<Real, sdk::Half>) {
    return (value.bits & 0x7C00U) != 0x7C00U;
  } else {
    return std::abs(value) <= static_cast<Real>(FLT_MAX);
  }
}

/// The index of the first unusable value in [begin, end); `end` if there is none. Stops early once `ends` is true.
template <class Real>
std::int64_t first_bad(const NpyArray& array, std::int64_t begin, std::int64_t end, const std::atomic<bool>& ends) {
  std::vector<Real> values(static_cast<std::size_t>(std::min(block, end - begin)));
  for (std::int64_t from = begin; from < end && !ends; from += block) {
    const std::span<Real> part = std::span(values).first(static_cast<std::size_t>(std::min(block, end - from)));
    array.read_bytes(from, std::as_writable_bytes(part));
    int bad = 0;
    for (const Real value : part) {
      bad |= is_usable(value) ? 0 : 1;
    }
    if (bad != 0) {
      return from + (std::ranges::find_if_not(part, is_usable<Real>) - part.begin());
    }
  }
  return end;
}

/// The index of an array's first unusable value; the number of elements if there is none. Each thread reads consecutive
/// values, which is the fastest order for files.
template <class Real>
std::int64_t first_bad_of_all(const NpyArray& array, int threads) {
  constexpr std::int64_t worth_a_thread = std::int64_t{1} << 20U;
  const std::int64_t count = array.elements();
  const std::int64_t parts = std::clamp<std::int64_t>(count / worth_a_thread, 1, std::max(threads, 1));
  std::vector<std::int64_t> found(static_cast<std::size_t>(parts), count);
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(parts));
  std::atomic<bool> ends = false;
  const auto search = [&](std::int64_t part) {
    const auto p = static_cast<std::size_t>(part);
    const std::int64_t end = count / parts * (part + 1) + (part + 1 == parts ? count % parts : 0);
    try {
      // Each thread works in pieces, and checks before each of them whether the process should stop.
      for (std::int64_t begin = count / parts * part; begin < end && !ends; begin += worth_a_thread) {
        stop_point();
        const std::int64_t last = std::min(begin + worth_a_thread, end);
        if (const std::int64_t bad = first_bad<Real>(array, begin, last, ends); bad < last && !ends) {
          found[p] = bad;
          return;
        }
      }
    } catch (...) {
      failures[p] = std::current_exception();
      ends = true;
    }
  };
  {
    std::vector<std::jthread> others;
    for (std::int64_t part = 1; part < parts; ++part) {
      others.emplace_back(search, part);
    }
    search(0);
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) {
      std::rethrow_exception(failure);
    }
  }
  return std::ranges::min(found);
}

/// The place of an element as text: "row 3", "row 3, column 17", or "row 3, at [2, 5]".
std::string place_of(const NpyArray& array, std::int64_t element) {
  const std::vector<std::int64_t>& shape = array.shape();
  std::vector<std::int64_t> index(shape.size());
  for (std::size_t d = shape.size(); d-- > 0;) {
    index[d] = element % shape[d];
    element /= shape[d];
  }
  if (index.empty()) {
    return "its only element";
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
  const std::int64_t bad = first_bad_of_all<Real>(array, threads);
  if (bad == array.elements()) {
    return;
  }
  Real stored{};
  array.read_bytes(bad, std::as_writable_bytes(std::span(&stored, 1)));
  const auto value = [&] {
    if constexpr (std::is_same_v<Real, sdk::Half>) {
      return sdk::widen(stored);
    } else {
      return stored;
    }
  }();
  const std::string found = std::isnan(value)   ? "NaN"
                            : std::isinf(value) ? (value > 0 ? "Inf" : "-Inf")
                                                : fmt::format("{}, which float32 cannot hold", value);
  throw Error(ErrorCode::data, fmt::format("'{}' has {} in {} (counted from 0): a job needs finite numbers; remove "
                                           "such rows, or put numbers there (numpy.isfinite finds them)",
                                           array.path().native(), found, place_of(array, bad)));
}

}  // namespace

void require_finite(const NpyArray& array, int threads) {
  if (array.type() == NpyType::f16) {
    require_usable<sdk::Half>(array, threads);
  } else if (array.type() == NpyType::f32) {
    require_usable<float>(array, threads);
  } else if (array.type() == NpyType::f64) {
    require_usable<double>(array, threads);
  }
}

}  // namespace shardrun::data
