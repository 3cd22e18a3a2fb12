// The HTTP server: answers are those of generate, and faults of clients and of the job stay theirs.

#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdio>
#include <future>
#include <map>

#include "core/files/descriptor.h"
#include "tests/integration/processes.h"
#include "tests/integration/served.h"
#include "tests/support/catch.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;

namespace {

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

template <typename Object, void (*Free)(Object*)>
using Owned = std::unique_ptr<Object, std::integral_constant<void (*)(Object*), Free>>;

/// Writes a certificate for 127.0.0.1, and its key, as PEM.
void write_certificate(const std::filesystem::path& certificate, const std::filesystem::path& key) {
  const Owned<EVP_PKEY, EVP_PKEY_free> made(EVP_EC_gen("P-256"));
  const Owned<X509, X509_free> of(X509_new());
  REQUIRE((made && of));
  X509_NAME* const name = X509_get_subject_name(of.get());
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("127.0.0.1"), -1, -1, 0);
  X509_set_issuer_name(of.get(), name);
  ASN1_INTEGER_set(X509_get_serialNumber(of.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(of.get()), -60);
  X509_gmtime_adj(X509_getm_notAfter(of.get()), 3600);
  X509_set_pubkey(of.get(), made.get());
  REQUIRE(X509_sign(of.get(), made.get(), EVP_sha256()) > 0);
  const auto write = [](const std::filesystem::path& path, const auto& call) {
    std::FILE* const file = std::fopen(path.c_str(), "w");
    REQUIRE(file != nullptr);
    CHECK(call(file) == 1);
    std::fclose(file);
  };
  write(certificate, [&](std::FILE* file) { return PEM_write_X509(file, of.get()); });
  write(key,
        [&](std::FILE* file) { return PEM_write_PrivateKey(file, made.get(), nullptr, nullptr, 0, nullptr, nullptr); });
}

/// Exchanges over TLS with a server that must have this certificate.
Exchange over_tls(const std::filesystem::path& certificate) {
  return [certificate](int port, const std::string& request) {
    const Client client(port);
    const Owned<SSL_CTX, SSL_CTX_free> tls(SSL_CTX_new(TLS_client_method()));
    REQUIRE(SSL_CTX_load_verify_file(tls.get(), certificate.c_str()) == 1);
    SSL_CTX_set_verify(tls.get(), SSL_VERIFY_PEER, nullptr);
    const Owned<SSL, SSL_free> stream(SSL_new(tls.get()));
    SSL_set_fd(stream.get(), client.descriptor());
    REQUIRE(SSL_connect(stream.get()) == 1);
    REQUIRE(SSL_write(stream.get(), request.data(), static_cast<int>(request.size())) > 0);
    std::string answer;
    char bytes[4096];
    for (int count = 0; (count = SSL_read(stream.get(), bytes, sizeof bytes)) > 0;) {
      answer.append(bytes, static_cast<std::size_t>(count));
    }
    SSL_shutdown(stream.get());
    return answer;
  };
}

constexpr const char* small_request = R"({"prompt": "a", "max_tokens": 2, "temperature": 0})";

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
  const Ended trains = run_program(folder.path(), {"serve", "trains.ini"});
  CHECK(trains.code == 2);
  CHECK_THAT(trains.err, Contains("'trains.ini' is a job with [job] task = train") && !Contains("infer.tokens"));
  CHECK_THAT(usage({"--tokens", "0"}), Contains("--tokens: expected a number from 1 to "));
  const Ended many = run_script(folder.path(), "ulimit -v 1000000; \"$0\" serve chat --port 0 --slots 65536");
  CHECK(many.code == 2);
  CHECK_THAT(many.err, Contains("make the model, --slots or --context smaller"));
  write_file(folder / "job.ini",
             "[job]\ntask = infer\n[model]\nfrom = chat\ncontext = 40\n[infer]\ntokens = 3\nslots = 2\n");
  Served of_job(folder.path(), {}, "job.ini");
  CHECK(of_job.complete(R"({"prompt": "a", "temperature": 0})").json().at("usage").at("completion_tokens") == 3);
  CHECK(of_job.ask("GET", "/v1/models/job").json().at("max_model_len") == 40);
  CHECK(of_job.stop().code == 0);
}

