#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>

#include "core/files/descriptor.h"
#include "tests/integration/program.h"
#include "tests/support/catch.h"
#include "tests/support/processes.h"
#include "tests/support/prometheus_text.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
using shardrun::files::FileDescriptor;

namespace {

/// Numbers as they are written, by the names of their columns.
using Row = std::map<std::string, std::string>;

/// The rows of metrics.csv; cells that are empty are left out.
std::vector<Row> rows_of(const std::filesystem::path& path) {
  std::vector<Row> rows;
  std::vector<std::string> names;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) {
    REQUIRE(line.ends_with('\r'));
    line.back() = ',';
    Row row;
    std::istringstream cells(line);
    std::size_t column = 0;
    const bool is_header = names.empty();
    for (std::string cell; std::getline(cells, cell, ','); ++column) {
      if (is_header) {
        names.push_back(cell);
      } else if (!cell.empty()) {
        row[names.at(column)] = cell;
      }
    }
    REQUIRE(column == names.size());
    if (!is_header) {
      rows.push_back(row);
    }
  }
  return rows;
}

/// The fields of the lines of metrics.jsonl; those that are null are left out.
std::vector<Row> fields_of(const std::filesystem::path& path) {
  static const std::regex field(R"re("([a-z_]+)":([^,}n]+))re");
  std::vector<Row> rows;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) {
    Row& row = rows.emplace_back();
    for (std::sregex_iterator found(line.begin(), line.end(), field), end; found != end; ++found) {
      row[(*found)[1]] = (*found)[2];
    }
  }
  return rows;
}

/// The records in a file of events, in all files of a folder.
std::vector<std::size_t> records_in(const std::filesystem::path& folder) {
  std::set<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files.insert(entry.path());
  }
  std::vector<std::size_t> counts;
  for (const std::filesystem::path& file : files) {
    const std::string bytes = read_file(file);
    std::size_t at = 0;
    counts.push_back(0);
    while (at + 12 <= bytes.size()) {
      std::size_t size = 0;
      std::copy_n(bytes.data() + at, 8, reinterpret_cast<char*>(&size));
      at += 8 + 4 + size + 4;
      ++counts.back();
    }
    REQUIRE(at == bytes.size());
  }
  return counts;
}

sockaddr_in loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  address.sin_port = ::htons(static_cast<std::uint16_t>(port));
  return address;
}

/// The body of what a server answers; nothing if none is there.
std::optional<std::string> page_at(int port, const std::string& path) {
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(port);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return std::nullopt;
  }
  const std::string request = "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  static_cast<void>(::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL));
  std::string answer(std::size_t{1} << 20U, '\0');
  std::size_t size = 0;
  for (ssize_t got = 0; (got = ::recv(socket.get(), answer.data() + size, answer.size() - size, 0)) > 0;) {
    size += static_cast<std::size_t>(got);
  }
  answer.resize(size);
  const std::size_t begin = answer.find("\r\n\r\n");
  return begin == std::string::npos ? std::nullopt : std::optional(answer.substr(begin + 4));
}

/// Asks again until a sample has at least this value, and returns all samples; none if it has not after 6,000 answers.
/// Nothing tells when it has.
std::map<std::string, double> await_sample(int port, const std::string& name, double least) {
  for (int answers = 0; answers < 6000; ++answers) {
    const std::optional<std::string> page = page_at(port, "/metrics");
    if (!page) {
      return {};
    }
    std::map<std::string, double> samples = prometheus_samples(*page);
    if (const auto found = samples.find(name); found != samples.end() && found->second >= least) {
      return samples;
    }
    ::usleep(10'000);
  }
  return {};
}

/// The port that a line of a run tells; 0 if it has not been told.
int port_in(std::string_view out) {
  constexpr std::string_view told = "metrics: http://127.0.0.1:";
  const std::size_t at = out.find(told);
  const std::size_t end = at == std::string_view::npos ? at : out.find("/metrics\n", at);
  return end == std::string_view::npos ? 0 : std::stoi(std::string(out.substr(at + told.size())));
}

}  // namespace

TEST_CASE("metrics.csv has what metrics.jsonl has, and each start of a run a file of events", "[program]") {
  const JobFolder job;
  const std::vector<std::string> kept = {"metrics.csv=true", "metrics.tensorboard=true", "checkpoint.every=10"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), kept.begin(), kept.end());
    return job.run(more);
  };
  const Ended first = with({"train.steps=20"});
  INFO(first.err);
  REQUIRE(first.code == 0);
  CHECK((rows_of(job.path() / "run/metrics.csv") == fields_of(job.path() / "run/metrics.jsonl")));
  CHECK(job.metrics().size() == 20);
  CHECK(fields_of(job.path() / "run/metrics.jsonl").back().at("step") == "20");
  CHECK(records_in(job.path() / "run/tensorboard") == std::vector<std::size_t>{3 + 20});

  const Ended resumed = with({"checkpoint.resume=auto", "train.steps=25"});
  INFO(resumed.err);
  REQUIRE(resumed.code == 0);
  CHECK((rows_of(job.path() / "run/metrics.csv") == fields_of(job.path() / "run/metrics.jsonl")));
  CHECK(job.metrics().size() == 25);
  CHECK(records_in(job.path() / "run/tensorboard") == std::vector<std::size_t>{3 + 20, 3 + 5});

  write_file(job.path() / "run/tensorboard/notes", "of the user");
  const Ended replacing = run_program(job.path(), {"job.ini", "--replace", "--set", "train.steps=1"});
  INFO(replacing.err);
  REQUIRE(replacing.code == 0);
  CHECK_FALSE(std::filesystem::exists(job.path() / "run/metrics.csv"));
  CHECK(files_in(job.path() / "run/tensorboard") == 1);
}

