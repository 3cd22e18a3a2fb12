#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "core/files/descriptor.h"
#include "tests/integration/hub_folder.h"
#include "tests/integration/program.h"
#include "tests/support/catch.h"

namespace shardrun::test {

/// A connection to the server.
class Client {
 public:
  explicit Client(int port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const sockaddr_in to = {.sin_family = AF_INET,
                            .sin_port = htons(static_cast<std::uint16_t>(port)),
                            .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    connect(reinterpret_cast<const sockaddr*>(&to), sizeof to);
  }
  /// At a Unix socket.
  explicit Client(const std::filesystem::path& path) : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un to = {.sun_family = AF_UNIX, .sun_path = {}};
    REQUIRE(path.native().copy(to.sun_path, sizeof to.sun_path - 1) == path.native().size());
    connect(reinterpret_cast<const sockaddr*>(&to), sizeof to);
  }

  [[nodiscard]] int descriptor() const { return socket_.get(); }

  void send(std::string_view bytes) const { ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); }

  /// Reads until `text` has arrived or the connection ends, and returns all that was read.
  std::string read_to(std::string_view text) {
    while (received_.find(text) == std::string::npos) {
      char bytes[4096];
      const ssize_t count = ::recv(socket_.get(), bytes, sizeof bytes, 0);
      if (count <= 0) {
        break;
      }
      received_.append(bytes, static_cast<std::size_t>(count));
    }
    return received_;
  }

  std::string read_all() { return read_to("no such text"); }

 private:
  void connect(const sockaddr* to, socklen_t bytes) const {
    REQUIRE(::connect(socket_.get(), to, bytes) == 0);
    const timeval patience = {.tv_sec = 60, .tv_usec = 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }

  files::FileDescriptor socket_;
  std::string received_;
};

inline std::string request_text(const std::string& method, const std::string& path, const std::string& body = "",
                                const std::string& fields = "Connection: close\r\n") {
  return method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + fields +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

struct Response {
  int status = 0;
  std::string head;
  std::string body;

  [[nodiscard]] boost::json::value json() const { return boost::json::parse(body); }
};

inline Response response_of(const std::string& text) {
  const std::size_t end = text.find("\r\n\r\n");
  REQUIRE(end != std::string::npos);
  return {std::stoi(text.substr(9)), text.substr(0, end), text.substr(end + 4)};
}

/// Sends a request to the server at a port, on a connection that then ends, and returns what it answers.
using Exchange = std::function<std::string(int port, const std::string& request)>;

inline std::string exchange(int port, const std::string& request) {
  Client client(port);
  client.send(request);
  return client.read_all();
}

/// A server that runs until it is stopped.
class Served {
 public:
  explicit Served(const std::filesystem::path& folder, std::vector<std::string> words = {},
                  const std::string& what = "chat", Exchange by = exchange)
      : exchange_(std::move(by)) {
    const bool has_port = std::ranges::find(words, "--socket") == words.end();
    words.insert(words.begin(), {"serve", what});
    if (has_port) {
      words.insert(words.end(), {"--port", "0"});
    }
    std::future<std::pair<pid_t, int>> told = told_.get_future();
    ended_ = std::async(std::launch::async, [this, folder, words] {
      const Ended ended = run_program(folder, words, [this](pid_t process, std::string_view out) {
        if (out.ends_with('\n') && !std::exchange(has_told_, true)) {
          const std::size_t at = out.find("127.0.0.1:");
          told_.set_value({process, at == std::string_view::npos ? 0 : std::stoi(std::string(out.substr(at + 10)))});
        }
      });
      if (!has_told_) {
        told_.set_value({0, 0});
      }
      return ended;
    });
    std::tie(process_, port_) = told.get();
    if (process_ != 0) {
      await_ready();
    }
  }
  ~Served() {
    if (ended_.valid()) {
      ::kill(process_, SIGKILL);
    }
  }

  [[nodiscard]] int port() const { return port_; }
  [[nodiscard]] pid_t process() const { return process_; }
  [[nodiscard]] Response ask(const std::string& method, const std::string& path, const std::string& body = "",
                             const std::string& fields = "Connection: close\r\n") const {
    return response_of(exchange_(port_, request_text(method, path, body, fields)));
  }
  [[nodiscard]] Response complete(const std::string& body) const { return ask("POST", "/v1/completions", body); }

  /// Nothing tells a client when the job is ready: it asks again.
  void await_ready() const {
    await("/health", [](const Response& answer) { return answer.status == 200; });
  }
  /// The same for a number of /metrics.
  void await_metric(const std::string& name, const std::string& value) const {
    const std::string line = "\nshardrun_" + name + " " + value + "\n";
    INFO(line);
    await("/metrics", [&](const Response& answer) { return answer.body.find(line) != std::string::npos; });
  }

  Ended stop() {
    ::kill(process_, SIGTERM);
    return end();
  }
  /// Waits for its end.
  Ended end() { return ended_.get(); }

 private:
  template <typename IsThere>
  void await(const std::string& path, const IsThere& is_there) const {
    int answers = 0;
    while (!is_there(ask("GET", path)) && ++answers < 12'000) {
      ::usleep(10'000);
    }
    REQUIRE(answers < 12'000);
  }

  Exchange exchange_;
  std::promise<std::pair<pid_t, int>> told_;
  bool has_told_ = false;
  std::future<Ended> ended_;
  pid_t process_ = 0;
  int port_ = 0;
};

/// A folder with the model `chat`.
inline void make_model(const TemporaryFolder& folder) {
  with_tokenizer(folder, "null");
  write_file(folder / "chat/chat_template.jinja", "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}");
  write_file(folder / "chat/tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
}

}  // namespace shardrun::test
