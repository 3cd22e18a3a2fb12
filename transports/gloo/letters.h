#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "transports/gloo/mesh.h"

namespace shardrun::gloo_transport {

/// Messages of at most this size are copied into memory whose receive was announced before: they travel at once, where
/// all others wait for the announcement of a receive to come from the other side.
constexpr std::size_t letter_bytes = 8192;

/// What stands before a letter's bytes.
struct LetterHead {
  std::uint64_t id = 0;     ///< of a send; the serial of a collective
  std::uint64_t bytes = 0;  ///< of the message, which follows the head where it is not longer than letter_bytes
  std::uint64_t slot = 0;   ///< of a longer one of a send: where it comes
  std::uint64_t reserved = 0;
};

/// Room for a letter.
struct alignas(64) Letter {
  LetterHead head;
  std::byte bytes[letter_bytes];
};

/// Letters from one member in one stream, in their order.
class Inbox {
 public:
  /// `depth` of them can arrive before the first is read.
  Inbox(Mesh& mesh, std::uint32_t peer, Stream stream, std::size_t depth);

  /// Waits for the next letter. It stays until the next call of `recycle`.
  [[nodiscard]] const Letter& next();
  /// Makes room for another letter where one has been read. A connection that has broken is left for `next` to find.
  void recycle();

 private:
  struct Slot {
    std::unique_ptr<Letter> letter;
    GlooBuffer buffer;  // after the memory that it touches
  };

  void post(Slot& slot);

  Mesh& mesh_;
  std::uint32_t peer_;
  Stream stream_;
  std::vector<Slot> slots_;
  std::uint64_t read_ = 0;
  std::uint64_t recycled_ = 0;
};

/// A letter to one member, filled in and sent again and again.
class Outgoing {
 public:
  Outgoing(Mesh& mesh, std::uint32_t peer, Stream stream);

  /// Room for the next letter; waits until the one before has left.
  [[nodiscard]] Letter& compose();
  /// Sends the head and as many bytes as it says.
  void send();
  void wait();

 private:
  Mesh& mesh_;
  std::uint32_t peer_;
  Stream stream_;
  std::unique_ptr<Letter> letter_;
  GlooBuffer buffer_;  // after the memory that it touches
  bool is_under_way_ = false;
};

/// One for each other member.
template <class Box>
class Boxes {
 public:
  template <class... Args>
  Boxes(Mesh& mesh, const Args&... args) : boxes_(mesh.size()) {
    for (std::uint32_t peer = 0; peer < mesh.size(); ++peer) {
      if (peer != mesh.rank()) {
        boxes_[peer] = std::make_unique<Box>(mesh, peer, args...);
      }
    }
  }

  [[nodiscard]] Box& operator[](std::uint32_t peer) noexcept { return *boxes_[peer]; }

 private:
  std::vector<std::unique_ptr<Box>> boxes_;
};

/// Throws TransportError{SR_INVALID} where a letter is not the expected one.
void require_letter(const Mesh& mesh, std::uint32_t peer, const LetterHead& head, std::uint64_t id,
                    std::uint64_t bytes);

}  // namespace shardrun::gloo_transport
