// Pages about runs and plans.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <map>
#include <set>

#include "core/files/descriptor.h"
#include "tests/integration/program.h"
#include "tests/support/catch.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

namespace json = boost::json;

namespace {

/// Parses the JSON document that is embedded in an HTML page.
json::object document_of_page(const std::string& page) {
  constexpr std::string_view begin = R"(<script type="application/json" id="document">)";
  const std::size_t at = page.find(begin);
  REQUIRE(at != std::string::npos);
  const std::string_view rest = std::string_view(page).substr(at + begin.size());
  const std::string text(rest.substr(0, rest.find("</script>")));
  return json::parse(text).as_object();
}

json::array runs_in(const std::filesystem::path& page) {
  return document_of_page(read_file(page)).at("runs").as_array();
}

json::object only_run_in(const std::filesystem::path& page) {
  const json::array runs = runs_in(page);
  REQUIRE(runs.size() == 1);
  return runs[0].as_object();
}

/// The answer of a server on this machine to a GET.
std::string get(int port, const std::string& path, const std::string& host = "127.0.0.1") {
  const files::FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in to = {.sin_family = AF_INET,
                          .sin_port = htons(static_cast<std::uint16_t>(port)),
                          .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
  REQUIRE(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
  const timeval patience = {.tv_sec = 60, .tv_usec = 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  const std::string request = "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n";
  ::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL);
  std::string answer;
  char bytes[65536];
  for (ssize_t count = 0; (count = ::recv(socket.get(), bytes, sizeof bytes, 0)) > 0;) {
    answer.append(bytes, static_cast<std::size_t>(count));
  }
  return answer;
}

const std::vector<std::string> in_3d = {"job.ranks=4",   "job.strategy=3d", "mesh.data=2",
                                        "mesh.pipe=2",   "strategy.zero=1", "data.microbatches=4",
                                        "train.steps=6", "job.trace=steps", "train.eval_every=3"};

}  // namespace

TEST_CASE("a report has what a run has left, and what was planned for it", "[program][report]") {
  const JobFolder job;
  REQUIRE(job.run(in_3d).code == 0);
  const Ended ended = run_program(job.path(), {"report", "run"});
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  CHECK(ended.out == "run/report.html\n");
  const json::object run = only_run_in(job.path() / "run/report.html");
  const json::object summary = job.summary();
  CHECK(run.at("name") == "run");
  CHECK(run.at("status") == "finished");
  CHECK(run.at("task") == "train");
  CHECK(run.at("unit") == "tok");
  CHECK(run.at("summary") == summary);
  CHECK(run.at("job").at("text").as_string() == json::string(read_file(job.path() / "run/job.ini")));

  const json::object& steps = run.at("steps").as_object();
  const std::vector<json::object> lines = job.metrics();
  for (const char* const column : {"step", "loss", "val_loss", "grad_norm", "lr", "tokens_per_s", "step_s",
                                   "comm_exposed_s", "comm_hidden_s", "flops_per_s"}) {
    INFO(column);
    const json::array& values = steps.at(column).as_array();
    REQUIRE(values.size() == lines.size());
    for (std::size_t i = 0; i < lines.size(); ++i) {
      CHECK(values[i] == (lines[i].contains(column) ? lines[i].at(column) : json::value()));
    }
  }
  CHECK(steps.at("tokens").as_array().size() == 6);
  const json::object& times = run.at("rank_times").as_object();
  CHECK(times.at("step").as_array().back() == 6);
  for (const char* const name : {"seconds", "computing_s", "exposed_s", "hidden_s", "input_s", "sent_bytes"}) {
    INFO(name);
    REQUIRE(times.at(name).as_array().size() == times.at("step").as_array().size());
    CHECK(times.at(name).as_array()[0].as_array().size() == 4);
  }

  const Ended plan = run_program(job.path(), with_settings({"plan", "job.ini", "--json"}, in_3d));
  const json::object planned = json::parse(plan.out).as_object();
  CHECK(run.at("parameters") == planned.at("parameters"));
  const json::array& ranks = run.at("ranks").as_array();
  REQUIRE(ranks.size() == 4);
  for (const json::value& alike : planned.at("ranks").as_array()) {
    for (const json::value& member : alike.at("members").as_array()) {
      const json::object& rank = ranks[member.to_number<std::size_t>()].as_object();
      const json::value& measured = summary.at("ranks").as_array()[member.to_number<std::size_t>()];
      CHECK(rank.at("rank") == member);
      CHECK(rank.at("planned") == alike.at("bytes"));
      CHECK(rank.at("planned_sent") == alike.at("sent_bytes"));
      CHECK(rank.at("stage") == alike.at("stage"));
      CHECK(rank.at("sent") == measured.at("sent_bytes"));
      CHECK(rank.at("sent") == rank.at("planned_sent"));
      CHECK(rank.at("measured_peak") == measured.at("peak_bytes"));
      CHECK(rank.at("host") == measured.at("host"));
    }
  }
  CHECK(run.at("mesh") == json::parse(R"({"axes": [["pipe", 2], ["replica", 1], ["data", 2], ["model", 1]],
                                          "ranks": [0, 1, 2, 3]})"));
  CHECK(ranks[2].at("place") == json::parse(R"({"pipe": 1, "replica": 0, "data": 0, "model": 0})"));

  const json::object& timeline = run.at("timeline").as_object();
  CHECK(timeline.at("unit") == "ticks");
  REQUIRE(timeline.at("stages").as_array().size() == 2);
  CHECK(timeline.at("stages").as_array()[0].at("spans").as_array().size() == 8);  // 4 forwards and 4 backwards
  CHECK(timeline.at("stages").as_array()[0].at("spans").as_array()[0] == json::parse(R"([0, 1, "F", 0, 0])"));

  std::set<std::string> kinds;
  for (const json::value& tensor : run.at("tensors").as_array()) {
    kinds.emplace(tensor.at("kind").as_string());
    CHECK_FALSE(tensor.at("shards").as_array().empty());
  }
  CHECK(kinds == std::set<std::string>{"parameter", "moment"});  // zero 1 splits moments only

  const json::object& trace = run.at("trace").as_object();
  CHECK(trace.at("left_out") == 0);
  CHECK(trace.at("ranks").as_array().size() == 4);
  const json::array& names = trace.at("names").as_array();
  CHECK(std::ranges::find(names, json::value("0F3")) != names.end());
  CHECK(run.at("notes").as_array().empty());
}

TEST_CASE("a page of a plan starts nothing", "[program][report]") {
  const JobFolder job;
  const auto words = [](const std::string& file) { return with_settings({"plan", "job.ini", "--html", file}, in_3d); };
  const Ended ended = run_program(job.path(), words("plan.html"));
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  CHECK(ended.out == "plan.html\n");
  CHECK_FALSE(std::filesystem::exists(job.path() / "run"));
  const json::object run = only_run_in(job.path() / "plan.html");
  CHECK(run.at("status") == "planned");
  CHECK(run.at("ranks").as_array().size() == 4);
  CHECK(run.at("timeline").at("stages").as_array().size() == 2);
  CHECK_FALSE(run.at("tensors").as_array().empty());
  REQUIRE(run_program(job.path(), words("plan.html")).code == 0);  // replaces a page, and nothing else
  const Ended refused = run_program(job.path(), words("corpus.txt"));
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, Contains("'corpus.txt' exists"));
  CHECK(run_program(job.path(), with_settings({"plan", "job.ini", "--html", "x.html", "--json"}, in_3d)).code == 2);
}

TEST_CASE("a page of a plan has one entry for tensors of alike layers if there are many", "[program][report]") {
  const JobFolder job;
  std::vector<std::string> settings = in_3d;
  settings.emplace_back("model.layers=40");
  const Ended ended = run_program(job.path(), with_settings({"plan", "job.ini", "--html", "plan.html"}, settings));
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  const json::array tensors = only_run_in(job.path() / "plan.html").at("tensors").as_array();
  std::map<std::string, std::int64_t> counts;
  for (const json::value& tensor : tensors) {
    const std::string name(tensor.at("name").as_string());
    if (name.starts_with("layer.") && name.ends_with("/mlp/up/weights")) {
      counts[name] = tensor.at("count").as_int64();
    }
  }
  CHECK(counts ==
        std::map<std::string, std::int64_t>{{"layer.{0-19}/mlp/up/weights", 20}, {"layer.{20-39}/mlp/up/weights", 20}});
}

TEST_CASE("a report compares runs, and tells of failures and attempts", "[program][report]") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=2", "job.output=good"}).code == 0);
  CHECK(job.run({"train.steps=4", "job.output=bad", "job.ranks=2", "job.strategy=dp", "job.transport=chaos",
                 "job.restarts=1", "checkpoint.every=2", "transport.chaos.kill_rank=1", "transport.chaos.at_op=1"})
            .code == 1);
  const Ended ended = run_program(job.path(), {"report", "good", "bad/"});
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  CHECK(ended.out == "report.html\n");
  const json::array runs = runs_in(job.path() / "report.html");
  REQUIRE(runs.size() == 2);
  CHECK(runs[0].at("status") == "finished");
  CHECK(runs[0].at("attempts").as_array().empty());
  CHECK(runs[1].at("status") == "failed");
  CHECK_THAT(std::string(runs[1].at("error").as_string()), Contains("SIGKILL"));
  CHECK(runs[1].at("attempts").as_array().size() == 1);
  CHECK(runs[1].at("attempts").as_array()[0].at("rank") == 1);

