#pragma once

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/launch/cipher.h"
#include "core/launch/protocol.h"

namespace shardrun::launch {

/// A connected socket that speaks frames. All functions and callbacks belong to the thread that runs its io_context.
class FrameConnection : public std::enable_shared_from_this<FrameConnection> {
 public:
  struct Events {
    std::function<void(FrameType, std::string_view payload)> frame;
    std::function<void(const std::string& why)> closed;  ///< once, unless close() came first
  };

  /// `max_bytes` bounds the length of the frames that are accepted, before they are sealed.
  FrameConnection(boost::asio::ip::tcp::socket socket, std::size_t max_bytes);

  /// Begins to read. A ProtocolError thrown by `events.frame` ends the connection with its message; all else comes out
  /// of the io_context's run(). What the callbacks hold must not own the connection.
  void start(Events events);

  /// The same from another frame on: the one after that whose callback calls this.
  void restart(Events events) { next_events_ = std::move(events); }

  /// From here on frames are sealed: those that are sent after this, and those that are read after the one whose
  /// callback calls this. One that does not open ends the connection.
  void seal(const Digest& outgoing, const Digest& incoming);

  void set_max_bytes(std::size_t max_bytes) { max_bytes_ = max_bytes; }

  /// Sends after all that was sent before. `written` is called once the kernel has it, or it is clear that the peer is
  /// gone: that is told by `closed` alone, after everything that the peer has still said was read.
  void send(std::string frame, std::function<void()> written = {});

  /// No event comes after this.
  void close();

  /// Whether the other end has said as much as a frame begins with.
  [[nodiscard]] bool has_heard() const { return has_heard_; }
  [[nodiscard]] std::size_t unsent_bytes() const { return unsent_bytes_; }

 private:
  void read_header();
  void read_body(std::size_t length);
  void deliver();
  [[nodiscard]] std::size_t seal_bytes() const { return opening_ ? Cipher::tag_bytes : 0; }
  void ended(const std::string& why);
  void write_front();

  boost::asio::ip::tcp::socket socket_;
  std::size_t max_bytes_;
  Events events_;
  std::optional<Events> next_events_;
  std::optional<Cipher> sealing_;  ///< what is sent
  std::optional<Cipher> opening_;  ///< what is read
  bool open_ = true;
  std::array<char, frame_header_bytes> header_ = {};
  std::string body_;

  struct Outgoing {
    std::string frame;
    std::function<void()> written;
  };
  std::deque<Outgoing> outgoing_;
  std::size_t unsent_bytes_ = 0;
  bool peer_gone_ = false;
  bool has_heard_ = false;
};

/// Keeps a descriptor from programs that this process starts: Asio's sockets are inheritable.
void close_on_exec(int descriptor);

}  // namespace shardrun::launch
