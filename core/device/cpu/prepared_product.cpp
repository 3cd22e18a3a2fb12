#include "core/device/cpu/prepared_product.h"

#include <algorithm>

#include "core/device/cpu/blocks.h"
#include "core/device/cpu/few_rows.h"
#include "core/device/cpu/sgemm.h"

namespace shardrun::device::cpu {
namespace {

// A block is so large that converting it takes little time compared with multiplying it.
constexpr std::int64_t most_rows = 384;
constexpr std::int64_t most_columns = 768;
constexpr std::int64_t most_depth = 256;

bool is_bfloat(const Operand& operand) { return operand.dtype == graph::DType::bf16; }
bool is_narrow(const Operand& operand) { return operand.dtype != graph::DType::f32; }

/// Floats of scratch for the blocks of one tile.
struct Room {
  std::int64_t a;
  std::int64_t b;
  std::int64_t c;

  [[nodiscard]] std::int64_t floats() const { return a + b + c; }
};
Room room_for(const Product& tile) {
  const std::int64_t m = std::min(tile.m, most_rows);
  const std::int64_t n = std::min(tile.n, most_columns);
  const std::int64_t k = std::min(tile.k, most_depth);
  return {is_narrow(tile.a) ? m * k : 0, is_narrow(tile.b) ? k * n : 0, is_bfloat(tile.c) ? m * n : 0};
}

/// Floats of scratch per thread, enough for the largest tile.
std::int64_t share_of(const Tiles& tiles, const Product& product) {
  std::int64_t most = 0;
  for (std::int64_t number = 0; number < tiles.count; ++number) {
    most = std::max(most, room_for(tiles.tile(product, number)).floats());
  }
  return most;
}

/// Returns a block of an operand as float32, in place or widened in `room`.
Matrix widened(const Operand& block, std::int64_t rows, std::int64_t columns, float* room, const BlockLoops& loops) {
  if (!is_narrow(block)) {
    return {block.floats(), block.stride, block.transposed};
  }
  const std::int64_t stored_rows = block.transposed ? columns : rows;
  const std::int64_t stored_columns = block.transposed ? rows : columns;
  loops.widen(block.data, !is_bfloat(block), block.stride, room, stored_columns, stored_rows, stored_columns);
  return {room, stored_columns, block.transposed};
}

/// Computes one block of c over all of k, a part of k at a time.
void multiply_block(const Product& p, const Room& room, bool accumulate, float* scratch, const BlockLoops& loops) {
  float* c = is_bfloat(p.c) ? scratch + room.a + room.b : p.c.floats();
  const std::int64_t c_stride = is_bfloat(p.c) ? p.n : p.c.stride;
  const bool add_to_c = accumulate && !is_bfloat(p.c);
  for (std::int64_t begin = 0; begin == 0 || begin < p.k; begin += most_depth) {
    const std::int64_t depth = std::min(most_depth, p.k - begin);
    const Matrix a = widened(p.a.from(0, begin), p.m, depth, scratch, loops);
    const Matrix b = widened(p.b.from(begin, 0), depth, p.n, scratch + room.a, loops);
    sgemm(p.m, p.n, depth, 1, a, b, c, c_stride, begin > 0 || add_to_c);
  }
  if (is_bfloat(p.c)) {
    loops.narrow(c, c_stride, p.c.data, p.c.stride, p.m, p.n, accumulate);
  }
}

/// c = a b, plus c if `accumulate`, for any types of operands and result. Blocks of 16-bit operands are widened in
/// scratch and multiplied in float32; each result is rounded once.
void multiply_widened(const Product& product, bool accumulate, Threads& threads, std::byte* scratch) {
  const Tiles tiles = sgemm_tiles(product.m, product.n, product.k);
  const BlockLoops& loops = block_loops();
  const std::int64_t share = share_of(tiles, product);
  tiles.run(threads, [&](std::int64_t number, int part) {
    const Product tile = tiles.tile(product, number);
    float* room = reinterpret_cast<float*>(scratch) + part * share;
    for (std::int64_t column = 0; column < tile.n; column += most_columns) {
      for (std::int64_t row = 0; row < tile.m; row += most_rows) {
        const Product block =
            tile.tile(row, column, std::min(most_rows, tile.m - row), std::min(most_columns, tile.n - column));
        multiply_block(block, room_for(tile), accumulate, room, loops);
      }
    }
  });
}

/// Bytes of scratch for each thread that computes a part of the product's tiles (`sgemm_tiles`).
std::size_t widened_scratch_bytes(const Product& product) {
  const Tiles tiles = sgemm_tiles(product.m, product.n, product.k);
  return static_cast<std::size_t>(share_of(tiles, product)) * sizeof(float);
}

}  // namespace

bool in_floats(const Product& p) noexcept {
  return p.a.dtype == graph::DType::f32 && p.b.dtype == graph::DType::f32 && p.c.dtype == graph::DType::f32;
}

void multiply_floats(const Product& product, bool accumulate, Threads& threads) {
  const Tiles tiles = sgemm_tiles(product.m, product.n, product.k);
  tiles.run(threads, [&](std::int64_t number, int) {
    const Product p = tiles.tile(product, number);
    sgemm(p.m, p.n, p.k, 1, {p.a.floats(), p.a.stride, p.a.transposed}, {p.b.floats(), p.b.stride, p.b.transposed},
          p.c.floats(), p.c.stride, accumulate);
  });
}

void touch_pages(std::byte* scratch, std::size_t bytes) noexcept {
  constexpr std::size_t page = 4096;
  for (std::size_t at = 0; at < bytes; at += page) {
    scratch[at] = std::byte{0};
  }
  if (bytes > 0) {
    scratch[bytes - 1] = std::byte{0};
  }
}

PreparedProduct::PreparedProduct(const Product& product)
    : few_rows_(has_few_rows(product)),
      floats_(in_floats(product)),
      tiles_(bf16_tiles(product.m, product.n, product.k)) {
  for (std::int64_t number = 0; !few_rows_ && !floats_ && number < tiles_.count; ++number) {
    const Product tile = tiles_.tile(product, number);
    const Forms forms = {bf16_product(tile, false), bf16_product(tile, true)};
    if (forms.overwriting == nullptr) {
      forms_.clear();
      tiles_ = sgemm_tiles(product.m, product.n, product.k);
      share_ = widened_scratch_bytes(product);
      return;
    }
    forms_.push_back(forms);
    const std::size_t most = std::max(forms.overwriting->scratch_bytes(), forms.adding->scratch_bytes());
    share_ = std::max(share_, (most + 63) / 64 * 64);
  }
}

std::size_t PreparedProduct::scratch_bytes(int threads) const {
  return static_cast<std::size_t>(tiles_.parts(threads)) * share_;
}

void PreparedProduct::run(const Product& product, bool accumulate, Threads& threads, std::byte* scratch) {
  if (!touched_) {
    threads.run(tiles_.parts(threads.count()),
                [&](int part) { touch_pages(scratch + static_cast<std::size_t>(part) * share_, share_); });
    touched_ = true;
  }
  multiply(product, accumulate, threads, scratch);
}

void PreparedProduct::run_alone(const Product& product, bool accumulate, std::byte* scratch) const {
  Threads alone(1);
  multiply(product, accumulate, alone, scratch);
}

void PreparedProduct::multiply(const Product& product, bool accumulate, Threads& threads, std::byte* scratch) const {
  if (few_rows_) {
    multiply_few_rows(product, accumulate, threads);
    return;
  }
  if (floats_) {
    multiply_floats(product, accumulate, threads);
    return;
  }
  if (forms_.empty()) {
    multiply_widened(product, accumulate, threads, scratch);
    return;
  }
  tiles_.run(threads, [&](std::int64_t number, int part) {
    const Forms& forms = forms_[static_cast<std::size_t>(number)];
    const Bf16Product& form = accumulate ? *forms.adding : *forms.overwriting;
    form.run(tiles_.tile(product, number), scratch + static_cast<std::size_t>(part) * share_);
  });
}

}  // namespace shardrun::device::cpu
