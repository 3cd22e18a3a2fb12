#include "tests/unit/launch/attacks.h"

#include <fmt/format.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <functional>
#include <string_view>

#include "core/base/philox.h"
#include "tests/support/attacks.h"
#include "tests/support/middle.h"

namespace shardrun::test {

namespace ssl = boost::asio::ssl;
using boost::asio::ip::tcp;
using launch::FrameType;
using launch::FrameWriter;
using launch::Hello;
using launch::RankContext;

files::FileDescriptor connect_to(const RankContext& context) {
  files::FileDescriptor socket = connect_to_port(context.port);
  if (!socket.is_open()) {
    throw Error(ErrorCode::io, "the launcher listens no more");
  }
  return socket;
}

namespace {

/// Makes closing this socket send a reset.
void reset_at_close(const files::FileDescriptor& socket) {
  const linger none = {.l_onoff = 1, .l_linger = 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
}

/// Returns "answered" if the launcher answers before it closes the connection, otherwise "dropped". An alert is no
/// answer.
std::string outcome(const files::FileDescriptor& socket) {
  std::string words;
  for (std::string record; !(record = read_record(socket.get())).empty();) {
    words = words.empty() && record[0] != alert_record ? "answered, " : words;
  }
  return words + "dropped";
}

/// Does the handshake with this token, and sends this hello. Returns the outcome.
std::string say_hello(const RankContext& context, const launch::Token& token, const std::string& hello) {
  boost::asio::io_context io;
  ssl::context tls(launch::tls_context(tls::End::client, token).release());
  ssl::stream<tcp::socket> stream(io, tls);
  stream.next_layer().connect({boost::asio::ip::address_v4::loopback(), context.port});
  boost::system::error_code failed;
  stream.handshake(ssl::stream_base::client, failed);
  boost::asio::write(stream, boost::asio::buffer(hello), failed);
  std::string answer(1024, '\0');
  answer.resize(stream.read_some(boost::asio::buffer(answer), failed));
  if (answer.empty()) {
    return "dropped";
  }
  return static_cast<FrameType>(answer[before_payload - 1]) == FrameType::refused
             ? fmt::format("refused, {}",
                           launch::PayloadReader(std::string_view(answer).substr(before_payload)).bytes())
             : "let in";
}

std::string hello_of(const RankContext& context, const std::function<void(Hello&)>& change) {
  Hello hello{.rank = static_cast<std::uint32_t>(context.rank),
              .world_size = static_cast<std::uint32_t>(context.world_size),
              .pid = 1,
              .job_hash = hash_name(""),
              .host = "elsewhere"};
  change(hello);
  return launch::encode_hello(hello);
}

std::string with_version(std::string frame, char version) {
  frame[launch::frame_header_bytes] = version;
  return frame;
}

}  // namespace

std::string client_hello(const launch::TlsContext& context) {
  launch::Tls tls(context);
  std::string nothing;
  tls.receive("", nothing);
  return tls.take_output();
}

std::string client_hello(const launch::Token& token) {
  return client_hello(launch::tls_context(tls::End::client, token));
}

Attacked attack(const RankContext& context) {
  Attacked result;
  const auto note = [&](const std::string& name, const std::string& came_of_it) {
    result.outcomes.push_back(name + ": " + came_of_it);
  };
  const auto attempt = [&](const std::string& name, std::string_view bytes) {
    const files::FileDescriptor socket = connect_to(context);
    send_bytes(socket.get(), bytes);
    note(name, outcome(socket));
    ++result.strangers;
  };
  const std::string good = hello_of(context, [](Hello&) {});
  const std::string first = client_hello(context.token);
  launch::Token other_token = context.token;
  other_token.back() ^= 1U;
  const launch::TlsContext keyless(::SSL_CTX_new(::TLS_client_method()));
  const launch::TlsContext older(::SSL_CTX_new(::TLS_client_method()));
  ::SSL_CTX_set_max_proto_version(older.get(), TLS1_2_VERSION);

  attempt("HTTP", "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  attempt("zeros", std::string(64, '\0'));
  attempt("ones", std::string(5000, '\xff'));
  attempt("long", std::string("\x16\x03\x01\x00\x04\x01\x02\x02\x00", 9));
  attempt("much", std::string("\x16\x03\x01\x3f\xff\x01\x00\x3f\xfb", 9) + std::string(5000, 'x'));
  attempt("hello in the clear", good);
  attempt("TLS without a key", client_hello(keyless));
  attempt("TLS 1.2", client_hello(older));
  attempt("silence", "");
  attempt("drop by drop", first.substr(0, 20));
  attempt("replay", first);
  attempt("two replays", first + first);
  note("token", say_hello(context, other_token, good));
  ++result.strangers;

  note("taken rank", say_hello(context, context.token, good));
  note("no such rank", say_hello(context, context.token, hello_of(context, [](Hello& hello) { hello.rank = 1000; })));
  note("other size", say_hello(context, context.token, hello_of(context, [](Hello& hello) { hello.world_size = 3; })));
  note("other job", say_hello(context, context.token, hello_of(context, [](Hello& hello) { hello.job_hash = 77; })));
  note("version", say_hello(context, context.token, with_version(good, 9)));
  note("no hello", say_hello(context, context.token, FrameWriter(FrameType::set).bytes("key").bytes("value").finish()));
  note("long frame", say_hello(context, context.token, std::string("\x00\x00\x20\x00", 4)));
  result.strangers += 3;

  const int scans = attacks(100);
  for (int i = 0; i < scans; ++i) {
    const files::FileDescriptor scan = connect_to(context);  // connected and gone
    if (i % 2 == 0) {
      reset_at_close(scan);
    }
    if (i % 3 == 0) {
      send_bytes(scan.get(), first);
    }
  }
  std::vector<files::FileDescriptor> crowd;
  for (int i = 0; i < 100; ++i) {
    crowd.push_back(connect_to(context));
  }
  for (const files::FileDescriptor& one : crowd) {
    if (const std::string end = outcome(one); end != "dropped") {
      note("crowd", end);
    }
  }
  result.strangers += scans + 100;
  return result;
}

}  // namespace shardrun::test