  const Ended missing = run_program(job.path(), {"report", "good", "none", "--to", "both.html"});
  CHECK(missing.code == 2);
  CHECK_THAT(missing.err, StartsWith("shardrun: there is no folder 'none'"));
  CHECK_FALSE(std::filesystem::exists(job.path() / "both.html"));
  CHECK_THAT(run_program(job.path(), {"report", "."}).err, Contains("'.' is not the folder of a run"));
  CHECK_THAT(run_program(job.path(), {"report", "good", "--to", "job.ini"}).err, Contains("'job.ini' exists"));
  const Ended destroying = run_program(job.path(), {"report", "good", "--to", "good/metrics.jsonl", "--replace"});
  CHECK(destroying.code == 2);
  CHECK(read_json_lines(job.path() / "good/metrics.jsonl").size() == 2);
}

TEST_CASE("a report lacks only the plan if the job can no longer be compiled", "[program][report]") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=2"}).code == 0);
  std::filesystem::remove(job.path() / "corpus.txt");
  REQUIRE(run_program(job.path(), {"report", "run", "--to", "page.html"}).code == 0);
  const json::object run = only_run_in(job.path() / "page.html");
  CHECK(run.at("steps").at("loss").as_array().size() == 2);
  REQUIRE(run.at("notes").as_array().size() == 1);
  CHECK_THAT(std::string(run.at("notes").as_array()[0].as_string()),
             StartsWith("the plan is left out: ") && Contains("corpus.txt"));
  CHECK_FALSE(run.contains("mesh"));
}

