#pragma once

#include <sys/stat.h>

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <filesystem>
#include <functional>
#include <string>
#include <variant>

namespace shardrun::http {

/// Accepts clients at a TCP port or a Unix socket. Used only on the io_context's thread.
class Listener {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;

  /// `has_room`: whether a client can be accepted now. `accepted`: called with each. `peer`: its IP address, or "unix".
  Listener(boost::asio::io_context& io, std::function<bool()> has_room,
           std::function<void(Socket socket, std::string peer)> accepted);
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  /// Removes the Unix socket, unless another server has replaced it.
  ~Listener();

  /// Listens at `endpoint`, or at any free port if its port is 0. Returns the endpoint. Throws boost's system_error.
  boost::asio::ip::tcp::endpoint open(const boost::asio::ip::tcp::endpoint& endpoint);
  /// Listens at a Unix socket that only this user can open. Replaces one that a dead server has left. Throws as above.
  void open(const std::filesystem::path& socket);
  /// Accepts clients while there is room. Call it again when there is room after there was none.
  void accept();
  void close();

 private:
  using Tcp = boost::asio::ip::tcp;
  using Local = boost::asio::local::stream_protocol;

  template <typename Protocol>
  void listen(const typename Protocol::endpoint& endpoint);

  boost::asio::io_context& io_;
  std::function<bool()> has_room_;
  std::function<void(Socket socket, std::string peer)> accepted_;
  std::variant<Tcp::acceptor, Local::acceptor> acceptor_;
  boost::asio::steady_timer again_;
  bool is_accepting_ = false;
  std::filesystem::path path_;  ///< the path of the Unix socket
  struct stat made_ = {};       ///< the status of the socket's file when it was made
};

}  // namespace shardrun::http