TEST_CASE("serve: slots = auto is searched for once, and refused without [cluster] memory", "[serve]") {
  const TemporaryFolder folder;
  make_model(folder);
  const Ended ended = run_program(folder.path(), {"serve", "chat", "--slots", "auto", "--port", "0"});
  CHECK(ended.code == 2);
  CHECK(ended.out.empty());
  CHECK_THAT(ended.err, Contains("the job does not say how much memory a rank has"));
  Served served(folder.path(), {"--slots", "auto", "--set", "cluster.memory=1GiB"});
  const Ended stopped = served.stop();
  CHECK(stopped.code == 0);
  CHECK_THAT(stopped.err, Contains("ready: 32 slots") && Contains("finished after 0 answers") &&
                              !Contains("slots = auto") && !Contains("results in"));
}

TEST_CASE("serve: a job that would not run is refused before it listens", "[serve]") {
  const TemporaryFolder folder;
  make_model(folder);
  const Ended ended = run_program(folder.path(), {"serve", "chat", "--context", "1000000", "--port", "0"});
  CHECK(ended.code == 2);
  CHECK(ended.out.empty());
  CHECK_THAT(ended.err, Contains("--context: a context of 1000000 is more than the "));
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
  client.send(request_text("POST", "/v1/completions", R"({"prompt": "a", "max_tokens": 2, "n": 2})", ""));
  client.send(request_text("GET", "/v1/models"));
  served.await_metric("prompts_in_work", "2");
  ::kill(ranks[1], SIGKILL);
  const std::string answers = client.read_all();
  const std::size_t second = answers.find("HTTP/1.1 ", 1);
  REQUIRE(second != std::string::npos);
  // Both prompts have failed, and the request has one answer.
  CHECK(response_of(answers.substr(second)).json().at("object") == "list");
  const Response failed = response_of(answers.substr(0, second));
  CHECK(failed.status == 500);
  CHECK(failed.json().at("error").at("type") == "server_error");
  // It was told before the other rank ended, which is stopped.
  CHECK_THAT(failed.body, Contains("a rank of the job has failed while the request was in work"));
  served.await_ready();
  CHECK(served.complete(R"({"prompt": "a", "max_tokens": 2})").status == 200);
  served.await_metric("job_restarts_total", "1");
  const Ended ended = served.stop();
  CHECK(ended.code == 0);
}

TEST_CASE("serve: a line of the job that is no event fails the job, and an empty one is skipped", "[serve]") {
  const TemporaryFolder folder;
  make_model(folder);
  Served served(folder.path());
  const pid_t job = await_children(served.process(), 1).front();
  const std::string output = "/proc/" + std::to_string(job) + "/fd/1";
  write_file(output, "\n");
  CHECK(served.complete(small_request).status == 200);
  write_file(output, "\n{\"id\": 1, \"te\n");
  served.await_metric("job_restarts_total", "1");
  served.await_ready();
  CHECK(served.complete(small_request).status == 200);
  const Ended ended = served.stop();
  CHECK(ended.code == 0);
  CHECK_THAT(ended.err, Contains("what the job wrote is no event") && !Contains("SIGKILL"));
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

TEST_CASE("serve: https has the certificate that is named", "[serve]") {
  const TemporaryFolder folder;
  make_model(folder);
  const std::filesystem::path certificate = folder / "certificate.pem";
  write_certificate(certificate, folder / "key.pem");
  Served served(folder.path(), {"--tls-certificate", "certificate.pem", "--tls-key", "key.pem"}, "chat",
                over_tls(certificate));
  CHECK(served.complete(small_request).status == 200);
  CHECK_THAT(exchange(served.port(), request_text("GET", "/health")), !Contains("HTTP/1.1"));
  CHECK(served.stop().code == 0);
  write_certificate(certificate, folder / "other.pem");
  const Ended refused = run_program(
      folder.path(), {"serve", "chat", "--port", "0", "--tls-certificate", "certificate.pem", "--tls-key", "key.pem"});
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, Contains("the key 'key.pem' cannot be used for TLS"));
}

