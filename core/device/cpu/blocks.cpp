#include "core/device/cpu/blocks.h"

#include "core/device/cpu/vec.h"

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {

extern const BlockLoops loops_of_blocks;

namespace {

Reals bfloats(const void* data) { return {static_cast<std::byte*>(const_cast<void*>(data)), true}; }

void widen_block(const void* from, std::int64_t from_stride, float* to, std::int64_t to_stride, std::int64_t rows,
                 std::int64_t columns) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const Reals from_row = bfloats(from) + r * from_stride;
    float* to_row = to + r * to_stride;
    vectors(0, columns, [=](auto at) { store(to_row, at, load(from_row, at)); });
  }
}

void narrow_block(const float* from, std::int64_t from_stride, void* to, std::int64_t to_stride, std::int64_t rows,
                  std::int64_t columns, bool add) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* from_row = from + r * from_stride;
    const Reals to_row = bfloats(to) + r * to_stride;
    if (add) {
      vectors(0, columns, [=](auto at) { store(to_row, at, load(to_row, at) + load(from_row, at)); });
    } else {
      vectors(0, columns, [=](auto at) { store(to_row, at, load(from_row, at)); });
    }
  }
}

}  // namespace

constinit const BlockLoops loops_of_blocks = {widen_block, narrow_block};

}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT
