#include "transports/gloo/records.h"

namespace shardrun::gloo_transport {

Records::Records(Protection protection, const Key& key) : protection_(protection), gcm_(key) {}

/// A key belongs to one direction of one connection, so the count of its records is a nonce.
Nonce Records::next_nonce() noexcept {
  Nonce nonce = {};
  for (std::size_t i = 0; i < sizeof(count_); ++i) {
    nonce[4 + i] = static_cast<std::uint8_t>(count_ >> (8 * i));
  }
  ++count_;
  return nonce;
}

Tag Records::seal(const std::uint8_t* plain, std::size_t bytes, std::uint8_t* sealed) {
  return gcm_.seal(next_nonce(), plain, bytes, protection_ == Protection::encrypt ? sealed : nullptr);
}

bool Records::open(std::uint8_t* data, std::size_t bytes, Tag tag) {
  return gcm_.open(next_nonce(), data, bytes, protection_ == Protection::encrypt, tag);
}

}  // namespace shardrun::gloo_transport
