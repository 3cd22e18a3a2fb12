#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ssl/context.hpp>
#include <cstddef>
#include <functional>
#include <memory>

namespace shardrun::http {

/// The stream of a client's connection: a TCP or Unix socket, with or without TLS.
class Stream {
 public:
  using Done = std::function<void(boost::system::error_code failed, std::size_t bytes)>;

  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  virtual ~Stream() = default;

  /// `done` must keep the stream alive until it is called.
  virtual void handshake(Done done) = 0;
  virtual void read_some(boost::asio::mutable_buffer buffer, Done done) = 0;
  virtual void write_some(boost::asio::const_buffer bytes, Done done) = 0;
  /// Tells the client that nothing more will be sent. With TLS, `done` is called when the client ends its side, too, or
  /// after close(). `client_sends`: whether the client can still be sending. TLS then ends without close_notify,
  /// because OpenSSL reads no data after one, and a reset would keep the client from reading the last response.
  virtual void end_sending(bool client_sends, Done done) = 0;
  virtual void close() = 0;
};

/// Makes a stream. `tls`: null for a stream without TLS. It must outlive the stream.
[[nodiscard]] std::unique_ptr<Stream> make_stream(boost::asio::generic::stream_protocol::socket socket,
                                                  boost::asio::ssl::context* tls);

}  // namespace shardrun::http
