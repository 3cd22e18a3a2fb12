#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "transports/gloo/keys.h"

namespace shardrun::gloo_transport {

using Tag = std::array<std::uint8_t, 16>;
using Nonce = std::array<std::uint8_t, 12>;

/// AES-128-GCM and GMAC (NIST SP 800-38D) under one key. A nonce must never seal twice.
///
/// Implemented by Intel's library for IPsec if it was found at build time. That library uses the processor's 512-bit
/// AES and carry-less products, and is about three times as fast as OpenSSL 3.0. Otherwise by OpenSSL. Both give the
/// same bytes. One thread at a time uses an object. All functions throw std::runtime_error if the library fails.
class Gcm {
 public:
  /// Uses the first half of the key.
  explicit Gcm(const Key& key);
  ~Gcm();
  Gcm(const Gcm&) = delete;
  Gcm& operator=(const Gcm&) = delete;

  /// The tag of `bytes` bytes. Writes them encrypted to `sealed`, which may be `plain`. Where `sealed` is null it only
  /// authenticates them.
  [[nodiscard]] Tag seal(const Nonce& nonce, const std::uint8_t* plain, std::size_t bytes, std::uint8_t* sealed);
  /// Whether the tag is right. Where `decrypts`, decrypts in place; the bytes are invalid where the tag is wrong.
  [[nodiscard]] bool open(const Nonce& nonce, std::uint8_t* data, std::size_t bytes, bool decrypts, const Tag& tag);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shardrun::gloo_transport