TEST_CASE("a report of answers to prompts has the plan of their job", "[program][report]") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=1"}).code == 0);
  write_file(job.path() / "prompts.jsonl", "{\"prompt\": [1, 2, 3]}\n");
  const Ended generated = run_program(
      job.path(), with_settings({"generate", "run", "--tokens", "2"}, {"job.output=gen", "infer.from=prompts.jsonl"}));
  INFO(generated.err);
  REQUIRE(generated.code == 0);
  REQUIRE(run_program(job.path(), {"report", "gen"}).code == 0);
  const json::object run = only_run_in(job.path() / "gen/report.html");
  CHECK(run.at("task") == "infer");
  CHECK(run.at("unit") == "tok");
  CHECK(run.at("notes").as_array().empty());
  CHECK_FALSE(run.at("tensors").as_array().empty());
  CHECK(run.at("steps").as_object().empty());
}

TEST_CASE("a report of a simulation has its fields and pictures", "[program][report]") {
  const TemporaryFolder folder;
  write_file(folder / "heat.ini",
             "[job]\ntask = iterate\nranks = 2\nstrategy = named\noutput = run\n[sharding]\nx = space\n"
             "[model]\nname = heat2d\nrows = 8\ncolumns = 6\nboundary = periodic\n"
             "[iterate]\nsteps = 4\nsave_every = 2\npictures = temperature\n");
  const Ended simulated = run_program(folder.path(), {"heat.ini"});
  INFO(simulated.err);
  REQUIRE(simulated.code == 0);
  REQUIRE(run_program(folder.path(), {"report", "run"}).code == 0);
  const json::object run = only_run_in(folder / "run/report.html");
  CHECK(run.at("task") == "iterate");
  CHECK(run.at("steps").at("step_s").as_array().size() == 4);
  CHECK_FALSE(run.at("steps").as_object().contains("loss"));
  CHECK(run.at("tensors").as_array()[0].at("kind") == "field");
  CHECK(run.at("tensors").as_array()[0].at("shards").as_array()[1].at("ranges") == json::parse("[[4, 8], [0, 6]]"));
  const json::array& pictures = run.at("pictures").as_array();
  REQUIRE(pictures.size() == 2);
  CHECK_THAT(std::string(pictures[0].at("data").as_string()), StartsWith("data:image/gif;base64,"));
  CHECK_THAT(std::string(pictures[1].at("data").as_string()), StartsWith("data:image/png;base64,iVBORw0KGgo"));
}

