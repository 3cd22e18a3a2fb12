#include "transports/tcp/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
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

/// A BIO that reads from the socket and collects what is written, so that many records go to the socket at once.
const BIO_METHOD* bio_method() {
  struct FreeMethod {
    void operator()(BIO_METHOD* method) const noexcept { ::BIO_meth_free(method); }
  };
  static const std::unique_ptr<BIO_METHOD, FreeMethod> made = [] {
    std::unique_ptr<BIO_METHOD, FreeMethod> method(
        ::BIO_meth_new(::BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "connection of transport tcp"));
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
      static_cast<Connection*>(::BIO_get_data(bio))->keep(from, static_cast<std::size_t>(bytes));
      return bytes;
    });
    ::BIO_meth_set_ctrl(method.get(),
                        [](BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1L : 0L; });
    return method;
  }();
  return made.get();
}

/// The largest TLS record, in bytes.
constexpr std::size_t record_bytes = 16384;
/// Bytes that are encrypted before they are given to the socket.
constexpr std::size_t most_written = 4 * record_bytes;

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
  ::SSL_set_default_read_buffer_len(tls_.get(), most_written);
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

void Connection::keep(const char* from, std::size_t bytes) noexcept {
  written_.insert(written_.end(), from, from + bytes);
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
      tls_.reset();  // TLS has read no byte of what follows: without read-ahead it stops at the end of a record
    } else if (::SSL_is_server(tls_.get()) == 1) {
      ::SSL_set_read_ahead(tls_.get(), 1);
    } else {
      written_.reserve(most_written + 2 * record_bytes);  // the last record begins below most_written
    }
  } catch (const std::runtime_error& error) {
    state_ = State::refused;
    why_ = error.what();
  }
  return state_;
}

/// Returns whether both ends know that both have proven their identity.
bool Connection::shake_hands() {
  ::ERR_clear_error();
  const int result = ::SSL_do_handshake(tls_.get());
  if (unproven_bytes_ > most_unproven_bytes) {
    throw std::runtime_error("it sent more than " + std::to_string(most_unproven_bytes) + " bytes without a proof");
  }
  if (result != 1) {
    (void)passed_by_tls(result);
    (void)flush();
    return false;
  }
  if (!tls::has_proved_key(tls_)) {
    throw std::runtime_error("TLS succeeded without the key, by a certificate");
  }
  char accepted = 1;
  if (::SSL_is_server(tls_.get()) == 1) {
    if (!std::exchange(has_accepted_, true)) {
      write_record(&accepted, 1);
    }
    return flush();
  }
  return flush() && passed_by_tls(::SSL_read(tls_.get(), &accepted, 1)) == 1;
}

std::size_t Connection::passed_by_tls(int result) {
  if (result > 0) {
    return static_cast<std::size_t>(result);
  }
  if (::SSL_get_error(tls_.get(), result) == SSL_ERROR_WANT_READ) {
    awaited_ = POLLIN;
    return 0;
  }
  const std::string reason = tls::reason();
  // Sends the reason as a TLS alert.
  (void)::send(socket_.get(), written_.data() + flushed_, written_.size() - flushed_, MSG_NOSIGNAL);
  broken(reason);
}

std::size_t Connection::passed_by_socket(std::ptrdiff_t result, short awaited) {
  if (result > 0) {
    return static_cast<std::size_t>(result);
  }
  if (result < 0 && would_block(errno)) {
    awaited_ = awaited;
    return 0;
  }
  error_ = result < 0 ? errno : 0;
  is_closed_ = true;
  broken("");
}

/// Returns whether the socket has taken all that was written.
bool Connection::flush() {
  while (flushed_ != written_.size()) {
    const std::size_t passed = passed_by_socket(
        ::send(socket_.get(), written_.data() + flushed_, written_.size() - flushed_, MSG_NOSIGNAL), POLLOUT);
    if (passed == 0) {
      return false;
    }
    flushed_ += passed;
  }
  written_.clear();
  flushed_ = 0;
  return true;
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

void Connection::write_record(const void* data, std::size_t bytes) {
  ::ERR_clear_error();  // because SSL_get_error looks at the error queue
  if (records_ == records_per_key) {
    require_openssl(::SSL_key_update(tls_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1);
    records_ = 0;
  }
  (void)passed_by_tls(::SSL_write(tls_.get(), data, static_cast<int>(bytes)));
  ++records_;
}

/// Writes the first of these bytes in records, and returns how many. A short part shares its record with the next one.
std::size_t Connection::encrypt(std::span<const iovec> parts) {
  std::size_t passed = 0;
  std::size_t at = 0;  // in the first part
  while (!parts.empty() && written_.size() < most_written) {
    const char* data = static_cast<const char*>(parts[0].iov_base) + at;
    std::size_t bytes = std::min(parts[0].iov_len - at, record_bytes);
    std::array<char, record_bytes> joined;
    if (parts.size() > 1 && bytes < record_bytes) {
      std::memcpy(joined.data(), data, bytes);
      parts = parts.subspan(1);
      at = std::min(parts[0].iov_len, record_bytes - bytes);
      std::memcpy(joined.data() + bytes, parts[0].iov_base, at);
      data = joined.data();
      bytes += at;
    } else {
      at += bytes;
    }
    if (at == parts[0].iov_len) {
      parts = parts.subspan(1);
      at = 0;
    }
    write_record(data, bytes);
    passed += bytes;
  }
  return passed;
}

std::size_t Connection::send(std::span<const iovec> parts) {
  if (!tls_) {
    msghdr message = {};
    message.msg_iov = const_cast<iovec*>(parts.data());
    message.msg_iovlen = parts.size();
    return passed_by_socket(::sendmsg(socket_.get(), &message, MSG_NOSIGNAL), POLLOUT);
  }
  if (written_.empty()) {
    encrypted_ = encrypt(parts);
  }
  return flush() ? std::exchange(encrypted_, 0) : 0;
}

std::size_t Connection::receive(std::span<const iovec> parts) {
  if (!tls_) {
    msghdr message = {};
    message.msg_iov = const_cast<iovec*>(parts.data());
    message.msg_iovlen = parts.size();
    return passed_by_socket(::recvmsg(socket_.get(), &message, 0), POLLIN);
  }
  std::size_t passed = 0;
  for (const iovec& part : parts) {
    for (std::size_t at = 0; at != part.iov_len;) {
      ::ERR_clear_error();
      const std::size_t got = passed_by_tls(::SSL_read(tls_.get(), static_cast<char*>(part.iov_base) + at,
                                                       static_cast<int>(std::min(part.iov_len - at, record_bytes))));
      if (got == 0) {
        return passed;
      }
      at += got;
      passed += got;
    }
  }
  return passed;
}

}  // namespace shardrun::tcp_transport
