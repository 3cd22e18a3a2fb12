#pragma once

#include <cstdint>

#include "core/base/on_device.h"
#include "core/device/device.h"

namespace shardrun::device {

/// Finds a sequence's rows in pages [pages, heads, page, head_dim]. table: [batch, of_sequence], the numbers of pages.
struct Paging {
  std::int64_t pages;
  std::int64_t heads;
  std::int64_t page;  ///< positions on a page
  std::int64_t width;
  std::int64_t of_sequence;  ///< pages that the table lists for a sequence
  const std::int32_t* table;

  /// The number of positions that a sequence has room for.
  [[nodiscard, gnu::always_inline]] SHARDRUN_ON_BOTH std::int64_t room() const { return of_sequence * page; }
  /// The index in `pages` of the first element of this position's row; -1 if the position is on no page.
  [[nodiscard, gnu::always_inline]] SHARDRUN_ON_BOTH std::int64_t row(std::int64_t sequence, std::int64_t position,
                                                                      std::int64_t head) const {
    if (position < 0 || position >= room()) {
      return -1;
    }
    const std::int64_t number = table[sequence * of_sequence + position / page];
    return number < 0 || number >= pages ? -1 : ((number * heads + head) * page + position % page) * width;
  }
};

[[nodiscard, gnu::always_inline]] inline Paging paging_of(const TensorView& pages, const TensorView& table) {
  return {.pages = pages.shape[0],
          .heads = pages.shape[1],
          .page = pages.shape[2],
          .width = pages.shape[3],
          .of_sequence = table.shape[1],
          .table = static_cast<const std::int32_t*>(table.data)};
}

/// The positions [first, last) that a query sees.
struct Sight {
  std::int64_t first;
  std::int64_t last;
};

/// A query sees its own position and those before it, at most `window` of them (0: all), within `room`.
[[nodiscard, gnu::always_inline]] SHARDRUN_ON_BOTH inline Sight sight_of(std::int64_t position, std::int64_t window,
                                                                         std::int64_t room) {
  const std::int64_t last = position < room ? position + 1 : room;
  const std::int64_t first = window > 0 && position >= window ? position - window + 1 : 0;
  return first < last ? Sight{first, last} : Sight{0, 0};
}

}  // namespace shardrun::device
