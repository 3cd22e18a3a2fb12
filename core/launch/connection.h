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

#include "core/launch/protocol.h"
#include "core/launch/tls.h"

namespace shardrun::launch {

/// A connected socket that sends and receives frames over TLS. Functions and callbacks are called only on the thread
/// that runs the io_context, so no two threads use one TLS object at once.
class FrameConnection : public std::enable_shared_from_this<FrameConnection> {
 public:
  struct Events {
    std::function<void()> proved = {};  ///< both ends have proved that they know the token; may be empty
    std::function<void(FrameType, std::string_view payload)> frame;
    std::function<void(const std::string& why)> closed;  ///< called once, unless close() was called before
  };

  /// `tls`: the settings of this end, the client's or the server's. Throws Error{internal} if OpenSSL fails.
  FrameConnection(boost::asio::ip::tcp::socket socket, const TlsContext& tls);

  /// Starts the handshake, and then reads frames. A ProtocolError thrown by `events.frame` closes the connection with
  /// the error's message. Any other exception leaves the io_context's run(). The callbacks must not own the connection.
  void start(Events events);

  /// Replaces the callbacks. The event whose callback calls this still uses the old ones.
  void restart(Events events) { next_events_ = std::move(events); }

  /// Sends a frame after all earlier ones. `written` is called when the kernel has taken the frame, or when it is clear
  /// that the peer is gone. A lost peer is reported only by `closed`, after everything that it sent has been read.
  /// REQUIRES: both ends have proved that they know the token.
  void send(const std::string& frame, std::function<void()> written = {});

  /// Closes the connection. No callback is called afterwards.
  void close();

  /// Whether the peer has sent anything.
  [[nodiscard]] bool has_heard() const { return has_heard_; }
  [[nodiscard]] bool has_proved() const { return tls_.has_proved(); }

 private:
  void read();
  void take(std::size_t size);
  void deliver();
  void call(const std::function<void()>& callback);
  void ended(const std::string& why);
  void transmit(std::function<void()> written);
  void write_front();

  boost::asio::ip::tcp::socket socket_;
  Tls tls_;
  Events events_;
  std::optional<Events> next_events_;
  bool open_ = true;
  std::array<char, std::size_t{16}* 1024> read_ = {};
  std::string received_;  ///< bytes of frames that are not complete or not delivered yet

  struct Outgoing {
    std::string bytes;
    std::function<void()> written;
  };
  std::deque<Outgoing> outgoing_;
  bool peer_gone_ = false;
  bool has_heard_ = false;
};

/// Sets close-on-exec, so that programs started by this process do not inherit the descriptor. Asio's sockets lack it.
void close_on_exec(int descriptor);

}  // namespace shardrun::launch
