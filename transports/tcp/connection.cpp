#include "transports/tcp/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <memory>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "core/base/error.h"

namespace shardrun::tcp_transport {
namespace {

void require_openssl(bool succeeded) {
  if (!succeeded) {
    throw Error(ErrorCode::internal, "OpenSSL does not make a TLS connection");
  }
}

bool would_block(int error) noexcept { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

/// OpenSSL's own BIO for sockets raises SIGPIPE.
const BIO_METHOD* bio_method() {
  struct FreeMethod {
    void operator()(BIO_METHOD* method) const noexcept { ::BIO_meth_free(method); }
  };
  static const std::unique_ptr<BIO_METHOD, FreeMethod> made = [] {
    std::unique_ptr<BIO_METHOD, FreeMethod> method(
        ::BIO_meth_new(::BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket without SIGPIPE"));
    require_openssl(method != nullptr);
    ::BIO_meth_set_read(method.get(), [](BIO* bio, char* to, int bytes) {
      ::BIO_clear_retry_flags(bio);
      const auto got = static_cast<Connection*>(::BIO_get_data(bio))->read_socket(to, static_cast<std::size_t>(bytes));
      if (got < 0 && would_block(errno)) {
        ::BIO_set_retry_read(bio);
      }
      return static_cast<int>(got);
    });
    ::BIO_meth_set_write(method.get(), [](BIO* bio, const char* from, int bytes) {
      ::BIO_clear_retry_flags(bio);
      const auto put =
          static_cast<Connection*>(::BIO_get_data(bio))->write_socket(from, static_cast<std::size_t>(bytes));
      if (put < 0 && would_block(errno)) {
        ::BIO_set_retry_write(bio);
      }
      return static_cast<int>(put);
    });
    ::BIO_meth_set_ctrl(method.get(),
                        [](BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1L : 0L; });
    return method;
  }();
  return made.get();
}

int int_of(std::size_t bytes) {
  return static_cast<int>(std::min<std::size_t>(bytes, std::numeric_limits<int>::max()));
}

}  // namespace

Connection::Connection(Socket socket, tls::Connection tls, Protection protection)
    : socket_(std::move(socket)),
      tls_(std::move(tls)),
      protection_(protection),
      awaited_(::SSL_is_server(tls_.get()) == 1 ? POLLIN : POLLOUT) {
  BIO* const bio = ::BIO_new(bio_method());
  require_openssl(bio != nullptr);
  ::BIO_set_data(bio, this);
  ::BIO_set_init(bio, 1);
  ::SSL_set_bio(tls_.get(), bio, bio);
  ::SSL_set_mode(tls_.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  const int on = 1;
  (void)::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

std::ptrdiff_t Connection::read_socket(void* to, std::size_t bytes) {
  const ssize_t got = ::recv(socket_.get(), to, bytes, 0);
  if (got < 0 && !would_block(errno)) {
    error_ = errno;
  }
  is_closed_ = is_closed_ || got == 0;
  unproven_bytes_ += got > 0 && state_ != State::proven ? static_cast<std::size_t>(got) : 0;
  return got;
}

std::ptrdiff_t Connection::write_socket(const void* from, std::size_t bytes) {
  const ssize_t put = ::send(socket_.get(), from, bytes, MSG_NOSIGNAL);
  if (put < 0 && !would_block(errno)) {
    error_ = errno;
  }
  return put;
}

Connection::State Connection::advance() {
  if (state_ != State::under_way) {
    return state_;
  }
  try {
    if (!shake_hands()) {
      return state_;
    }
    state_ = State::proven;
    if (protection_ == Protection::none) {
      tls_.reset();  // it has read no byte of what follows: without read-ahead it reads records to their ends
    } else {
      ::SSL_set_read_ahead(tls_.get(), 1);
    }
  } catch (const std::runtime_error& error) {
    state_ = State::refused;
    why_ = error.what();
  }
  return state_;
}

/// Returns whether both ends know that both are proven.
bool Connection::shake_hands() {
  ::ERR_clear_error();
  const int result = ::SSL_do_handshake(tls_.get());
  if (unproven_bytes_ > most_unproven_bytes) {
    throw std::runtime_error("it sent more than " + std::to_string(most_unproven_bytes) + " bytes without a proof");
  }
  if (result != 1) {
    return passed_on(result) != 0;
  }
  if (!tls::has_proved_key(tls_)) {
    throw std::runtime_error("TLS succeeded without the key, by a certificate");
  }
  char accepted = 1;
  return passed_on(::SSL_is_server(tls_.get()) == 1 ? ::SSL_write(tls_.get(), &accepted, 1)
                                                    : ::SSL_read(tls_.get(), &accepted, 1)) == 1;
}

std::size_t Connection::passed_on(int result) {
  if (result > 0) {
    return static_cast<std::size_t>(result);
  }
  switch (::SSL_get_error(tls_.get(), result)) {
    case SSL_ERROR_WANT_READ: awaited_ = POLLIN; return 0;
    case SSL_ERROR_WANT_WRITE: awaited_ = POLLOUT; return 0;
    default: broken(tls::reason());
  }
}

std::size_t Connection::passed_raw(std::ptrdiff_t result, short awaited) {
  if (result > 0) {
    return static_cast<std::size_t>(result);
  }
  if (result < 0 && would_block(errno)) {
    awaited_ = awaited;
    return 0;
  }
  broken("");
}

void Connection::broken(const std::string& tls_reason) const {
  if (error_ != 0) {
    throw std::runtime_error(std::generic_category().message(error_));
  }
  if (is_closed_) {
    throw std::runtime_error("the other end has closed the connection");
  }
  throw std::runtime_error(state_ == State::proven ? "bytes from it were altered on the way (TLS: " + tls_reason + ")"
                                                   : "TLS: " + tls_reason);
}

std::size_t Connection::send(const void* data, std::size_t bytes) {
  if (!tls_) {
    return passed_raw(write_socket(data, bytes), POLLOUT);
  }
  ::ERR_clear_error();  // SSL_get_error looks at it
  if (records_ == records_per_key) {
    require_openssl(::SSL_key_update(tls_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1);
    records_ = 0;
  }
  const std::size_t passed = passed_on(::SSL_write(tls_.get(), data, int_of(bytes)));
  records_ += passed != 0 ? 1 : 0;
  return passed;
}

std::size_t Connection::receive(void* data, std::size_t bytes) {
  if (!tls_) {
    return passed_raw(read_socket(data, bytes), POLLIN);
  }
  ::ERR_clear_error();
  return passed_on(::SSL_read(tls_.get(), data, int_of(bytes)));
}

}  // namespace shardrun::tcp_transport
