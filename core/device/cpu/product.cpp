#include "core/device/cpu/product.h"

namespace shardrun::device::cpu {
namespace {

std::int64_t tile_count(std::int64_t m, std::int64_t n, std::int64_t k) noexcept {
  constexpr double worth_a_tile = 1 << 20;    // floating-point operations: about 15 µs
  constexpr double repacking_limit = 0.0037;  // up to this value of 1/m + 1/n oneDNN repacks operands, which is faster
  constexpr std::int64_t narrowest = 192;
  constexpr std::int64_t most = 64;
  constexpr double small = 0.2e9;  // floating-point operations below which repacking saves more time than threads
  const std::int64_t longer = std::max(m, n);
  const std::int64_t shorter = std::min(m, n);
  const double by_work = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) / worth_a_tile;
  const double room = repacking_limit - 1.0 / static_cast<double>(shorter);
  const auto repacked = room > 0 ? static_cast<std::int64_t>(1.0 / room) + 1 : longer;
  std::int64_t width = std::max<std::int64_t>(repacked, 2 * narrowest);
  if (width > longer / 2) {
    const bool repacked_whole = 1.0 / static_cast<double>(m) + 1.0 / static_cast<double>(n) <= repacking_limit;
    if (repacked_whole && by_work * worth_a_tile < small) {
      return 1;
    }
    width = narrowest;
  }
  const auto by_size = std::clamp<std::int64_t>(longer / width, 1, most);
  return by_work < static_cast<double>(by_size) ? std::max<std::int64_t>(1, static_cast<std::int64_t>(by_work))
                                                : by_size;
}

}  // namespace

Tiles sgemm_tiles(std::int64_t m, std::int64_t n, std::int64_t k) noexcept {
  constexpr std::int64_t unit = 48;  // a multiple of every micro-kernel's width and height
  return {m == 0 || n == 0 ? 1 : tile_count(m, n, k), unit};
}

Tiles bf16_tiles(std::int64_t m, std::int64_t n, std::int64_t k) noexcept {
  constexpr std::int64_t unit = 64;  // a multiple of the micro-kernels' width
  constexpr std::int64_t narrowest = 128;
  constexpr std::int64_t most = 64;
  constexpr double worth_a_tile = 4 << 20;  // floating-point operations: about 10 µs
  const double by_work = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) / worth_a_tile;
  const std::int64_t by_size = std::min(most, std::max(m, n) / narrowest);
  std::int64_t count = 1;
  while (2 * count <= by_size && 2 * static_cast<double>(count) <= by_work) {
    count *= 2;  // a power of two, so that usual numbers of threads divide it
  }
  return {count, unit};
}

}  // namespace shardrun::device::cpu
