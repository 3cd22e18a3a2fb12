#include "tests/unit/launch/attacks.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <string_view>

#include "core/base/philox.h"
#include "core/launch/cipher.h"
#include "core/launch/handshake.h"
#include "core/launch/protocol.h"
#include "tests/support/attacks.h"
#include "tests/support/middle.h"

namespace shardrun::test {

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

/// Whoever closes this sends a reset.
void reset_at_close(const files::FileDescriptor& socket) {
  const linger none = {.l_onoff = 1, .l_linger = 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
}

/// What comes until the other side hangs up, in words: "dropped", "challenged" (and then dropped).
std::string outcome(const files::FileDescriptor& socket) {
  std::string words;
  for (std::string frame; !(frame = read_frame(socket.get())).empty();) {
    const bool is_challenge = static_cast<FrameType>(frame[launch::frame_header_bytes + 1]) == FrameType::challenge;
    words += is_challenge && words.empty() ? "challenged, " : "told something, ";
  }
  return words + "dropped";
}

std::string greeting() { return launch::encode_greeting(launch::random_token()); }

std::string sealed(launch::Cipher& cipher, const std::string& frame) {
  const std::string_view message = std::string_view(frame).substr(launch::frame_header_bytes);
  const std::string header = launch::frame_header(message.size() + launch::Cipher::tag_bytes);
  return header + cipher.seal(header, message);
}

/// Does the handshake with this token, and says this hello; what came of it.
std::string say_hello(const RankContext& context, const launch::Token& token, const std::string& hello,
                      std::string* said = nullptr) {
  const files::FileDescriptor socket = connect_to(context);
  const launch::Nonce nonce = launch::random_token();
  const std::string first = launch::encode_greeting(nonce);
  send_bytes(socket.get(), first);
  const std::string frame = read_frame(socket.get());
  const launch::Challenge challenge = launch::decode_challenge(std::string_view(frame).substr(before_payload));
  const launch::SessionKeys keys = launch::session_keys(token, nonce, challenge.nonce);
  launch::Cipher sealing(keys.to_launcher);
  const std::string second = sealed(sealing, hello);
  if (said != nullptr) {
    *said = first + second;
  }
  send_bytes(socket.get(), second);
  const std::string answer = read_frame(socket.get());
  if (answer.empty()) {
    return "dropped";
  }
  launch::Cipher opening(keys.to_rank);
  const std::optional<std::string> opened = opening.open(std::string_view(answer).substr(0, launch::frame_header_bytes),
                                                         std::string_view(answer).substr(launch::frame_header_bytes));
  if (!opened) {
    return "answered, with another key";
  }
  return static_cast<FrameType>((*opened)[1]) == FrameType::refused
             ? fmt::format("refused, {}", launch::PayloadReader(std::string_view(*opened).substr(2)).bytes())
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
  launch::Token other_token = context.token;
  other_token.back() ^= 1U;
  std::string said;

  attempt("HTTP", "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  attempt("zeros", std::string(64, '\0'));
  attempt("ones", std::string(5000, '\xff'));
  attempt("long", std::string("\x00\x00\x10\x00", 4) + std::string(64, 'x'));
  attempt("no greeting", FrameWriter(FrameType::set).bytes("key").bytes("value").finish());
  attempt("hello at once", good);
  attempt("short greeting", FrameWriter(FrameType::greeting).u32(launch::hello_magic).finish());
  attempt("long greeting", FrameWriter(FrameType::greeting).raw(std::string(9000, 'x')).finish());
  attempt("other magic", FrameWriter(FrameType::greeting).u32(7).raw(std::string(32, 'x')).finish());
  attempt("version", with_version(greeting(), 9));
  attempt("silence", "");
  attempt("drop by drop", greeting().substr(0, 20));
  attempt("greeting alone", greeting());
  attempt("two greetings", greeting() + greeting());
  attempt("hello in the clear", greeting() + good);
  note("token", say_hello(context, other_token, good));
  ++result.strangers;

  note("taken rank", say_hello(context, context.token, good, &said));
  note("no such rank", say_hello(context, context.token, hello_of(context, [](Hello& hello) { hello.rank = 1000; })));
  note("other size", say_hello(context, context.token, hello_of(context, [](Hello& hello) { hello.world_size = 3; })));
  note("other job", say_hello(context, context.token, hello_of(context, [](Hello& hello) { hello.job_hash = 77; })));
  attempt("replay", said);

  const int scans = attacks(100);
  for (int i = 0; i < scans; ++i) {
    const files::FileDescriptor scan = connect_to(context);  // connected and gone
    if (i % 2 == 0) {
      reset_at_close(scan);
    }
    if (i % 3 == 0) {
      send_bytes(scan.get(), greeting());
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
