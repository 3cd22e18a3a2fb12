#include "transports/gloo/connection.h"

#include <fcntl.h>
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/unbound_buffer.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace shardrun::gloo_transport {
namespace {

namespace tcp = gloo::transport::tcp;

constexpr std::size_t preamble_bytes = sizeof(tcp::Op::preamble);

/// Creates a group's connections on the device's thread.
class Adoption final : public tcp::Handler {
 public:
  Adoption(tcp::Context& context, tcp::Device& device, Proven proven)
      : context_(context), device_(device), proven_(std::move(proven)), wakeup_(::eventfd(1, EFD_CLOEXEC)) {
    if (!wakeup_) {
      throw std::runtime_error(std::strerror(errno));
    }
  }

  void run() {
    std::future<void> done = done_.get_future();
    device_.registerDescriptor(wakeup_.get(), EPOLLIN, this);
    done.get();
  }

  void handleEvents(int) override {
    std::exception_ptr error;
    try {
      device_.unregisterDescriptor(wakeup_.get(), this);
      for (std::size_t peer = 0; peer < proven_.size(); ++peer) {
        if (proven_[peer]) {
          const int index = static_cast<int>(peer);
          context_.getPair(index) = std::make_unique<Connection>(context_, device_, index, std::move(*proven_[peer]));
        }
      }
    } catch (...) {
      error = std::current_exception();
    }
    // Once the promise is fulfilled, this object may be destroyed.
    std::promise<void> done = std::move(done_);
    if (error) {
      done.set_exception(error);
    } else {
      done.set_value();
    }
  }

 private:
  tcp::Context& context_;
  tcp::Device& device_;
  Proven proven_;
  Socket wakeup_;
  std::promise<void> done_;
};

}  // namespace

Connection::Connection(tcp::Context& context, tcp::Device& device, int peer, Handshake handshake)
    : Pair(&context, &device, peer, context.getTimeout()) {
  const std::lock_guard lock(m_);
  changeState(CLOSED);  // closes Gloo's listener
  self_ = tcp::Address(own_end(handshake.socket()).address);
  try {
    peer_ = tcp::Address(other_end(handshake.socket()).address);
  } catch (const std::runtime_error&) {
    peer_ = self_;  // the peer has closed already; the first read reports it
  }
  if (handshake.protection() != Protection::none) {
    sent_.emplace(handshake.protection(), handshake.sending_key());
    received_.emplace(handshake.protection(), handshake.receiving_key());
  }
  if (handshake.protection() == Protection::encrypt) {
    sealed_ = std::make_unique<std::uint8_t[]>(record_bytes);
  }
  const int at_once = 1;
  (void)::setsockopt(handshake.socket().get(), IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof(at_once));
  device_->registerDescriptor(handshake.socket().get(), EPOLLIN, this);
  fd_ = handshake.take_socket().release();
  changeState(CONNECTED);
}

Connection::~Connection() {
  // Gloo's destructor does the same, but after this object's members are gone.
  const std::lock_guard lock(m_);
  if (state_ != CLOSED) {
    changeState(CLOSED);
  }
}

/// Catches everything: Gloo ends the process where an event handler throws.
void Connection::handleEvents(int events) {
  // A thread that holds the lock may be waiting for this one, to close the connection.
  const std::unique_lock lock(m_, std::try_to_lock);
  if (!lock) {
    std::this_thread::yield();  // the device calls this again at once
    return;
  }
  if (state_ != CONNECTED) {
    return;
  }
  try {
    handleReadWrite(events);
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

/// Fails the transfer in progress too: Gloo informs only those that have not begun.
void Connection::fail(const std::string& why) {
  if (ex_ != nullptr) {
    return;
  }
  if (rx_.ubuf) {
    localPendingRecv_[rx_.preamble.slot].emplace_front(rx_.ubuf, rx_.offset, rx_.nbytes);
  }
  for (const Op& op : tx_) {
    if (op.ubuf) {
      localPendingSend_[op.preamble.slot].emplace_front(op.ubuf, op.offset, op.nbytes);
    }
  }
  signalException(why);
}

bool Connection::write(Op& op) {
  if (!sent_) {
    return Pair::write(op);
  }
  if (state_ == CLOSED) {
    return false;
  }
  gloo::NonOwningPtr<tcp::UnboundBuffer> buffer;
  const std::uint8_t* message = nullptr;
  if (op.getOpcode() == Op::SEND_UNBOUND_BUFFER) {
    buffer = gloo::NonOwningPtr<tcp::UnboundBuffer>(op.ubuf);
    if (!buffer) {
      return false;
    }
    message = static_cast<const std::uint8_t*>(buffer->ptr) + op.offset;
  }
  while (flush()) {
    if (op.nwritten == op.preamble.nbytes) {
      writeComplete(op, buffer, op.getOpcode());
      sealed_of_op_ = 0;
      return true;
    }
    seal_next(op, message);
    op.nwritten = sealed_of_op_;
  }
  return false;
}

/// Seals the next record of the message. The preamble goes together with the first; separately, each message would take
/// two packets.
void Connection::seal_next(const Op& op, const std::uint8_t* message) {
  std::size_t tag = 0;
  const auto add = [&](const std::uint8_t* plain, std::size_t bytes, std::uint8_t* sealed) {
    tags_[tag] = sent_->seal(plain, bytes, sealed);
    parts_[part_count_++] = {sent_->protection() == Protection::encrypt ? sealed : plain, bytes};
    parts_[part_count_++] = {tags_[tag].data(), tags_[tag].size()};
    ++tag;
    sealed_of_op_ += bytes;
  };
  first_part_ = part_count_ = 0;
  if (sealed_of_op_ == 0) {
    std::memcpy(sealed_preamble_.data(), &op.preamble, preamble_bytes);
    add(sealed_preamble_.data(), preamble_bytes, sealed_preamble_.data());
  }
  const std::size_t done = sealed_of_op_ - preamble_bytes;
  if (const std::size_t left = op.preamble.nbytes - sealed_of_op_; left != 0) {
    add(message + done, std::min(left, record_bytes), sealed_.get());
  }
}

/// Writes the output in progress. Returns whether all of it has been written.
bool Connection::flush() {
  while (first_part_ != part_count_) {
    std::array<iovec, 4> pieces = {};
    std::size_t count = 0;
    for (std::size_t i = first_part_; i < part_count_; ++i) {
      pieces[count++] = {const_cast<std::uint8_t*>(parts_[i].data), parts_[i].bytes};
    }
    msghdr message = {};
    message.msg_iov = pieces.data();
    message.msg_iovlen = count;
    ssize_t written = ::sendmsg(fd_, &message, MSG_NOSIGNAL);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    // Where the connection broke, the next read reports it.
    if (written < 0 && (errno == EAGAIN || errno == EPIPE || errno == ECONNRESET)) {
      return false;
    }
    if (written < 0) {
      return report("write");
    }
    for (auto left = static_cast<std::size_t>(written); left != 0;) {
      Part& part = parts_[first_part_];
      const std::size_t taken = std::min(left, part.bytes);
      part.data += taken;
      part.bytes -= taken;
      left -= taken;
      first_part_ += part.bytes == 0 ? 1 : 0;
    }
  }
  return true;
}

bool Connection::read() {
  if (!received_) {
    return Pair::read();
  }
  if (state_ == CLOSED) {
    return false;
  }
  if (!is_preamble_open_) {
    if (!receive_record(reinterpret_cast<std::uint8_t*>(&rx_.preamble), preamble_bytes)) {
      return false;
    }
    rx_.nread = preamble_bytes;
    is_preamble_open_ = true;
  }
  gloo::NonOwningPtr<tcp::UnboundBuffer> buffer;
  for (;;) {
    iovec place = {};
    const ssize_t left = prepareRead(rx_, buffer, place);
    if (left < 0) {
      return false;
    }
    if (left == 0) {
      is_preamble_open_ = false;
      readComplete(buffer);
      return true;
    }
    const std::size_t bytes = std::min(static_cast<std::size_t>(left), record_bytes);
    if (!receive_record(static_cast<std::uint8_t*>(place.iov_base), bytes)) {
      return false;
    }
    rx_.nread += bytes;
  }
}

/// Whether the whole record has arrived and was opened.
bool Connection::receive_record(std::uint8_t* data, std::size_t bytes) {
  while (incoming_ < bytes + sizeof(Tag)) {
    const std::size_t of_data = std::min(incoming_, bytes);
    const std::size_t of_tag = incoming_ - of_data;
    const std::array<iovec, 2> places = {
        {{data + of_data, bytes - of_data}, {incoming_tag_.data() + of_tag, sizeof(Tag) - of_tag}}};
    const ssize_t got = ::readv(fd_, places.data(), static_cast<int>(places.size()));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return errno != EAGAIN && report("read");
    }
    if (got == 0) {
      fail("Connection closed by peer " + peer_.str());
      return false;
    }
    incoming_ += static_cast<std::size_t>(got);
  }
  incoming_ = 0;
  if (!received_->open(data, bytes, incoming_tag_)) {
    fail(std::string("bytes from it were altered on the way (protect = ") + name_of(received_->protection()) + ")");
    return false;
  }
  return true;
}

/// Fails the connection with the text of errno. Returns false.
bool Connection::report(const char* what) {
  fail(std::string(what) + " " + peer_.str() + ": " + std::strerror(errno));
  return false;
}

void adopt(gloo::transport::Context& context, gloo::transport::Device& device, Proven proven) {
  Adoption(dynamic_cast<tcp::Context&>(context), dynamic_cast<tcp::Device&>(device), std::move(proven)).run();
}

}  // namespace shardrun::gloo_transport
