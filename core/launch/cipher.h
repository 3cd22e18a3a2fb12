#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/launch/keys.h"

struct evp_cipher_ctx_st;

namespace shardrun::launch {

/// One direction of a connection: encrypts and authenticates one message after the other (AES-256-GCM, by OpenSSL). The
/// nonce is the number of the message, so a message that is changed, repeated, left out or moved does not open, nor
/// does any that follows it. Both ends have a Cipher of the same key, which no other direction or connection may have.
class Cipher {
 public:
  static constexpr std::size_t tag_bytes = 16;

  /// Throws Error{internal} where OpenSSL cannot.
  explicit Cipher(const Digest& key);

  /// The next message, encrypted, with its tag behind it. `header` is authenticated, and is not in the result.
  [[nodiscard]] std::string seal(std::string_view header, std::string_view message);

  /// The next message of the other end, or nothing where this is not it.
  [[nodiscard]] std::optional<std::string> open(std::string_view header, std::string_view sealed);

 private:
  void begin_message(std::string_view header, int encrypt);

  struct FreeContext {
    void operator()(evp_cipher_ctx_st* context) const noexcept;
  };
  std::unique_ptr<evp_cipher_ctx_st, FreeContext> context_;
  Digest key_;
  std::uint64_t number_ = 0;  ///< of the next message
};

}  // namespace shardrun::launch
