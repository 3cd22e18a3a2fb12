#include "tests/unit/launch/attacks.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <string_view>

#include "core/base/philox.h"
#include "core/files/descriptor.h"
#include "core/launch/protocol.h"

namespace shardrun::test {
namespace {

using launch::FrameType;
using launch::FrameWriter;
using launch::Hello;
using launch::RankContext;

}  // namespace

files::FileDescriptor connect_to(const RankContext& context) {
  files::FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(context.port);
  ::inet_pton(AF_INET, context.address.c_str(), &address.sin_addr);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    throw Error(ErrorCode::io, "the launcher listens no more");
  }
  return socket;
}

namespace {

/// Sends and waits for the other side to hang up: "dropped", or the text of its refusal.
std::string outcome(const files::FileDescriptor& socket, std::string_view bytes) {
  ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  std::string answer;
  char chunk[512];
  for (ssize_t got = 0; (got = ::read(socket.get(), chunk, sizeof chunk)) > 0;) {
    answer.append(chunk, static_cast<std::size_t>(got));
  }
  constexpr std::size_t before_payload = launch::frame_header_bytes + 2;
  if (answer.size() < before_payload) {
    return answer.empty() ? "dropped" : "a fragment";
  }
  return static_cast<FrameType>(answer[launch::frame_header_bytes + 1]) == FrameType::refused
             ? fmt::format("refused, {}",
                           launch::PayloadReader(std::string_view(answer).substr(before_payload)).bytes())
             : "let in";
}

std::string hello_of(const RankContext& context, const std::function<void(Hello&)>& change) {
  Hello hello{.token = context.token,
              .rank = static_cast<std::uint32_t>(context.rank),
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

std::vector<std::string> attack(const RankContext& context) {
  std::vector<std::string> outcomes;
  const auto attempt = [&](const std::string& name, std::string_view bytes) {
    outcomes.push_back(name + ": " + outcome(connect_to(context), bytes));
  };
  const std::string good = hello_of(context, [](Hello&) {});
  attempt("HTTP", "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  attempt("zeros", std::string(64, '\0'));
  attempt("ones", std::string(5000, '\xff'));
  attempt("long", std::string("\x00\x00\x10\x00", 4) + std::string(64, 'x'));
  attempt("no hello", FrameWriter(FrameType::set).bytes("key").bytes("value").finish());
  attempt("short hello", FrameWriter(FrameType::hello).u32(launch::hello_magic).finish());
  attempt("long hello", FrameWriter(FrameType::hello).raw(std::string(9000, 'x')).finish());
  attempt("version", with_version(good, 9));
  attempt("token", hello_of(context, [](Hello& hello) { hello.token.back() ^= 1U; }));
  attempt("silence", "");
  attempt("drop by drop", good.substr(0, 20));
  attempt("taken rank", good);
  attempt("no such rank", hello_of(context, [](Hello& hello) { hello.rank = 1000; }));
  attempt("other job", hello_of(context, [](Hello& hello) { hello.job_hash = 77; }));

  for (int i = 0; i < 100; ++i) {
    (void)connect_to(context);  // a scan: connected and gone
  }
  std::vector<files::FileDescriptor> crowd;
  for (int i = 0; i < 100; ++i) {
    crowd.push_back(connect_to(context));
  }
  for (const files::FileDescriptor& one : crowd) {
    if (const std::string end = outcome(one, ""); end != "dropped") {
      outcomes.push_back("crowd: " + end);
    }
  }
  return outcomes;
}

}  // namespace shardrun::test
