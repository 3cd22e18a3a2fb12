#include "core/device/cpu/prepared_product.h"

#include <algorithm>

#include "core/device/cpu/sgemm.h"
#include "core/device/cpu/widened_product.h"

namespace shardrun::device::cpu {

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
    : floats_(in_floats(product)), tiles_(bf16_tiles(product.m, product.n, product.k)) {
  for (std::int64_t number = 0; !floats_ && number < tiles_.count; ++number) {
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
