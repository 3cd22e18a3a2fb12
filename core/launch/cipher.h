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

/// Encrypts and authenticates the messages of one direction of a connection, in order (AES-256-GCM by OpenSSL). The
/// nonce is the message's number. So a message that was changed, repeated, left out or reordered does not open, nor
/// does any message after it. Each end has a Cipher with the same key. No other direction or connection may use that
/// key.
class Cipher {
 public:
  static constexpr std::size_t tag_bytes = 16;

  /// Throws Error{internal} if OpenSSL fails.
  explicit Cipher(const Digest& key);

  /// Encrypts the next message and appends its tag. `header` is authenticated too, but is not in the result.
  [[nodiscard]] std::string seal(std::string_view header, std::string_view message);

  /// Decrypts the next message of the other end; nothing if its tag is wrong.
  [[nodiscard]] std::optional<std::string> open(std::string_view header, std::string_view sealed);

 private:
  void begin_message(std::string_view header, int encrypt);

  struct FreeContext {
    void operator()(evp_cipher_ctx_st* context) const noexcept;
  };
  std::unique_ptr<evp_cipher_ctx_st, FreeContext> context_;
  Digest key_;
  std::uint64_t number_ = 0;  ///< the next message's number
};

}  // namespace shardrun::launch
