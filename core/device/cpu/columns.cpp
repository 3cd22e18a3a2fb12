#include "core/device/cpu/columns.h"

#include <algorithm>

namespace shardrun::device::cpu {

/// Writes what the tap reads at one line of positions. `line` is the line of the plane that it reads.
template <typename Element>
void Columns::write_line(const Element* line, std::int64_t tap, Element* to) const {
  const Taps& across = taps_[1];
  const std::int64_t base = tap * across.step + across.base;
  if (across.divisor > 1) {
    for (std::int64_t i = 0; i < across.count; ++i) {
      const std::int64_t from = across.at(i, tap);
      to[i] = from < 0 ? Element{0} : line[from];
    }
    return;
  }
  // Only positions [first, last) read elements of the line.
  const std::int64_t before = base >= 0 ? 0 : (-base + across.stride - 1) / across.stride;
  const std::int64_t first = std::min(before, across.count);
  const std::int64_t inside = across.held - base;
  const std::int64_t last =
      std::clamp(inside <= 0 ? 0 : (inside + across.stride - 1) / across.stride, first, across.count);
  std::fill(to, to + first, Element{0});
  if (across.stride == 1) {
    std::copy(line + (base + first), line + (base + last), to + first);
  } else {
    for (std::int64_t i = first; i < last; ++i) {
      to[i] = line[i * across.stride + base];
    }
  }
  std::fill(to + last, to + across.count, Element{0});
}

template <typename Element>
void Columns::write_as(const Element* planes, std::int64_t channels, RowRange rows, Element* matrix) const {
  const auto& [down, across] = taps_;
  for (std::int64_t c = 0; c < channels; ++c) {
    const Element* const plane = planes + c * down.held * across.held;
    for (std::int64_t k = 0; k < down.size; ++k) {
      for (std::int64_t l = 0; l < across.size; ++l) {
        for (std::int64_t row = rows.begin; row < rows.end; ++row, matrix += across.count) {
          const std::int64_t from = down.at(row, k);
          if (from < 0) {
            std::fill(matrix, matrix + across.count, Element{0});
          } else {
            write_line(plane + from * across.held, l, matrix);
          }
        }
      }
    }
  }
}

void Columns::write(const std::byte* planes, std::int64_t channels, RowRange rows, std::byte* matrix) const {
  if (bytes_ == sizeof(std::uint16_t)) {
    write_as(reinterpret_cast<const std::uint16_t*>(planes), channels, rows, reinterpret_cast<std::uint16_t*>(matrix));
  } else {
    write_as(reinterpret_cast<const std::uint32_t*>(planes), channels, rows, reinterpret_cast<std::uint32_t*>(matrix));
  }
}

}  // namespace shardrun::device::cpu
