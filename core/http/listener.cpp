#include "core/http/listener.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <type_traits>
#include <utility>

namespace shardrun::http {

using boost::system::error_code;

namespace {

/// The pause after a client could not be accepted, for example because too many files are open.
constexpr std::chrono::milliseconds accept_pause{50};

}  // namespace

Listener::Listener(boost::asio::io_context& io, std::function<bool()> has_room,
                   std::function<void(Socket socket, std::string peer)> accepted)
    : io_(io),
      has_room_(std::move(has_room)),
      accepted_(std::move(accepted)),
      acceptor_(Tcp::acceptor(io)),
      again_(io) {}

Listener::~Listener() {
  struct stat now = {};
  if (!path_.empty() && ::lstat(path_.c_str(), &now) == 0 && now.st_dev == made_.st_dev && now.st_ino == made_.st_ino) {
    ::unlink(path_.c_str());
  }
}

template <typename Protocol>
void Listener::listen(const typename Protocol::endpoint& endpoint) {
  auto& acceptor = acceptor_.emplace<typename Protocol::acceptor>(io_);
  acceptor.open(endpoint.protocol());
  ::fcntl(acceptor.native_handle(), F_SETFD, FD_CLOEXEC);
  if constexpr (std::is_same_v<Protocol, Tcp>) {
    acceptor.set_option(Tcp::acceptor::reuse_address(true));
  } else {
    ::fchmod(acceptor.native_handle(), 0600);  // the file that bind() makes gets the socket's mode
  }
  acceptor.bind(endpoint);
  acceptor.listen();
}

boost::asio::ip::tcp::endpoint Listener::open(const boost::asio::ip::tcp::endpoint& endpoint) {
  listen<Tcp>(endpoint);
  return std::get<Tcp::acceptor>(acceptor_).local_endpoint();
}

void Listener::open(const std::filesystem::path& socket) {
  struct stat status = {};
  if (::lstat(socket.c_str(), &status) == 0 && S_ISSOCK(status.st_mode)) {
    Local::socket probe(io_);
    error_code failed;
    probe.connect(Local::endpoint(socket.string()), failed);
    if (failed == boost::asio::error::connection_refused) {
      ::unlink(socket.c_str());
    }
  }
  listen<Local>(Local::endpoint(socket.string()));
  path_ = socket;
  ::lstat(path_.c_str(), &made_);
}

void Listener::accept() {
  const bool is_open = std::visit([](const auto& acceptor) { return acceptor.is_open(); }, acceptor_);
  if (!is_open || is_accepting_ || !has_room_()) {
    return;
  }
  is_accepting_ = true;
  std::visit(
      [this](auto& acceptor) {
        acceptor.async_accept([this](error_code failed, auto socket) {
          is_accepting_ = false;
          if (failed == boost::asio::error::operation_aborted) {
            return;
          }
          if (failed) {
            again_.expires_after(accept_pause);
            return again_.async_wait([this](error_code stopped) {
              if (!stopped) {
                accept();
              }
            });
          }
          ::fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
          std::string peer = "unix";
          if constexpr (std::is_same_v<decltype(socket), Tcp::socket>) {
            const Tcp::endpoint from = socket.remote_endpoint(failed);
            peer = failed ? "?" : from.address().to_string();
            socket.set_option(Tcp::no_delay(true), failed);
          }
          accepted_(std::move(socket), std::move(peer));
          accept();
        });
      },
      acceptor_);
}

void Listener::close() {
  again_.cancel();
  error_code ignored;
  std::visit([&](auto& acceptor) { acceptor.close(ignored); }, acceptor_);
}

}  // namespace shardrun::http
