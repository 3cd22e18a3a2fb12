#include "core/files/hash.h"

#define XXH_INLINE_ALL
#if defined(SHARDRUN_ASAN) || defined(SHARDRUN_TSAN)
#define XXH_NO_INLINE_HINTS 1  // sanitizer builds do not inline all that the header demands
#endif
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>

namespace shardrun::files {

std::string to_string(const Hash& hash) { return fmt::format("{:016x}{:016x}", hash.high, hash.low); }

std::optional<Hash> parse_hash(std::string_view text) noexcept {
  constexpr std::size_t half = 16;
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (text.size() != 2 * half || !std::ranges::all_of(text, is_digit)) {
    return std::nullopt;
  }
  Hash hash;
  std::from_chars(text.data(), text.data() + half, hash.high, 16);
  std::from_chars(text.data() + half, text.data() + text.size(), hash.low, 16);
  return hash;
}

struct Hasher::State {
  XXH3_state_t xxh;
};

Hasher::Hasher() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh); }

Hasher::~Hasher() = default;

void Hasher::add(std::span<const std::byte> bytes) noexcept {
  XXH3_128bits_update(&state_->xxh, bytes.data(), bytes.size());
}

Hash Hasher::hash() const noexcept {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh);
  return {.high = hash.high64, .low = hash.low64};
}

Hash hash_of(std::string_view text) {
  Hasher hasher;
  hasher.add(std::as_bytes(std::span(text)));
  return hasher.hash();
}

}  // namespace shardrun::files