TEST_CASE("a live report serves the newest numbers to this machine alone", "[program][report]") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=2"}).code == 0);
  bool has_asked = false;
  const Ended ended = run_program(job.path(), {"report", "run", "--live"}, [&](pid_t process, std::string_view out) {
    const std::size_t at = out.find("127.0.0.1:");
    if (has_asked || at == std::string_view::npos || out.back() != '\n') {
      return;
    }
    has_asked = true;
    const int port = std::stoi(std::string(out.substr(at + 10)));
    const std::string page = get(port, "/");
    CHECK(document_of_page(page).at("live").as_bool());
    CHECK_THAT(page, Contains("connect-src 'self'"));
    const auto steps = [&] {
      const std::string answer = get(port, "/document.json");
      const json::value document = json::parse(answer.substr(answer.find("\r\n\r\n") + 4));
      return document.at("runs").as_array()[0].at("steps").at("step").as_array().size();
    };
    CHECK(steps() == 2);
    std::ofstream(job.path() / "run/metrics.jsonl", std::ios::app) << "{\"step\":3,\"loss\":1}\n";
    CHECK(steps() == 3);
    CHECK_THAT(get(port, "/document.json", "attacker.example"), StartsWith("HTTP/1.1 403"));
    CHECK_THAT(get(port, "/job.ini"), StartsWith("HTTP/1.1 404"));
    CHECK_THAT(get(port, "/../run/job.ini"), StartsWith("HTTP/1.1 40"));
    std::filesystem::rename(job.path() / "run", job.path() / "moved");
    CHECK_THAT(get(port, "/document.json"), StartsWith("HTTP/1.1 500") && Contains("the run's folder 'run' is gone"));
    std::filesystem::rename(job.path() / "moved", job.path() / "run");
    ::kill(process, SIGINT);
  });
  CHECK(has_asked);
  CHECK(ended.code == 0);
  CHECK_THAT(ended.out, StartsWith("serving run at http://127.0.0.1:"));
  CHECK_FALSE(std::filesystem::exists(job.path() / "run/report.html"));
  const Ended refused = run_program(job.path(), {"report", "run", "--live", "--at", "0.0.0.0:0"});
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, StartsWith("shardrun: --at: a live report is for this machine alone"));
  CHECK_THAT(run_program(job.path(), {"report", "run", "--live", "--at", "99999"}).err,
             StartsWith("shardrun: --at: expected ADDRESS:PORT"));
  for (const auto& [to, why] : std::map<std::string, std::string>{
           {"none/x.html", "there is no folder 'none'"}, {"run", "'run' is a folder"}, {"", "an empty name"}}) {
    const Ended not_made = run_program(job.path(), {"report", "run", "--to", to});
    CHECK(not_made.code == 2);
    CHECK_THAT(not_made.err, Contains(why));
  }
}