TEST_CASE("the numbers of a run are served over HTTP, over restarts of its ranks", "[program]") {
  const JobFolder job;
  std::map<std::string, double> at_steps;
  std::map<std::string, double> again;
  std::optional<std::string> elsewhere;
  bool is_asked = false;
  const Ended ended =
      run_program(job.path(),
                  with_settings({"job.ini"}, {"metrics.prometheus=0", "job.ranks=2", "job.strategy=dp", "data.batch=8",
                                              "train.steps=1000000", "train.eval_every=0", "job.restarts=1",
                                              "checkpoint.every=5", "checkpoint.async=false"}),
                  [&](pid_t process, std::string_view out) {
                    if (port_in(out) == 0 || std::exchange(is_asked, true)) {
                      return;
                    }
                    at_steps = await_sample(port_in(out), "shardrun_checkpoint_step", 5);
                    elsewhere = page_at(port_in(out), "/elsewhere");
                    const std::vector<pid_t> ranks = children_of(process);
                    ::kill(ranks.empty() ? process : ranks.front(), SIGKILL);
                    again = await_sample(port_in(out), "shardrun_restarts_total", 1);
                    again = await_sample(port_in(out), "shardrun_memory_peak_bytes{rank=\"1\"}", 1);
                    ::kill(process, SIGTERM);
                  });
  INFO(ended.out << ended.err);
  CHECK(ended.code == 75);
  REQUIRE_FALSE(at_steps.empty());
  CHECK(at_steps.at("shardrun_step") >= 5);
  CHECK(at_steps.at("shardrun_loss") > 0);
  CHECK(at_steps.at("shardrun_step_seconds") > 0);
  CHECK(at_steps.at("shardrun_tokens_per_second") > 0);
  CHECK(at_steps.at("shardrun_learning_rate") > 0);
  CHECK(at_steps.at("shardrun_ranks") == 2);
  CHECK(at_steps.at("shardrun_restarts_total") == 0);
  CHECK(at_steps.at("shardrun_checkpoints_saved_total") >= 1);
  CHECK(at_steps.at("shardrun_memory_planned_bytes{rank=\"1\"}") > 0);
  REQUIRE_FALSE(again.empty());
  CHECK(again.at("shardrun_restarts_total") == 1);
  CHECK(again.at("shardrun_checkpoints_saved_total") >= at_steps.at("shardrun_checkpoints_saved_total"));
  REQUIRE(elsewhere);
  CHECK_THAT(*elsewhere, Contains("nothing here"));
}

TEST_CASE("a run of one process serves its numbers, too", "[program]") {
  const JobFolder job;
  std::map<std::string, double> samples;
  bool is_asked = false;
  const Ended ended = run_program(
      job.path(),
      with_settings({"job.ini"}, {"metrics.prometheus=127.0.0.1:0", "train.steps=1000000", "train.eval_every=1"}),
      [&](pid_t process, std::string_view out) {
        if (port_in(out) == 0 || std::exchange(is_asked, true)) {
          return;
        }
        samples = await_sample(port_in(out), "shardrun_step", 2);
        ::kill(process, SIGTERM);
      });
  INFO(ended.out << ended.err);
  CHECK(ended.code == 128 + SIGTERM);
  REQUIRE_FALSE(samples.empty());
  CHECK(samples.at("shardrun_validation_loss") > 0);
  CHECK(samples.at("shardrun_memory_peak_bytes{rank=\"0\"}") > 0);
  const auto names_run = [&](const auto& sample) {
    return sample.first.starts_with("shardrun_run_info{") &&
           sample.first.ends_with(",output=\"" + (std::filesystem::canonical(job.path()) / "run").string() +
                                  "\",task=\"train\"}");
  };
  CHECK(std::count_if(samples.begin(), samples.end(), names_run) == 1);
  CHECK_FALSE(samples.contains("shardrun_checkpoints_saved_total"));
}

TEST_CASE("a port that is taken, and sections without effect, are refused before anything starts", "[program]") {
  const JobFolder job;
  const FileDescriptor taken(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  REQUIRE(::bind(taken.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0);
  REQUIRE(::listen(taken.get(), 1) == 0);
  REQUIRE(::getsockname(taken.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  const std::string port = std::to_string(::ntohs(address.sin_port));
  const auto refused = [&](const std::vector<std::string>& settings) {
    const Ended ended = job.run(settings);
    CHECK(ended.code == 2);
    CHECK_FALSE(std::filesystem::exists(job.path() / "run"));
    return ended.err;
  };
  CHECK_THAT(refused({"metrics.prometheus=" + port, "job.ranks=2", "job.strategy=dp", "data.batch=8"}),
             Contains("--set metrics.prometheus: [metrics] prometheus: cannot listen at 127.0.0.1:" + port +
                      ": Address already in use: choose another address or port"));
  CHECK_THAT(refused({"metrics.prometheus="}), Contains("[metrics] prometheus: expected ADDRESS:PORT"));
  CHECK_THAT(refused({"metrics.prometheus=nowhere"}),
             Contains("expected ADDRESS:PORT, [ADDRESS]:PORT or PORT, as in 127.0.0.1:9100; found nowhere"));
}