TEST_CASE("serve: a Unix socket is its user's, and that of a dead server is replaced", "[serve]") {
  const TemporaryFolder folder;
  make_model(folder);
  const std::filesystem::path path = folder / "socket";
  const auto at_socket = [&](int, const std::string& request) {
    Client client(path);
    client.send(request);
    return client.read_all();
  };
  {
    Served killed(folder.path(), {"--socket", "socket"}, "chat", at_socket);
    struct stat status = {};
    REQUIRE(::lstat(path.c_str(), &status) == 0);
    CHECK(status.st_mode == (S_IFSOCK | 0600));
    const Ended second = run_program(folder.path(), {"serve", "chat", "--socket", "socket"});
    CHECK(second.code == 2);
    CHECK_THAT(second.err, Contains("cannot listen at the socket 'socket'"));
    CHECK(killed.complete(small_request).status == 200);
  }
  CHECK(std::filesystem::exists(path));
  Served served(folder.path(), {"--socket", "socket"}, "chat", at_socket);
  CHECK(served.complete(small_request).status == 200);
  CHECK(served.stop().code == 0);
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("serve: a request that takes longer than --timeout fails, and --log has a line for each", "[serve]") {
  const TemporaryFolder folder;
  make_model(folder);
  Served served(folder.path(), {"--timeout", "1", "--log", "log"});
  CHECK(served.complete(small_request).status == 200);
  const pid_t job = await_children(served.process(), 1).front();
  ::kill(job, SIGSTOP);
  const Response late = served.complete(small_request);
  ::kill(job, SIGCONT);
  CHECK(late.status == 503);
  CHECK(late.json().at("error").at("code") == "timeout");
  CHECK(served.complete(small_request).status == 200);
  const Ended ended = served.stop();
  CHECK(ended.code == 0);
  CHECK_THAT(ended.err, Contains("ready: ") && !Contains("POST"));
  const std::string log = read_file(folder / "log");
  const std::size_t refused = log.find("Z 127.0.0.1 \"POST /v1/completions\" 503 ");
  REQUIRE(refused != std::string::npos);
  CHECK(log.find("\"POST /v1/completions\" 200 ") < refused);
  CHECK(log.find("\"POST /v1/completions\" 200 ", refused) != std::string::npos);
}

TEST_CASE("serve: echo with logprobs gives those of the prompt", "[serve]") {
  const TemporaryFolder folder;
  make_model(folder);
  Served served(folder.path(), {"--ranks", "2", "--strategy", "tp", "--set", "infer.prompt_logprobs=true", "--set",
                                "infer.chunk=2"});  // so that a prompt's logprobs come in several pieces
  const auto choice_of = [&](const std::string& fields) {
    const Response response = served.complete("{\"temperature\": 0, " + fields + "}");
    INFO(response.body);
    REQUIRE(response.status == 200);
    return response.json().at("choices").at(0).as_object();
  };
  const boost::json::object drawn = choice_of(R"("prompt": "abc", "max_tokens": 4, "logprobs": 1, "ignore_eos": true)");
  const boost::json::array tokens = drawn.at("logprobs").at("token_logprobs").as_array();
  REQUIRE(tokens.size() == 4);
  // The answer as a part of the prompt, in the form in which harnesses ask for the likelihood of a text.
  const std::string whole = "abc" + text_of(drawn.at("text"));
  const boost::json::object scored =
      choice_of("\"prompt\": \"" + whole + R"(", "max_tokens": 1, "logprobs": 1, "echo": true, "seed": 1234)");
  const boost::json::object logprobs = scored.at("logprobs").as_object();
  CHECK(text_of(scored.at("text")).starts_with(whole));
  const boost::json::array& all = logprobs.at("token_logprobs").as_array();
  REQUIRE(all.size() == 8);
  CHECK(all[0].is_null());
  CHECK(logprobs.at("top_logprobs").at(0).is_null());
  CHECK(logprobs.at("tokens").as_array().size() == 8);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(all[3 + i].as_double() == Approx(tokens[i].as_double()).margin(1e-5));
    CHECK(logprobs.at("text_offset").at(3 + i) == 3 + i);
    // Each was the likeliest.
    CHECK(logprobs.at("top_logprobs").at(3 + i).as_object().begin()->value() == all[3 + i]);
  }
  const boost::json::object prompt_alone =
      choice_of(R"("prompt": "abc", "max_tokens": 0, "logprobs": 0, "echo": true)");
  CHECK(prompt_alone.at("text") == "abc");
  CHECK(prompt_alone.at("logprobs").at("token_logprobs").as_array().size() == 3);
  const Response events = served.complete(
      R"({"prompt": "abc", "max_tokens": 2, "logprobs": 1, "echo": true, "stream": true, "ignore_eos": true})");
  std::size_t streamed_tokens = 0;
  for (const std::string& event : events_of(events.body)) {
    const boost::json::value choice = event == "[DONE]" ? boost::json::value() : boost::json::parse(event);
    if (choice.is_object() && choice.at("choices").at(0).at("logprobs").is_object()) {
      streamed_tokens += choice.at("choices").at(0).at("logprobs").at("token_logprobs").as_array().size();
    }
  }
  CHECK(streamed_tokens == 5);
  CHECK(served.stop().code == 0);
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
