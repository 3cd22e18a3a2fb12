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

/// Accepts clients at a TCP port or a Unix socket. Used on the io_context's thread.
class Listener {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;

  /// `has_room`: whether another client is accepted now. `accepted`: called with each. `peer`: its address, or "unix".
  Listener(boost::asio::io_context& io, std::function<bool()> has_room,
           std::function<void(Socket socket, std::string peer)> accepted);
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  /// Removes the Unix socket, unless another server has replaced it.
  ~Listener();

  /// Listens, at port 0 at any free one. Returns where. Throws boost::system::system_error.
  boost::asio::ip::tcp::endpoint open(const boost::asio::ip::tcp::endpoint& endpoint);
  /// Listens at a Unix socket that only this user may open. Replaces one that a dead server has left.
  void open(const std::filesystem::path& socket);
  /// Accepts clients while there is room. Called again when there is room after there was none.
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
  std::filesystem::path path_;  ///< of the Unix socket
  struct stat made_ = {};       ///< its file
};

}  // namespace shardrun::http
