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
/// Intel's library for IPsec computes them where it was found when this was built: it uses the processor's 512-bit AES
/// and carry-less products, which makes it about three times as fast as OpenSSL 3.0. Otherwise OpenSSL does. Both give
/// the same bytes. One object belongs to one thread at a time. All throw std::runtime_error where the library cannot.
class Gcm {
 public:
  /// The cipher takes the first half of the key.
  explicit Gcm(const Key& key);
  ~Gcm();
  Gcm(const Gcm&) = delete;
  Gcm& operator=(const Gcm&) = delete;

  /// The tag of `bytes` bytes. Where `sealed` is not null it gets them encrypted, and may be `plain` itself; where it
  /// is null they are only authenticated.
  [[nodiscard]] Tag seal(const Nonce& nonce, const std::uint8_t* plain, std::size_t bytes, std::uint8_t* sealed);
  /// Whether the tag fits. Where `decrypts`, the bytes are decrypted in place, and worth nothing where it does not fit.
  [[nodiscard]] bool open(const Nonce& nonce, std::uint8_t* data, std::size_t bytes, bool decrypts, const Tag& tag);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shardrun::gloo_transport
