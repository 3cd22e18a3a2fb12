#include "core/http/stream.h"

#include <boost/asio/ssl/stream.hpp>
#include <utility>

namespace shardrun::http {
namespace {

using Socket = boost::asio::generic::stream_protocol::socket;

void close_socket(Socket& socket) {
  boost::system::error_code ignored;
  socket.close(ignored);
}

class PlainStream : public Stream {
 public:
  explicit PlainStream(Socket socket) : socket_(std::move(socket)) {}

  void handshake(Done done) override { done({}, 0); }
  void read_some(boost::asio::mutable_buffer buffer, Done done) override {
    socket_.async_read_some(buffer, std::move(done));
  }
  void write_some(boost::asio::const_buffer bytes, Done done) override {
    socket_.async_write_some(bytes, std::move(done));
  }
  void end_sending(bool /*client_sends*/, Done done) override {
    boost::system::error_code failed;
    socket_.shutdown(Socket::shutdown_send, failed);
    done(failed, 0);
  }
  void close() override { close_socket(socket_); }

 private:
  Socket socket_;
};

class TlsStream : public Stream {
 public:
  TlsStream(Socket socket, boost::asio::ssl::context& tls) : stream_(std::move(socket), tls) {}

  void handshake(Done done) override {
    stream_.async_handshake(boost::asio::ssl::stream_base::server,
                            [done = std::move(done)](boost::system::error_code failed) { done(failed, 0); });
  }
  void read_some(boost::asio::mutable_buffer buffer, Done done) override {
    stream_.async_read_some(buffer, std::move(done));
  }
  void write_some(boost::asio::const_buffer bytes, Done done) override {
    stream_.async_write_some(bytes, std::move(done));
  }
  void end_sending(bool client_sends, Done done) override {
    const auto end = [this, done = std::move(done)](boost::system::error_code failed) {
      boost::system::error_code ignored;
      stream_.next_layer().shutdown(Socket::shutdown_send, ignored);
      done(failed, 0);
    };
    if (client_sends) {
      return end({});
    }
    stream_.async_shutdown(end);
  }
  void close() override { close_socket(stream_.next_layer()); }

 private:
  boost::asio::ssl::stream<Socket> stream_;
};

}  // namespace

std::unique_ptr<Stream> make_stream(Socket socket, boost::asio::ssl::context* tls) {
  if (tls == nullptr) {
    return std::make_unique<PlainStream>(std::move(socket));
  }
  return std::make_unique<TlsStream>(std::move(socket), *tls);
}

}  // namespace shardrun::http
