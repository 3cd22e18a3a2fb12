#pragma once

#include <cstddef>
#include <cstdint>

#include "transports/gloo/gcm.h"
#include "transports/gloo/keys.h"

namespace shardrun::gloo_transport {

/// Most bytes of a record. Sealing one reads from the cache, and the kernel sends one while the next is sealed.
constexpr std::size_t record_bytes = std::size_t{128} << 10U;

/// The records of one direction of a connection, in order: the k-th that is opened has to be the k-th that was sealed,
/// of the same size. On the wire a record is only its bytes and its tag.
class Records {
 public:
  /// REQUIRES: not Protection::none; a key that no other object has sealed with. It and its functions throw as Gcm.
  Records(Protection protection, const Key& key);

  [[nodiscard]] Protection protection() const noexcept { return protection_; }
  /// Makes the tag of the next record. Protection::encrypt writes the encrypted bytes to `sealed`, which may be
  /// `plain`. Protection::integrity does not use `sealed`.
  [[nodiscard]] Tag seal(const std::uint8_t* plain, std::size_t bytes, std::uint8_t* sealed);
  /// Decrypts in place. Returns false where the tag is wrong; then the bytes are invalid.
  [[nodiscard]] bool open(std::uint8_t* data, std::size_t bytes, Tag tag);

 private:
  [[nodiscard]] Nonce next_nonce() noexcept;

  Protection protection_;
  std::uint64_t count_ = 0;  ///< records so far: the next nonce
  Gcm gcm_;
};

/// The bytes that tags add to `bytes`, which start with a new record.
[[nodiscard]] constexpr std::uint64_t bytes_of_tags(Protection protection, std::uint64_t bytes) noexcept {
  return protection == Protection::none ? 0 : sizeof(Tag) * ((bytes + record_bytes - 1) / record_bytes);
}

}  // namespace shardrun::gloo_transport
