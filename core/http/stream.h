#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ssl/context.hpp>
#include <cstddef>
#include <functional>
#include <memory>

namespace shardrun::http {

/// The bytes of a client's connection: of a TCP or Unix socket, with or without TLS.
class Stream {
 public:
  using Done = std::function<void(boost::system::error_code failed, std::size_t bytes)>;

  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  virtual ~Stream() = default;

  /// `done` owns what it needs to live: the stream, too.
  virtual void handshake(Done done) = 0;
  virtual void read_some(boost::asio::mutable_buffer buffer, Done done) = 0;
  virtual void write_some(boost::asio::const_buffer bytes, Done done) = 0;
  /// Tells the client that nothing more will be sent. With TLS, waits until the client ends its side, too, or close().
  /// `client_sends`: the client may still be sending. TLS then ends without close_notify, behind which OpenSSL reads no
  /// data: the connection would be reset before the client reads the last response.
  virtual void end_sending(bool client_sends, Done done) = 0;
  virtual void close() = 0;
};

/// `tls`: null: none. It outlives the stream.
[[nodiscard]] std::unique_ptr<Stream> make_stream(boost::asio::generic::stream_protocol::socket socket,
                                                  boost::asio::ssl::context* tls);

}  // namespace shardrun::http
