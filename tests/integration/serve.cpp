// The HTTP server: answers are those of generate, and faults of clients and of the job stay theirs.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <csignal>
#include <future>
#include <map>

#include "core/files/descriptor.h"
#include "tests/integration/hub_folder.h"
#include "tests/integration/processes.h"
#include "tests/integration/program.h"
#include "tests/support/catch.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;

namespace {

/// A connection to the server.
class Client {
 public:
  explicit Client(int port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const sockaddr_in to = {.sin_family = AF_INET,
                            .sin_port = htons(static_cast<std::uint16_t>(port)),
                            .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    REQUIRE(::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
    const timeval patience = {.tv_sec = 60, .tv_usec = 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }

  void send(std::string_view bytes) const { ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); }

  /// What comes until `text` has come, or the end.
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
  files::FileDescriptor socket_;
  std::string received_;
};

std::string request_text(const std::string& method, const std::string& path, const std::string& body = "",
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

Response response_of(const std::string& text) {
  const std::size_t end = text.find("\r\n\r\n");
  REQUIRE(end != std::string::npos);
  return {std::stoi(text.substr(9)), text.substr(0, end), text.substr(end + 4)};
}

/// A server that runs until it is stopped.
class Served {
 public:
  explicit Served(const std::filesystem::path& folder, std::vector<std::string> words = {},
                  const std::string& what = "chat") {
    words.insert(words.begin(), {"serve", what, "--port", "0"});
    std::future<std::pair<pid_t, int>> told = told_.get_future();
    ended_ = std::async(std::launch::async, [this, folder, words] {
      const Ended ended = run_program(folder, words, [this](pid_t process, std::string_view out) {
        const std::size_t at = out.find("127.0.0.1:");
        if (at != std::string_view::npos && out.back() == '\n' && !std::exchange(has_told_, true)) {
          told_.set_value({process, std::stoi(std::string(out.substr(at + 10)))});
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
    Client client(port_);
    client.send(request_text(method, path, body, fields));
    return response_of(client.read_all());
  }
  [[nodiscard]] Response complete(const std::string& body) const { return ask("POST", "/v1/completions", body); }

  /// Nothing tells a client when the job is ready: it asks again.
  void await_ready() const {
    while (ask("GET", "/health").status != 200) {
      ::usleep(10'000);
    }
  }
  /// The same for a number of /metrics.
  void await_metric(const std::string& name, const std::string& value) const {
    while (ask("GET", "/metrics").body.find("\nshardrun_" + name + " " + value + "\n") == std::string::npos) {
      ::usleep(10'000);
    }
  }

  Ended stop() {
    ::kill(process_, SIGTERM);
    return end();
  }
  /// Waits for its end.
  Ended end() { return ended_.get(); }

 private:
  std::promise<std::pair<pid_t, int>> told_;
  bool has_told_ = false;
  std::future<Ended> ended_;
  pid_t process_ = 0;
  int port_ = 0;
};

/// A folder with the model `chat`.
void make_model(const TemporaryFolder& folder) {
  with_tokenizer(folder, "null");
  write_file(folder / "chat/chat_template.jinja", "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}");
  write_file(folder / "chat/tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
}

std::string text_of(const boost::json::value& json) { return std::string(json.as_string()); }

/// The data of a response's events.
std::vector<std::string> events_of(const std::string& body) {
  std::vector<std::string> events;
  for (std::size_t at = 0; (at = body.find("data: ", at)) != std::string::npos; ++at) {
    events.push_back(body.substr(at + 6, body.find("\n\n", at) - at - 6));
  }
  return events;
}

/// The text of a stream, and how it ended.
std::pair<std::string, std::string> streamed(const Response& response) {
  const std::vector<std::string> events = events_of(response.body);
  REQUIRE(!events.empty());
  CHECK(events.back() == "[DONE]");
  std::string text;
  std::string reason;
  for (const std::string& event : std::vector(events.begin(), events.end() - 1)) {
    const boost::json::value json = boost::json::parse(event);
    for (const boost::json::value& choice : json.at("choices").as_array()) {
      const boost::json::object& object = choice.as_object();
      const boost::json::value* const content =
          object.contains("delta") ? object.at("delta").as_object().if_contains("content") : object.if_contains("text");
      text += content == nullptr ? "" : std::string(content->as_string());
      reason += object.at("finish_reason").is_null() ? "" : std::string(object.at("finish_reason").as_string());
    }
  }
  return {text, reason};
}

}  // namespace

TEST_CASE("serve: answers are those of generate, as a whole and as events", "[serve]") {
  const TemporaryFolder folder;
  make_model(folder);
  write_file(folder / "prompts.jsonl",
             R"({"prompt": "abc", "max_tokens": 12, "temperature": 0})"
             "\n"
             R"({"messages": [{"role": "user", "content": "bc"}], "max_tokens": 9, "temperature": 0.7, "seed": 5})"
             "\n");
  const Ended expected = run_program(folder.path(), {"generate", "chat", "--prompts", "prompts.jsonl"});
  INFO(expected.err);
  REQUIRE(expected.code == 0);
  const std::size_t line = expected.out.find('\n');
  const std::string first(boost::json::parse(expected.out.substr(0, line)).at("text").as_string());
  const std::string second(boost::json::parse(expected.out.substr(line + 1)).at("text").as_string());

  Served served(folder.path());
  const std::string text_request = R"("prompt": "abc", "max_tokens": 12, "temperature": 0)";
  const Response whole = served.complete("{" + text_request + R"(, "logprobs": 2, "n": 2})");
  INFO(whole.body);
  REQUIRE(whole.status == 200);
  const boost::json::value choices = whole.json().at("choices");
  CHECK(text_of(choices.at(0).at("text")) == first);
  CHECK(text_of(choices.at(1).at("text")) == first);
  CHECK(choices.at(0).at("logprobs").at("token_logprobs").as_array().size() ==
        choices.at(0).at("logprobs").at("top_logprobs").as_array().size());
  CHECK(whole.json().at("usage").at("prompt_tokens") == 3);
  CHECK(text_of(served.complete("{" + text_request + R"(, "echo": true})").json().at("choices").at(0).at("text")) ==
        "abc" + first);
  CHECK(streamed(served.complete("{" + text_request + R"(, "stream": true})")).first == first);

  const std::string chat_request =
      R"("messages": [{"role": "user", "content": [{"type": "text", "text": "bc"}]}], "max_completion_tokens": 9,
         "temperature": 0.7, "seed": 5, "model": "chat")";
  const Response chat = served.ask("POST", "/v1/chat/completions", "{" + chat_request + "}");
  INFO(chat.body);
  REQUIRE(chat.status == 200);
  CHECK(text_of(chat.json().at("choices").at(0).at("message").at("content")) == second);
  const Response events =
      served.ask("POST", "/v1/chat/completions",
                 "{" + chat_request + R"(, "stream": true, "stream_options": {"include_usage": true}})");
  CHECK(streamed(events) ==
        std::pair(second, std::string(chat.json().at("choices").at(0).at("finish_reason").as_string())));
  const std::vector<std::string> data = events_of(events.body);
  CHECK(boost::json::parse(data.front()).at("choices").at(0).at("delta").at("role") == "assistant");
  CHECK(boost::json::parse(data[data.size() - 2]).at("usage") == chat.json().at("usage"));

  CHECK(served.ask("GET", "/v1/models").json().at("data").at(0).at("id") == "chat");
  CHECK(served.ask("GET", "/v1/models/c%68at").status == 200);
  CHECK(served.ask("POST", "/tokenize", R"({"prompt": "abc"})").json().at("tokens") == boost::json::array{2, 3, 4});
  CHECK(served.ask("POST", "/detokenize", R"({"tokens": [4, 3]})").json().at("prompt") == "cb");
  CHECK_THAT(served.ask("GET", "/").body, Contains("<!doctype html>"));
  CHECK_THAT(served.ask("GET", "/metrics").body, Contains("shardrun_requests_total{status=\"200\"} "));

  // Two requests in one write are answered in order, on one connection.
  Client client(served.port());
  client.send(request_text("GET", "/v1/models/chat", "", "") + request_text("GET", "/health"));
  const std::string both = client.read_all();
  CHECK(both.find("\"object\":\"model\"") < both.find("\"status\":\"ok\""));
  CHECK(both.find("\"status\":\"ok\"") != std::string::npos);
  const Ended ended = served.stop();
  CHECK(ended.code == 0);
  CHECK_THAT(ended.err, Contains("\"POST /v1/completions\" 200"));
}

TEST_CASE("serve: wrong requests are refused and told why", "[serve]") {
  const TemporaryFolder folder;
  make_model(folder);
  write_file(folder / "token", "secret\n");
  Served served(folder.path(), {"--max-body", "2000", "--token-file", "token"});
  const auto refused = [&](const std::string& body, const std::string& path = "/v1/completions") {
    const Response response = served.ask("POST", path, body, "Connection: close\r\nAuthorization: Bearer secret\r\n");
    return std::to_string(response.status) + " " + boost::json::serialize(response.json().at("error").at("param")) +
           " " + boost::json::serialize(response.json().at("error").at("code"));
  };
  CHECK(refused("{") == "400 null null");
  CHECK(refused("[]") == "400 null null");
  CHECK(refused("{}") == "400 \"prompt\" null");
  CHECK(refused(R"({"prompt": "a", "temperature": "x"})") == "400 \"temperature\" null");
  CHECK(refused(R"({"prompt": "a", "logit_bias": {"1": 2}})") == "400 \"logit_bias\" null");
  CHECK(refused(R"({"prompt": "a", "response_format": {"type": "json_object"}})") == "400 \"response_format\" null");
  CHECK(refused(R"({"prompt": [40]})") == "400 \"prompt\" null");
  CHECK(refused(R"({"prompt": "a", "model": "other"})") == "404 \"model\" \"model_not_found\"");
  CHECK(refused(R"({"prompt": ")" + std::string(64, 'a') + "\"}") == "400 \"prompt\" \"context_length_exceeded\"");
  CHECK(refused(R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})", "/v1/chat/completions") ==
        "400 \"messages[0].content\" null");
  CHECK(refused(std::string(2001, ' ')) == "413 null null");
  CHECK(served.complete("{}").status == 401);
  CHECK(served.ask("POST", "/v1/completions", "{}", "Connection: close\r\nAuthorization: Bearer wrong1\r\n").status ==
        401);
  CHECK(served.ask("GET", "/nothing").status == 404);
  CHECK(served.ask("PUT", "/health").status == 405);
  Client garbage(served.port());
  garbage.send("no HTTP\r\n\r\n");
  CHECK(response_of(garbage.read_all()).status == 400);
  Client long_head(served.port());
  long_head.send("GET / HTTP/1.1\r\nA: " + std::string(20'000, 'a'));
  CHECK(response_of(long_head.read_all()).status == 431);
  CHECK(served.stop().code == 0);
  const auto usage = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"serve", "chat", "--port", "0"});
    const Ended ended = run_program(folder.path(), words);
    CHECK(ended.code == 2);
    return ended.err;
  };
  CHECK_THAT(usage({"--host", "0.0.0.0"}), Contains("--host 0.0.0.0 lets other hosts in"));
  CHECK_THAT(usage({"--set", "infer.events=false"}), Contains("is no job that continues prompts"));
  write_file(folder / "trains.ini", "[model]\nname = gpt\n[data]\ntext = trains.ini\n[train]\nsteps = 1\n");
  CHECK(run_program(folder.path(), {"serve", "trains.ini"}).code == 2);
  write_file(folder / "job.ini",
             "[job]\ntask = infer\n[model]\nfrom = chat\ncontext = 40\n[infer]\ntokens = 3\nslots = 2\n");
  Served of_job(folder.path(), {}, "job.ini");
  CHECK(of_job.complete(R"({"prompt": "a"})").json().at("usage").at("completion_tokens") == 3);
  CHECK(of_job.ask("GET", "/v1/models/job").json().at("max_model_len") == 40);
  CHECK(of_job.stop().code == 0);
}

TEST_CASE("serve: prompts that wait are bounded, and end with their clients", "[serve]") {
  const TemporaryFolder folder;
  make_model(folder);
  Served served(folder.path(), {"--slots", "1", "--queue", "2"});
  CHECK_THAT(served.complete(R"({"prompt": ["a", "b"], "n": 2})").body, Contains("at most 3 at once"));
  CHECK(served.complete(R"({"prompt": "a", "n": 3, "max_tokens": 1})").status == 200);
  const pid_t job = await_children(served.process(), 1).front();
  ::kill(job, SIGSTOP);  // nothing is answered meanwhile
  const std::string request = request_text("POST", "/v1/completions", R"({"prompt": "a", "max_tokens": 2})");
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 4; ++i) {  // one in the slot, one beside it, two in the queue
    clients.push_back(std::make_unique<Client>(served.port()));
    clients.back()->send(request);
  }
  served.await_metric("queue_length", "2");
  const Response full = served.complete(R"({"prompt": "a"})");
  CHECK(full.status == 429);
  CHECK_THAT(full.head, Contains("Retry-After: 1"));
  clients.pop_back();
  served.await_metric("queue_length", "1");
  clients.erase(clients.begin());  // the one in the slot
  served.await_metric("requests_total{status=\"0\"}", "2");
  ::kill(job, SIGCONT);
  for (const auto& each : clients) {
    CHECK(response_of(each->read_all()).status == 200);
  }
  served.await_metric("prompts_in_work", "0");
  CHECK(served.complete(R"({"prompt": "a", "max_tokens": 1})").status == 200);
  CHECK(served.stop().code == 0);
}

TEST_CASE("serve: a rank that is killed fails what is in work, and the server goes on", "[serve]") {
  const TemporaryFolder folder;
  make_model(folder);
  Served served(folder.path(), {"--ranks", "2", "--strategy", "tp"});
  const pid_t job = await_children(served.process(), 1).front();
  const std::vector<pid_t> ranks = await_children(job, 2);
  REQUIRE(ranks.size() == 2);
  for (const pid_t rank : ranks) {
    ::kill(rank, SIGSTOP);
  }
  Client client(served.port());
  client.send(request_text("POST", "/v1/completions", R"({"prompt": "a", "max_tokens": 2})"));
  served.await_metric("prompts_in_work", "1");
  ::kill(ranks[1], SIGKILL);
  const Response failed = response_of(client.read_all());
  CHECK(failed.status == 500);
  CHECK(failed.json().at("error").at("type") == "server_error");
  served.await_ready();
  CHECK(served.complete(R"({"prompt": "a", "max_tokens": 2})").status == 200);
  served.await_metric("job_restarts_total", "1");
  const Ended ended = served.stop();
  CHECK(ended.code == 0);
}

TEST_CASE("serve: what is in work is answered before the end", "[serve]") {
  const TemporaryFolder folder;
  make_model(folder);
  Served served(folder.path());
  const pid_t job = await_children(served.process(), 1).front();
  ::kill(job, SIGSTOP);
  Client client(served.port());
  client.send(request_text("POST", "/v1/completions", R"({"prompt": "a", "max_tokens": 2})"));
  served.await_metric("prompts_in_work", "1");
  ::kill(served.process(), SIGTERM);
  while (served.ask("GET", "/health").status != 503) {
    ::usleep(10'000);
  }
  CHECK(served.complete(R"({"prompt": "a"})").status == 503);
  ::kill(job, SIGCONT);
  CHECK(response_of(client.read_all()).status == 200);
  CHECK(served.end().code == 0);
}

TEST_CASE("serve: a job that ends while the server stops is not started again", "[serve]") {
  const TemporaryFolder folder;
  make_model(folder);
  Served idle(folder.path(), {"--drain", "0"});
  CHECK(idle.stop().code == 0);
  Served served(folder.path());
  const pid_t job = await_children(served.process(), 1).front();
  ::kill(job, SIGSTOP);
  Client client(served.port());
  client.send(request_text("POST", "/v1/completions", R"({"prompt": "a", "max_tokens": 2})"));
  served.await_metric("prompts_in_work", "1");
  ::kill(served.process(), SIGTERM);
  while (served.ask("GET", "/health").body.find("draining") == std::string::npos) {
    ::usleep(10'000);
  }
  ::kill(job, SIGKILL);
  CHECK(response_of(client.read_all()).status == 500);
  const Ended ended = served.end();
  CHECK(ended.code == 0);
  CHECK(ended.err.find("starting it again") == std::string::npos);
}

TEST_CASE("generate --chat answers each line, with the lines before", "[serve]") {
  const TemporaryFolder folder;
  make_model(folder);
  const auto said = [&](const std::string& input) {
    write_file(folder / "input", input);
    const Ended ended = run_script(
        folder.path(), "\"$0\" generate chat --chat --temperature 0 --tokens 5 --ranks 2 --strategy pp < input");
    INFO(ended.err);
    CHECK(ended.code == 0);
    return ended.out;
  };
  const std::string one = said("ab\n");
  REQUIRE(one.size() == 6);
  const std::string two = said("ab\nc\n");
  CHECK(two.starts_with(one));
  // The second prompt is the whole conversation.
  CHECK(two.substr(one.size()) == said("ab" + one.substr(0, 5) + "c\n"));
  CHECK(said("ab\n/reset\nab") == one + one);
  CHECK(said("ab\n/exit\nab\n") == one);
}
