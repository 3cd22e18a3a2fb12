#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "transports/gloo/full_mesh.h"

namespace shardrun::gloo_transport {

/// Messages of at most this size are eager: sent at once, into memory whose receive is always posted. A longer message
/// waits for the receiver to post its receive.
constexpr std::size_t eager_bytes = 8192;

/// What precedes a message's bytes.
struct EagerHeader {
  std::uint64_t id = 0;     ///< of a send; of a collective, its serial
  std::uint64_t bytes = 0;  ///< of the message; they follow the header where they are at most eager_bytes
  std::uint64_t slot = 0;   ///< of a longer message of a send: Gloo's slot for its bytes
  std::uint64_t reserved = 0;
};

/// A header and the bytes of an eager message.
struct alignas(64) EagerMessage {
  EagerHeader header;
  std::byte bytes[eager_bytes];
};

/// Receives eager messages from one member on one channel, in order.
class EagerReceiver {
 public:
  /// `depth` messages can arrive before the first is read.
  EagerReceiver(FullMesh& mesh, std::uint32_t peer, Channel channel, std::size_t depth);

  /// Waits for the next message. It stays valid until the next call of `recycle`.
  [[nodiscard]] const EagerMessage& next();
  /// Posts a receive again for each message that has been read. Ignores a broken connection: `next` reports it.
  void recycle();

 private:
  struct Slot {
    std::unique_ptr<EagerMessage> message;
    GlooBuffer buffer;  // destroyed before the memory that it uses
  };

  void post(Slot& slot);

  FullMesh& mesh_;
  std::uint32_t peer_;
  Channel channel_;
  std::vector<Slot> slots_;
  std::uint64_t read_ = 0;
  std::uint64_t recycled_ = 0;
};

/// Sends eager messages to one member, one at a time, from one buffer.
class EagerSender {
 public:
  EagerSender(FullMesh& mesh, std::uint32_t peer, Channel channel);

  /// The next message, to be filled in. Waits until the previous one has been sent.
  [[nodiscard]] EagerMessage& compose();
  /// Sends the header, and the bytes where they are at most eager_bytes.
  void send();
  void wait();

 private:
  FullMesh& mesh_;
  std::uint32_t peer_;
  Channel channel_;
  std::unique_ptr<EagerMessage> message_;
  GlooBuffer buffer_;  // destroyed before the memory that it uses
  bool is_under_way_ = false;
};

/// A Value for each other member.
template <class Value>
class PerPeer {
 public:
  template <class... Args>
  PerPeer(FullMesh& mesh, const Args&... args) : values_(mesh.size()) {
    for (std::uint32_t peer = 0; peer < mesh.size(); ++peer) {
      if (peer != mesh.rank()) {
        values_[peer] = std::make_unique<Value>(mesh, peer, args...);
      }
    }
  }

  [[nodiscard]] Value& operator[](std::uint32_t peer) noexcept { return *values_[peer]; }

 private:
  std::vector<std::unique_ptr<Value>> values_;
};

/// Throws TransportError{SR_INVALID} where the header does not match.
void require_message(const FullMesh& mesh, std::uint32_t peer, const EagerHeader& header, std::uint64_t id,
                     std::uint64_t bytes);

}  // namespace shardrun::gloo_transport
