#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace shardrun::files {

/// A 128-bit XXH3 hash. It detects accidental differences, but an attacker can construct collisions.
struct Hash {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  bool operator==(const Hash&) const = default;
};

/// The hash as 32 lower-case hexadecimal digits, as xxhsum -H128 prints it.
[[nodiscard]] std::string to_string(const Hash& hash);
/// Parses the text of to_string(); nothing for other texts.
[[nodiscard]] std::optional<Hash> parse_hash(std::string_view text) noexcept;

/// Hashes bytes that arrive in pieces.
class Hasher {
 public:
  Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;
  ~Hasher();

  void add(std::span<const std::byte> bytes) noexcept;
  /// The hash of all bytes so far.
  [[nodiscard]] Hash hash() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

[[nodiscard]] Hash hash_of(std::string_view text);

}  // namespace shardrun::files
