#include "core/launch/connection.h"

#include <boost/asio/io_context.hpp>
#include <memory>
#include <vector>

#include "tests/support/catch.h"

using namespace shardrun::launch;
using boost::asio::ip::tcp;

namespace {

/// Two ends of a connection, in one io_context.
struct Line {
  boost::asio::io_context io;
  std::shared_ptr<FrameConnection> near;
  std::shared_ptr<FrameConnection> far;

  Line() {
    tcp::acceptor acceptor(io, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0));
    tcp::socket connecting(io);
    connecting.connect(acceptor.local_endpoint());
    near = std::make_shared<FrameConnection>(std::move(connecting), max_frame_bytes);
    far = std::make_shared<FrameConnection>(acceptor.accept(), max_frame_bytes);
  }
};

}  // namespace

TEST_CASE("what is sent once something was written goes out once", "[launch]") {
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

  line.near->send(FrameWriter(FrameType::welcome).finish(), [&] {
    line.near->send(FrameWriter(FrameType::failure_noted).finish(),
                    [&] { line.near->send(FrameWriter(FrameType::farewell).finish()); });
  });
  line.io.run();

  CHECK(got == std::vector<FrameType>{FrameType::welcome, FrameType::failure_noted, FrameType::farewell});
}
