#include "core/launch/connection.h"

#include <openssl/ssl.h>

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/catch.h"

using namespace shardrun::launch;
using boost::asio::ip::tcp;

namespace {

/// The messages of TLS that an end has received.
struct Received {
  int key_updates = 0;
  int tickets = 0;

  void count_with(const TlsContext& tls) {
    ::SSL_CTX_set_msg_callback_arg(tls.get(), this);
    ::SSL_CTX_set_msg_callback(tls.get(), [](int is_written, int, int type, const void* bytes, std::size_t, SSL*,
                                             void* argument) {
      auto& received = *static_cast<Received*>(argument);
      const int message = type == SSL3_RT_HANDSHAKE && is_written == 0 ? *static_cast<const unsigned char*>(bytes) : -1;
      received.key_updates += message == SSL3_MT_KEY_UPDATE ? 1 : 0;
      received.tickets += message == SSL3_MT_NEWSESSION_TICKET ? 1 : 0;
    });
  }
};

/// Two ends of a connection, in one io_context.
struct Line {
  boost::asio::io_context io;
  Received by_near;
  Received by_far;
  std::shared_ptr<FrameConnection> near;
  std::shared_ptr<FrameConnection> far;

  Line() {
    const TlsContext near_tls = tls_context(shardrun::tls::End::client, Token{1});
    const TlsContext far_tls = tls_context(shardrun::tls::End::server, Token{1});
    by_near.count_with(near_tls);
    by_far.count_with(far_tls);
    tcp::acceptor acceptor(io, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0));
    tcp::socket connecting(io);
    connecting.connect(acceptor.local_endpoint());
    near = std::make_shared<FrameConnection>(std::move(connecting), near_tls);
    far = std::make_shared<FrameConnection>(acceptor.accept(), far_tls);
  }
};

}  // namespace

TEST_CASE("frames sent from a callback of a write go out once", "[launch]") {
  Line line;
  std::vector<FrameType> got;
  line.far->start({.frame =
                       [&](FrameType type, std::string_view) {
                         got.push_back(type);
                         if (type == FrameType::farewell) {
                           line.near->close();
                         }
                       },
                   .closed = [](const std::string&) {}});

  line.near->start({.proved =
                        [&] {
                          line.near->send(FrameWriter(FrameType::welcome).finish(), [&] {
                            line.near->send(FrameWriter(FrameType::failure_noted).finish(),
                                            [&] { line.near->send(FrameWriter(FrameType::farewell).finish()); });
                          });
                        },
                    .frame = {},
                    .closed = [](const std::string&) {}});
  line.io.run();

  CHECK(got == std::vector<FrameType>{FrameType::welcome, FrameType::failure_noted, FrameType::farewell});
}

TEST_CASE("both ends renew their sending keys, and the launcher issues no session tickets", "[launch]") {
  Line line;
  constexpr int frames = 2 * Tls::messages_per_key;
  int went = 0;
  int came_back = 0;
  const auto nothing = [](const std::string&) {};
  line.far->start({.frame =
                       [&](FrameType, std::string_view payload) {
                         went += PayloadReader(payload).u32() == static_cast<std::uint32_t>(went) ? 1 : 0;
                         line.far->send(FrameWriter(FrameType::heartbeat).raw(payload).finish());
                       },
                   .closed = nothing});
  line.near->start({.proved =
                        [&] {
                          for (std::uint32_t number = 0; number < frames; ++number) {
                            line.near->send(FrameWriter(FrameType::heartbeat).u32(number).finish());
                          }
                        },
                    .frame =
                        [&](FrameType, std::string_view payload) {
                          came_back += PayloadReader(payload).u32() == static_cast<std::uint32_t>(came_back) ? 1 : 0;
                          if (came_back == frames) {
                            line.near->close();
                            line.far->close();
                          }
                        },
                    .closed = nothing});
  line.io.run();

  CHECK(went == frames);
  CHECK(came_back == frames);
  CHECK(line.by_far.key_updates == 2);
  CHECK(line.by_near.key_updates == 2);
  CHECK(line.by_near.tickets == 0);
}
