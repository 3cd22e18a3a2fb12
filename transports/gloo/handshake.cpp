#include "transports/gloo/handshake.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <string_view>
#include <utility>

namespace shardrun::gloo_transport {
namespace {

constexpr std::string_view magic = "SRGLOO\x01\n";
constexpr std::size_t member_at = magic.size();
constexpr std::size_t nonce_at = member_at + sizeof(std::uint32_t);

Key key_at(const std::uint8_t* bytes) {
  Key key = {};
  std::copy_n(bytes, key.size(), key.begin());
  return key;
}

}  // namespace

Handshake::Handshake(Socket socket, const Key& secret, bool connects, BindingOf binding_of)
    : socket_(std::move(socket)),
      secret_(secret),
      binding_of_(std::move(binding_of)),
      connects_(connects),
      nonce_(random_key()) {}

Handshake Handshake::connecting(Socket socket, const Key& secret, std::uint32_t own, BindingOf binding_of) {
  Handshake handshake(std::move(socket), secret, true, std::move(binding_of));
  handshake.connector_ = own;
  handshake.compose();
  return handshake;
}

Handshake Handshake::accepting(Socket socket, const Key& secret, BindingOf binding_of) {
  return {std::move(socket), secret, false, std::move(binding_of)};
}

short Handshake::awaited() const noexcept { return is_sent_here() ? POLLOUT : POLLIN; }

Handshake::State Handshake::advance() {
  try {
    while (state_ == State::under_way && move_bytes()) {
      if (!is_sent_here()) {
        take();
      }
      if (state_ == State::refused) {
        break;
      }
      moved_ = 0;
      if (++flight_ == flights) {
        state_ = State::proven;
      } else if (is_sent_here()) {
        compose();
      }
    }
  } catch (const std::exception& error) {
    refuse(error.what());
  }
  return state_;
}

/// Whether the whole flight has been sent or received.
bool Handshake::move_bytes() {
  while (moved_ < flight_bytes()) {
    std::uint8_t* const at = bytes_.data() + moved_;
    const std::size_t left = flight_bytes() - moved_;
    const ssize_t moved =
        is_sent_here() ? ::send(socket_.get(), at, left, MSG_NOSIGNAL) : ::recv(socket_.get(), at, left, 0);
    if (moved > 0) {
      moved_ += static_cast<std::size_t>(moved);
    } else if (moved == 0) {
      refuse("it closed the connection");
      return false;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return false;
    } else if (errno != EINTR) {
      refuse(std::strerror(errno));
      return false;
    }
  }
  return true;
}

/// Puts the flight to send into `bytes_`.
void Handshake::compose() {
  const auto put = [&](const Key& key, std::size_t at) {
    std::copy(key.begin(), key.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(at));
  };
  switch (flight_) {
    case 0:
      bytes_.fill(0);
      std::copy(magic.begin(), magic.end(), bytes_.begin());
      for (std::size_t i = 0; i < sizeof(connector_); ++i) {
        bytes_[member_at + i] = static_cast<std::uint8_t>(connector_ >> (8 * i));
      }
      put(nonce_, nonce_at);
      break;
    case 1: put(nonce_, 0); break;
    case 2: put(proofs_.of_connector, 0); break;
    default: put(proofs_.of_acceptor, 0); break;
  }
}

/// Checks the flight that was received.
void Handshake::take() {
  switch (flight_) {
    case 0: {
      if (!std::equal(magic.begin(), magic.end(), bytes_.begin(),
                      [](char expected, std::uint8_t found) { return static_cast<std::uint8_t>(expected) == found; })) {
        return refuse("it does not speak as a member does");
      }
      std::uint32_t connector = 0;
      for (std::size_t i = 0; i < sizeof(connector); ++i) {
        connector |= static_cast<std::uint32_t>(bytes_[member_at + i]) << (8 * i);
      }
      other_nonce_ = key_at(bytes_.data() + nonce_at);
      return prove_as(connector);
    }
    case 1: other_nonce_ = key_at(bytes_.data()); return prove_as(connector_);
    default: {
      const Key& expected = connects_ ? proofs_.of_acceptor : proofs_.of_connector;
      if (!are_equal(expected, key_at(bytes_.data()))) {
        refuse("it does not know the secret of this run, or means another connection");
      }
    }
  }
}

void Handshake::prove_as(std::uint32_t connector) {
  const ChannelBinding binding = binding_of_(connector);
  connector_ = connector;
  protection_ = binding.protection;
  proofs_ = connects_ ? prove(secret_, binding, nonce_, other_nonce_) : prove(secret_, binding, other_nonce_, nonce_);
}

void Handshake::refuse(std::string why) {
  state_ = State::refused;
  why_ = std::move(why);
}

}  // namespace shardrun::gloo_transport
