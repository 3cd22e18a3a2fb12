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

/// A connected socket that sends and receives frames. Functions and callbacks are called only on the thread that runs
/// the io_context.
class FrameConnection : public std::enable_shared_from_this<FrameConnection> {
 public:
  struct Events {
    std::function<void(FrameType, std::string_view payload)> frame;
    std::function<void(const std::string& why)> closed;  ///< called once, unless close() was called before
  };

  /// `max_bytes`: the longest frame to accept, not counting encryption.
  FrameConnection(boost::asio::ip::tcp::socket socket, std::size_t max_bytes);

  /// Starts to read. A ProtocolError thrown by `events.frame` closes the connection with the error's message. Any other
  /// exception leaves the io_context's run(). The callbacks must not own the connection.
  void start(Events events);

  /// Replaces the callbacks, from the frame after the one whose callback calls this.
  void restart(Events events) { next_events_ = std::move(events); }

  /// Encrypts every frame sent from now on, and decrypts every frame received after the one whose callback calls this.
  /// A frame that does not decrypt closes the connection.
  void seal(const Digest& outgoing, const Digest& incoming);

  void set_max_bytes(std::size_t max_bytes) { max_bytes_ = max_bytes; }

  /// Sends a frame after all earlier ones. `written` is called when the kernel has taken the frame, or when it is clear
  /// that the peer is gone. A lost peer is reported only by `closed`, after everything that it sent was read.
  void send(std::string frame, std::function<void()> written = {});

  /// Closes the connection. No callback is called afterwards.
  void close();

  /// Whether the peer has sent at least the header of a frame.
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
  std::optional<Cipher> sealing_;  ///< for frames to send
  std::optional<Cipher> opening_;  ///< for received frames
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

/// Sets close-on-exec, so that programs started by this process do not inherit the descriptor. Asio's sockets lack it.
void close_on_exec(int descriptor);

}  // namespace shardrun::launch
