// Ranks that a script started, by RANK and WORLD_SIZE.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <map>

#include <boost/json.hpp>

#include "core/base/process.h"
#include "core/files/descriptor.h"
#include "tests/integration/processes.h"
#include "tests/integration/worlds.h"
#include "tests/support/middle.h"
#include "tests/support/npy.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

namespace {

/// A port at which nobody listens now. It is not one that the system chooses for the end that connects: then a rank
/// that comes before the first could get the very port to which it connects, and so meet itself.
int free_port() {
  constexpr int least = 15'000;  // by default the system's begin at 32768
  constexpr int ports = 15'000;
  static int next = getpid();
  for (int attempt = 0; attempt < 100; ++attempt) {
    const int port = least + next++ % ports;
    const shardrun::files::FileDescriptor probe(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::bind(probe.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
      return port;
    }
  }
  FAIL("all ports are taken");
  return 0;
}

/// The script that starts a rank by environment variables. Only RANK differs between ranks. It writes the rank's
/// process to rank-N.pid, its output to rank-N.out and rank-N.err, and its exit code to rank-N.code. `before`: words
/// before the program.
std::string start_rank(int rank, const std::string& settings, const std::string& before = "",
                       const std::string& what = "job.ini") {
  const std::string name = "rank-" + std::to_string(rank);
  return "( RANK=" + std::to_string(rank) + " " + before + " \"$0\" " + what + settings + " > " + name + ".out 2> " +
         name + ".err & echo $! > " + name + ".pid; wait $!; echo $? > " + name + ".code ) &\n";
}

std::string exported(const std::map<std::string, std::string>& variables) {
  std::string script;
  for (const auto& [name, value] : variables) {
    script += "export " + name + "=" + value + "\n";
  }
  return script;
}

std::map<std::string, std::string> loopback_world(int ranks) {
  return {{"WORLD_SIZE", std::to_string(ranks)},
          {"MASTER_ADDR", "127.0.0.1"},
          {"TMPDIR", "$PWD"},  // where ranks without a token keep one
          {"MASTER_PORT", std::to_string(free_port())}};
}

int code_of(const JobFolder& job, int rank) {
  return std::stoi(read_file(job.path() / ("rank-" + std::to_string(rank) + ".code")));
}
std::string text_of(const JobFolder& job, int rank, const std::string& which) {
  return read_file(job.path() / ("rank-" + std::to_string(rank) + "." + which));
}
pid_t pid_of(const JobFolder& job, int rank) { return std::stoi(text_of(job, rank, "pid")); }

}  // namespace

TEST_CASE("ranks placed by environment variables learn over tcp what ranks over shm learn", "[worlds]") {
  const JobFolder job;
  const std::string settings = with_sets("", dp("tcp", 2));

  const Ended ended = run_script(
      job.path(), exported(loopback_world(2)) + start_rank(0, settings) + start_rank(1, settings) + "wait\n");

  INFO(text_of(job, 0, "err") << text_of(job, 1, "err"));
  CHECK(ended.code == 0);
  CHECK(code_of(job, 0) == 0);
  CHECK(code_of(job, 1) == 0);
  CHECK(text_of(job, 1, "out").empty());
  CHECK_THAT(text_of(job, 0, "out"), Contains("finished after 30 steps"));
  check_losses(job, losses_over_shm(2));
}

TEST_CASE("bench measures any transport between ranks placed by environment variables", "[worlds]") {
  const JobFolder job;
  const std::string words = " --transport shm --op all_reduce --sizes 1K --iters 3";

  static_cast<void>(run_script(job.path(), exported(loopback_world(2)) + start_rank(0, words, "", "bench") +
                                               start_rank(1, words, "", "bench") + "wait\n"));

  INFO(text_of(job, 0, "err") << text_of(job, 1, "err"));
  CHECK(code_of(job, 0) == 0);
  CHECK(code_of(job, 1) == 0);
  CHECK_THAT(text_of(job, 0, "out"), Contains("TCP, rank 0 to 1") && Contains("#wrong\nall_reduce "));
  CHECK(text_of(job, 1, "out").empty());
}

TEST_CASE("bench between such ranks stops on all when one is asked to", "[worlds]") {
  const JobFolder job;
  const std::string words = " --transport shm --op all --dtype all --sizes 4,1M --iters 2000";

  // Waits for a file, because no event tells when rank 0 has printed a row.
  static_cast<void>(run_script(
      job.path(),
      exported(loopback_world(2)) + start_rank(0, words, "", "bench") + start_rank(1, words, "", "bench") +
          "until grep -q '^send_recv' rank-0.out; do sleep 0.02; done\nkill -TERM $(cat rank-1.pid)\nwait\n"));

  CHECK(code_of(job, 0) == 128 + SIGTERM);
  CHECK(code_of(job, 1) == 128 + SIGTERM);
  CHECK_THAT(text_of(job, 0, "err"), Contains("stopped before everything was measured"));
}

TEST_CASE("ranks that meet on one machine choose shared memory", "[worlds]") {
  const JobFolder job;
  const std::string settings = with_sets("", dp("auto", 2));
  const Ended ended = run_script(
      job.path(), exported(loopback_world(2)) + start_rank(0, settings) + start_rank(1, settings) + "wait\n");
  INFO(text_of(job, 0, "err") << text_of(job, 1, "err"));
  CHECK(ended.code == 0);
  CHECK(code_of(job, 0) == 0);
  CHECK_THAT(text_of(job, 0, "out"), Contains("2 ranks by strategy dp over shm along data"));

  const JobFolder apart;  // a launcher says that two machines have a rank each, and one has both
  auto world = loopback_world(4);
  world.insert({{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"}});
  const std::string of_four = with_sets("", dp("auto", 4));
  std::string script = exported(world);
  for (int rank = 0; rank < 4; ++rank) {
    script += start_rank(rank, of_four);
  }
  static_cast<void>(run_script(apart.path(), script + "wait\n"));
  CHECK(code_of(apart, 0) != 0);
  CHECK_THAT(text_of(apart, 0, "err"), Contains("transport = auto takes ranks 0 to 1 for those of one machine"));
}

TEST_CASE("devices says which rank of a launcher has what on which host", "[worlds]") {
  const JobFolder job;
  auto world = loopback_world(2);
  world.insert({{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}, {"RANK", "1"}});
  const Ended text = run_script(job.path(), exported(world) + "\"$0\" devices\n");
  CHECK(text.code == 0);
  CHECK_THAT(text.out, StartsWith("rank 1 of 2 on " + shardrun::host_name() + ": "));
  CHECK(std::count(text.out.begin(), text.out.end(), '\n') == 1);
  world["RANK"] = world["LOCAL_RANK"] = "0";
  CHECK_THAT(run_script(job.path(), exported(world) + "\"$0\" devices\n").out,
             StartsWith("rank 0 of 2 on ") && Contains("\ncpu ("));
  const auto found = boost::json::parse(run_script(job.path(), exported(world) + "\"$0\" devices --json\n").out);
  CHECK(found.at("rank") == 0);
  CHECK(found.at("host").as_string() == shardrun::host_name());
  CHECK(found.at("devices").at(0).at("name") == "cpu");
}

TEST_CASE("a rank whose data differs under the same name ends the job before it begins", "[worlds]") {
  const JobFolder job;
  const std::string settings = with_sets("", dp("tcp", 2, {"data.text=/proc/self/fd/9"}));

  static_cast<void>(run_script(job.path(), "tr ab ba < corpus.txt > other.txt\n" + exported(loopback_world(2)) +
                                               "exec 9< corpus.txt\n" + start_rank(0, settings) +
                                               "exec 9< other.txt\n" + start_rank(1, settings) + "wait\n"));

  CHECK(code_of(job, 0) == 1);
  CHECK(code_of(job, 1) == 1);
  CHECK_THAT(text_of(job, 0, "err"), StartsWith("shardrun: rank 1 (pid ") &&
                                         Contains("[data] /proc/self/fd/9: rank 1 has another file here (") &&
                                         Contains("rank 1 was at: comparing data"));
}

TEST_CASE("bad data is refused before ranks meet, and an earlier run's folder stays as it is", "[worlds]") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=1"}).code == 0);
  const std::string summary = read_file(job.path() / "run/summary.json");
  std::string told;
  SECTION("tokens that the model does not have") {
    write_file(job.path() / "tokens.bin", std::string(200'000, '\x7f'));
    write_file(job.path() / "job.ini",
               "[job]\noutput = run\n[model]\nname = gpt\nlayers = 1\nheads = 1\nwidth = 2\ncontext = 2\nvocab = 50\n"
               "[data]\ntokens = tokens.bin\nbatch = 4\n[train]\nsteps = 2\nlearning_rate = 0.01\n");
    told = "tokens.bin";
  }
  SECTION("numbers that are not finite") {
    const std::string shape = "{'descr': '<f4', 'fortran_order': False, 'shape': (160, 2), }";
    const std::string zeros(320 * sizeof(float), '\0');
    const std::string not_a_number = {'\0', '\0', '\xc0', '\x7f'};
    write_file(job.path() / "x.npy", npy_file(shape, zeros.substr(sizeof(float)) + not_a_number));
    write_file(job.path() / "y.npy", npy_file(shape, zeros));
    write_file(job.path() / "job.ini",
               "[job]\noutput = run\n[model]\nname = mlp\nhidden = 32\nloss = squared_error\n[data]\narrays = x.npy, "
               "y.npy\nbatch = 4\n[train]\nsteps = 2\nlearning_rate = 0.01\n");
    told = "x.npy";
  }
  const std::string settings = with_sets(" --replace", dp("tcp", 2));

  static_cast<void>(run_script(
      job.path(), exported(loopback_world(2)) + start_rank(0, settings) + start_rank(1, settings) + "wait\n"));

  for (const int rank : {0, 1}) {
    CHECK(code_of(job, rank) == 2);
    CHECK_THAT(text_of(job, rank, "err"), Contains(told));
  }
  CHECK(read_file(job.path() / "run/summary.json") == summary);
  CHECK(std::filesystem::exists(job.path() / "run/metrics.jsonl"));

  // A rank that is the second of its machine, as its launcher says, lets the first one read the data, and waits for it.
  static_cast<void>(run_script(job.path(), exported(loopback_world(2)) +
                                               start_rank(1, settings, "LOCAL_RANK=1 LOCAL_WORLD_SIZE=2") +
                                               "while ! grep -qs 'waits for' rank-1.err && kill -0 $!; do sleep 0.1; "
                                               "done\nkill -KILL $(cat rank-1.pid)\nwait\n"));
  CHECK_THAT(text_of(job, 1, "err"), StartsWith("rank 1 waits for rank 0"));
}

TEST_CASE("a job that one rank refuses ends on all of them", "[worlds]") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=1"}).code == 0);
  const std::string summary = read_file(job.path() / "run/summary.json");
  const auto run = [&](const std::string& before, const std::string& settings, const std::string& second) {
    static_cast<void>(run_script(job.path(), exported(loopback_world(2)) + before + start_rank(0, settings) + second +
                                                 start_rank(1, settings) + "wait\n"));
  };
  const auto is_refused_by_first = [&](const std::string& why) {
    CHECK(code_of(job, 0) == 2);
    CHECK_THAT(text_of(job, 0, "err"), Contains(why));
    CHECK(code_of(job, 1) == 1);
    CHECK_THAT(text_of(job, 1, "err"), !Contains("shardrun: "));
  };
  SECTION("the folder has a run of a different job") {
    run("cp corpus.txt other.txt\n", with_sets("", dp("tcp", 2, {"data.text=other.txt"})), "");
    is_refused_by_first("has a run of a different job");
  }
  SECTION("the first rank of the machine, which reads the data for it, finds them bad") {
    write_file(job.path() / "tokens.bin", std::string(200'000, '\x7f'));
    write_file(job.path() / "job.ini",
               "[job]\noutput = run\n[model]\nname = gpt\nlayers = 1\nheads = 1\nwidth = 2\ncontext = 2\nvocab = 50\n"
               "[data]\ntokens = tokens.bin\nbatch = 4\n[train]\nsteps = 2\nlearning_rate = 0.01\n");
    run("export LOCAL_WORLD_SIZE=2 LOCAL_RANK=0\n", with_sets(" --replace", dp("tcp", 2)), "export LOCAL_RANK=1\n");
    is_refused_by_first("tokens.bin");
  }
  SECTION("another run holds the folder") {
    run("exec 8< run\nflock 8\n", with_sets("", dp("tcp", 2)), "");
    is_refused_by_first("another run writes to 'run'");
  }
  SECTION("a rank lacks a file") {
    run("exec 9< corpus.txt\n", with_sets("", dp("tcp", 2, {"data.text=/proc/self/fd/9"})) + " --replace",
        "exec 9<&-\n");
    CHECK(code_of(job, 0) != 0);
    CHECK_THAT(text_of(job, 0, "err"), Contains("shardrun: rank 1 (pid ") && Contains("/proc/self/fd/9"));
    CHECK(code_of(job, 1) == 2);
    CHECK_THAT(text_of(job, 1, "err"), Contains("/proc/self/fd/9"));
    return;
  }
  CHECK(read_file(job.path() / "run/summary.json") == summary);
}

TEST_CASE("a rank that cannot begin ends though others never come", "[worlds]") {
  const JobFolder job;
  const int refusing = GENERATE(0, 1);
  const std::string settings = with_sets("", dp("tcp", 2, {"data.text=missing.txt"}));

  static_cast<void>(run_script(job.path(), exported(loopback_world(2)) + start_rank(refusing, settings) + "wait\n"));

  CHECK(code_of(job, refusing) == 2);
  CHECK_THAT(text_of(job, refusing, "err"), Contains("missing.txt") && !Contains("wait"));
  CHECK_THAT(text_of(job, refusing, "out"), !Contains("wait"));
}

TEST_CASE("a rank that cannot begin ends those who are there, though another has not come", "[worlds]") {
  const JobFolder job;
  const std::string settings = with_sets("", dp("tcp", 3, {"data.text=/proc/self/fd/9"}));

  static_cast<void>(run_script(job.path(), exported(loopback_world(3)) + "exec 9< corpus.txt\n" +
                                               start_rank(0, settings) + "exec 9<&-\n" + start_rank(1, settings) +
                                               "wait\n"));

  CHECK(code_of(job, 0) == 1);
  CHECK_THAT(text_of(job, 0, "err"), Contains("shardrun: rank 1 (pid ") && Contains("/proc/self/fd/9"));
  CHECK(code_of(job, 1) == 2);
  CHECK_THAT(text_of(job, 1, "err"), Contains("/proc/self/fd/9"));
}

TEST_CASE("the first rank, stopped before the ranks meet, ends the others", "[worlds]") {
  const JobFolder job;
  const std::string settings = with_sets("", dp("tcp", 2));
  const std::string stopped = "env --block-signal=TERM sh -c 'kill -TERM $$; exec \"$@\"' sh";  // once it takes signals

  static_cast<void>(run_script(
      job.path(), exported(loopback_world(2)) + start_rank(0, settings, stopped) + start_rank(1, settings) + "wait\n"));

  CHECK(code_of(job, 0) == 128 + SIGTERM);
  CHECK_THAT(text_of(job, 0, "err"), Contains("stopped by SIGTERM before the ranks met"));
  CHECK(code_of(job, 1) == 1);
  CHECK_THAT(text_of(job, 1, "err"), !Contains("could not join"));
  CHECK_FALSE(std::filesystem::exists(job.path() / "run"));
}

TEST_CASE("only the rank that writes the results judges their file", "[worlds]") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=1"}).code == 0);
  write_file(job.path() / "prompts.jsonl", "{\"prompt\": \"a\"}\n");
  std::filesystem::create_directories(job.path() / "first");
  std::filesystem::create_directories(job.path() / "second");
  const bool is_first = GENERATE(true, false);
  const std::filesystem::path existing = job.path() / (is_first ? "first" : "second") / "answers.jsonl";
  write_file(existing, "kept");
  const std::string words =
      " run --prompts prompts.jsonl --to /proc/self/fd/9/answers.jsonl --tokens 3 --ranks 2 "
      "--strategy tp --transport tcp";

  static_cast<void>(run_script(job.path(), exported(loopback_world(2)) + "exec 9< first\n" +
                                               start_rank(0, words, "", "generate") + "exec 9< second\n" +
                                               start_rank(1, words, "", "generate") + "wait\n"));

  INFO(text_of(job, 0, "err") << text_of(job, 1, "err"));
  CHECK(code_of(job, 0) == (is_first ? 2 : 0));
  CHECK(code_of(job, 1) == (is_first ? 1 : 0));
  CHECK_THAT(text_of(job, 1, "err"),
             !Contains("shardrun: ") || Contains("shardrun: rank 1: the job is aborted: rank 0 (pid "));
  CHECK(read_file(existing) == "kept");
  if (is_first) {
    CHECK_THAT(text_of(job, 0, "err"), Contains("answers.jsonl' exists: choose another name"));
  } else {
    CHECK_THAT(read_file(job.path() / "first/answers.jsonl"), StartsWith("{\"line\":1,"));
  }
}

TEST_CASE("a rank that starts first says which rank it waits for", "[worlds]") {
  const JobFolder job;
  const std::string settings = with_sets("", dp("tcp", 2));

  static_cast<void>(run_script(job.path(), exported(loopback_world(2)) + start_rank(1, settings) +
                                               "while ! grep -q 'waits for' rank-1.err; do sleep 0.1; done\n" +
                                               start_rank(0, settings) + "wait\n"));

  CHECK(code_of(job, 0) == 0);
  CHECK(code_of(job, 1) == 0);
  CHECK_THAT(text_of(job, 1, "err"), StartsWith("rank 1 waits for rank 0 at 127.0.0.1 port ") && Contains("refused"));
}

TEST_CASE("ranks on two hosts train together over tcp, and over gloo where their network is trusted", "[worlds]") {
  const std::string mark = std::to_string(::getpid());
  const std::string one = "sr" + mark + "a";
  const std::string two = "sr" + mark + "b";
  const std::string make = "ip netns add " + one + " && ip netns add " + two + " && ip link add v" + mark + "a netns " +
                           one + " type veth peer name v" + mark + "b netns " + two + " && ip -n " + one +
                           " addr add 10.77.0.1/24 dev v" + mark + "a && ip -n " + two +
                           " addr add 10.77.0.2/24 dev v" + mark + "b && ip -n " + one + " link set v" + mark +
                           "a up && ip -n " + two + " link set v" + mark + "b up && ip -n " + one +
                           " link set lo up && ip -n " + two + " link set lo up";
  const std::string remove = "ip netns del " + one + " 2> /dev/null; ip netns del " + two + " 2> /dev/null";
  if (std::system(("(" + make + ") > /dev/null 2>&1").c_str()) != 0) {
    static_cast<void>(std::system(remove.c_str()));
    WARN("skipped: network namespaces cannot be made here (that needs root)");
    return;
  }
  const std::map<std::string, std::string> world = {{"WORLD_SIZE", "2"},
                                                    {"MASTER_ADDR", "10.77.0.1"},
                                                    {"MASTER_PORT", "29511"},
                                                    {"SHARDRUN_TOKEN", std::string(64, 'a')}};
  const auto run = [&](const JobFolder& job, const std::vector<std::string>& words) {
    const std::string settings = with_sets("", words);
    static_cast<void>(run_script(job.path(), exported(world) + start_rank(0, settings, "ip netns exec " + one) +
                                                 start_rank(1, settings, "ip netns exec " + two) + "wait\n"));
  };
  const JobFolder over_tcp;
  run(over_tcp, dp("tcp", 2));
  const JobFolder over_gloo;
  run(over_gloo, dp("gloo", 2, {"transport.gloo.trusted=true"}));
  const JobFolder over_chosen;
  run(over_chosen, dp("auto", 2));
  const JobFolder refused;
  run(refused, dp("gloo", 2));

  static_cast<void>(std::system(remove.c_str()));
  CHECK_THAT(text_of(over_chosen, 0, "out"), Contains("2 ranks by strategy dp over tcp along data"));
  for (const JobFolder* const job : {&over_tcp, &over_gloo, &over_chosen}) {
    INFO(text_of(*job, 0, "err") << text_of(*job, 1, "err"));
    CHECK(code_of(*job, 0) == 0);
    CHECK(code_of(*job, 1) == 0);
    check_losses(*job, losses_over_shm(2));
  }
  CHECK(code_of(refused, 0) != 0);
  CHECK_THAT(text_of(refused, 0, "err"), Contains("would listen at 10.77.0.") && Contains("use transport tcp"));
}

TEST_CASE("ranks on a machine whose loopback is down are refused at once, with the reason", "[worlds]") {
  const JobFolder job;
  if (run_script(job.path(), "unshare -Urn true").code != 0) {
    WARN("skipped: no network namespaces here");
    return;
  }
  const Ended down = run_script(job.path(), "unshare -Urn " + with_sets("\"$0\" job.ini", dp("shm", 2)));
  CHECK(down.code == 2);
  CHECK_THAT(down.err, Contains("loopback interface is down") && Contains("ip link set lo up"));
  CHECK_FALSE(std::filesystem::exists(job.path() / "run"));
}

TEST_CASE("a launcher within a launcher may start ranks of its own", "[worlds]") {
  const std::string outer = GENERATE("SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=$((r / 2)) ",
                                     "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=$((r / 2)) ");
  const std::string ranks = GENERATE("4", "auto");
  const JobFolder job;
  const std::string run =
      exported(loopback_world(4)) + "for r in 0 1 2 3; do " + outer +
      "RANK=$r LOCAL_RANK=$((r % 2)) LOCAL_WORLD_SIZE=2 \"$0\" job.ini --set job.ranks=" + ranks +
      " --set job.strategy=dp --set job.transport=tcp --set train.steps=2 & pids=\"$pids $!\"; done; "
      "for p in $pids; do wait $p || exit 1; done";
  const Ended ended = run_script(job.path(), run);
  INFO(ended.err);
  CHECK(ended.code == 0);
  CHECK(job.summary().at("ranks").as_array().size() == 4);

  const JobFolder other;
  const Ended refused = run_script(other.path(), exported(loopback_world(4)) + "r=1; RANK=1 WORLD_SIZE=3 " + outer +
                                                     "\"$0\" job.ini --set job.ranks=" + ranks +
                                                     " --set job.strategy=dp --set job.transport=tcp");
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, Contains("started this process as rank 0 of 2, and RANK and WORLD_SIZE say rank 1 of 3"));
}

TEST_CASE("a world that does not fit the job is refused before anything starts", "[worlds]") {
  const JobFolder job;
  const std::string run = "\"$0\" job.ini";
  const Ended sizes = run_script(job.path(), exported(loopback_world(3)) + "RANK=0 " + with_sets(run, dp("tcp", 2)));
  CHECK(sizes.code == 2);
  CHECK_THAT(sizes.err, Contains("[job] ranks = 2") && Contains("3 processes") && Contains("--launch here"));

  const Ended variable = run_script(job.path(), "WORLD_SIZE=2 RANK=2 " + with_sets(run, dp("tcp", 2)));
  CHECK(variable.code == 2);
  CHECK_THAT(variable.err, Contains("RANK is '2', not a number from 0 to 1"));

  const Ended token = run_script(
      job.path(), "WORLD_SIZE=2 RANK=1 MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 " + with_sets(run, dp("tcp", 2)));
  CHECK(token.code == 2);
  CHECK_THAT(token.err, Contains("SHARDRUN_TOKEN") && Contains("openssl rand -hex 32"));

  const Ended everywhere = run_script(
      job.path(), "WORLD_SIZE=2 RANK=0 MASTER_ADDR=0.0.0.0 MASTER_PORT=29500 " + with_sets(run, dp("tcp", 2)));
  CHECK(everywhere.code == 2);
  CHECK_THAT(everywhere.err, Contains("MASTER_ADDR = 0.0.0.0 stands for every address of a host"));

  const Ended messenger =
      run_script(job.path(), "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 " + with_sets(run, dp("tcp", 2)));
  CHECK(messenger.code == 2);
  CHECK_THAT(messenger.err, Contains("MASTER_ADDR") && Contains("SHARDRUN_TOKEN"));

  CHECK_FALSE(std::filesystem::exists(job.path() / "run"));
}

TEST_CASE("with --launch here all ranks are started here, in spite of a launcher's variables", "[worlds]") {
  const JobFolder job;
  const Ended ended = run_script(
      job.path(), exported(loopback_world(3)) + "RANK=1 " + with_sets("\"$0\" job.ini --launch here", dp("shm", 2)));
  INFO(ended.err);
  CHECK(ended.code == 0);
  CHECK(job.losses().size() == 30);
  CHECK(run_script(job.path(), "\"$0\" job.ini --launch there").code == 2);
}

TEST_CASE("a wrong token is reported by its rank and by the rank that waits for it", "[worlds]") {
  const JobFolder job;
  const std::string settings = with_sets("", dp("tcp", 2));
  std::map<std::string, std::string> world = loopback_world(2);

  const Ended ended = run_script(
      job.path(), exported(world) + "export SHARDRUN_TOKEN=" + std::string(64, 'a') + "\n" + start_rank(0, settings) +
                      "export SHARDRUN_TOKEN=" + std::string(64, 'b') + "\n" + start_rank(1, settings) +
                      "while ! grep -q token rank-0.out || ! [ -s rank-1.code ]; do sleep 0.05; done\n"
                      "kill -TERM $(cat rank-0.pid)\nwait\n");

  CHECK(ended.code == 0);
  CHECK(code_of(job, 1) == 1);
  CHECK_THAT(text_of(job, 1, "err"), Contains("SHARDRUN_TOKEN"));
  CHECK_THAT(text_of(job, 0, "out"), Contains("has not proved that it knows this job's token"));
  CHECK(code_of(job, 0) == 128 + SIGTERM);
  CHECK(job.summary().at("status") == "stopped");
}

TEST_CASE("a man in the middle can neither read nor change what ranks tell the first one", "[worlds][attack]") {
  const bool changes = GENERATE(false, true);
  const std::string token(64, 'a');
  const std::string settings = with_sets("", dp("shm", 2));
  const JobFolder job;
  std::map<std::string, std::string> world = loopback_world(2);
  Middle middle(static_cast<std::uint16_t>(std::stoi(world.at("MASTER_PORT"))), [&](Middle::Record record) {
    if (changes && record.to_launcher && record.number == 5) {
      record.bytes.back() = static_cast<char>(record.bytes.back() ^ 1);
    }
    return Middle::Sent{.onwards = std::move(record.bytes)};
  });

  static_cast<void>(run_script(job.path(), exported(world) + "export SHARDRUN_TOKEN=" + token + "\n" +
                                               start_rank(0, settings) +
                                               "export MASTER_PORT=" + std::to_string(middle.port()) + "\n" +
                                               start_rank(1, settings) + "wait\n"));
  middle.end();

  INFO(text_of(job, 0, "err") << text_of(job, 1, "err"));
  CHECK(code_of(job, 0) == (changes ? 1 : 0));
  CHECK(code_of(job, 1) == (changes ? 1 : 0));
  CHECK(job.summary().at("status") == (changes ? "failed" : "finished"));
  CHECK_THAT(text_of(job, 0, "err"),
             changes ? Contains("TLS failed: decryption failed or bad record mac") : Contains(""));
  CHECK(middle.seen().size() > 300);
  CHECK(middle.seen().find(std::string(8, '\xaa')) == std::string::npos);
  CHECK(middle.seen().find(std::string(8, 'a')) == std::string::npos);
  CHECK(middle.seen().find("wire_bytes") == std::string::npos);  // a field of the rank's summary
}

TEST_CASE("ranks without a token share a secret of their user", "[worlds]") {
  const JobFolder job;
  const std::string settings = with_sets("", dp("shm", 2));
  const std::string start = exported(loopback_world(2)) + start_rank(0, settings) + start_rank(1, settings) + "wait\n";

  static_cast<void>(run_script(job.path(), start));
  INFO(text_of(job, 0, "err") << text_of(job, 1, "err"));
  CHECK(code_of(job, 0) == 0);
  CHECK(code_of(job, 1) == 0);

  static_cast<void>(run_script(job.path(), "chmod 755 shardrun-*\n" + start));
  CHECK(code_of(job, 0) == 2);
  CHECK(code_of(job, 1) == 2);
  CHECK_THAT(text_of(job, 0, "err"), Contains("mode 0755") && Contains("set SHARDRUN_TOKEN"));
}

TEST_CASE("a killed rank ends a job that another launcher started, and is named", "[worlds]") {
  const JobFolder job;
  const std::string settings = with_sets("", dp("tcp", 3, endless));
  const int victim = GENERATE(1, 2);

  static_cast<void>(
      run_script(job.path(), exported(loopback_world(3)) + start_rank(0, settings) + start_rank(1, settings) +
                                 start_rank(2, settings) +
                                 "while ! grep -q 'step 2/' rank-0.out; do sleep 0.05; done\nkill -9 $(cat rank-" +
                                 std::to_string(victim) + ".pid)\nwait\n"));

  CHECK(code_of(job, 0) == 1);
  CHECK(code_of(job, 3 - victim) == 1);
  const std::string cause = "rank " + std::to_string(victim) + " (pid " + std::to_string(pid_of(job, victim)) + " on ";
  CHECK_THAT(text_of(job, 0, "err"), Contains(cause) && Contains("its process has ended"));
  CHECK_THAT(std::string(job.summary().at("error").as_string()), Contains(cause));
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(is_gone(pid_of(job, rank)));
  }
}

TEST_CASE("if the first rank is killed, the others end and report it", "[worlds]") {
  const JobFolder job;
  const std::string settings = with_sets("", dp("tcp", 2, endless));

  static_cast<void>(run_script(
      job.path(), exported(loopback_world(2)) + start_rank(0, settings) + start_rank(1, settings) +
                      "while ! grep -q 'step 2/' rank-0.out; do sleep 0.05; done\nkill -9 $(cat rank-0.pid)\nwait\n"));

  CHECK(code_of(job, 1) == 1);
  CHECK_THAT(text_of(job, 1, "err"), Contains("the connection to rank 0 is lost: "));
}

TEST_CASE("a signal to any rank stops all after the same step", "[worlds]") {
  const int asked = GENERATE(0, 1);
  const JobFolder job;
  const std::string settings = with_sets("", dp("tcp", 2, endless));

  static_cast<void>(
      run_script(job.path(), exported(loopback_world(2)) + start_rank(0, settings) + start_rank(1, settings) +
                                 "while ! grep -q 'step 2/' rank-0.out; do sleep 0.05; done\nkill -TERM $(cat rank-" +
                                 std::to_string(asked) + ".pid)\nwait\n"));

  INFO(text_of(job, 0, "err") << text_of(job, 1, "err"));
  CHECK(code_of(job, 0) == 128 + SIGTERM);
  CHECK(code_of(job, 1) == 128 + SIGTERM);
  CHECK(job.summary().at("status") == "stopped");
  CHECK(job.summary().at("steps").to_number<std::size_t>() == job.metrics().size());
  CHECK_THAT(read_file(job.path() / "run/log/rank-1.log"),
             Contains("stopped after " + std::to_string(job.metrics().size()) + " steps"));
  CHECK(std::filesystem::exists(job.path() / "run/weights.safetensors"));
}

TEST_CASE("the first rank of a world serves the run's numbers", "[worlds]") {
  const JobFolder job;
  std::vector<std::string> served = endless;
  served.emplace_back("metrics.prometheus=0");
  const std::string settings = with_sets("", dp("tcp", 2, served));

  static_cast<void>(run_script(
      job.path(), exported(loopback_world(2)) + start_rank(0, settings) + start_rank(1, settings) +
                      "while ! grep -q 'step 2/' rank-0.out; do sleep 0.05; done\n"
                      "port=$(sed -n 's|^metrics: http://127.0.0.1:\\([0-9]*\\)/metrics$|\\1|p' rank-0.out)\n"
                      "bash -c \"exec 3<>/dev/tcp/127.0.0.1/$port; printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3; cat "
                      "<&3\" > page\n"
                      "kill -TERM $(cat rank-0.pid)\nwait\n"));

  INFO(text_of(job, 0, "out") << text_of(job, 0, "err") << text_of(job, 1, "err"));
  CHECK(code_of(job, 0) == 128 + SIGTERM);
  const std::string page = read_file(job.path() / "page");
  CHECK_THAT(page, StartsWith("HTTP/1.1 200 OK\r\n") && Contains("\nshardrun_ranks 2\n") &&
                       Contains("\nshardrun_memory_planned_bytes{rank=\"1\"} "));
  CHECK(text_of(job, 1, "out").empty());
}

TEST_CASE("a world that stops after saving a checkpoint ends with code 75 on every rank", "[worlds]") {
  const JobFolder job;
  std::vector<std::string> words = dp("tcp", 2, endless);
  words.insert(words.end(), {"checkpoint.every=1000000", "job.restarts=1"});
  const std::string settings = with_sets("", words);

  static_cast<void>(
      run_script(job.path(), exported(loopback_world(2)) + start_rank(0, settings) + start_rank(1, settings) +
                                 "while ! grep -q 'step 2/' rank-0.out; do sleep 0.05; done\nkill -USR1 $(cat "
                                 "rank-1.pid)\nwait\n"));

  INFO(text_of(job, 0, "err") << text_of(job, 1, "err"));
  CHECK(code_of(job, 0) == 75);
  CHECK(code_of(job, 1) == 75);
  CHECK(job.summary().at("exit_code") == 75);
  CHECK_THAT(text_of(job, 0, "out"), Contains("[job] restarts is left to "));
  CHECK_FALSE(std::filesystem::is_empty(job.path() / "run/checkpoints"));
}

TEST_CASE("ranks that a script started write to the folder that the first of them has named", "[worlds]") {
  const JobFolder job;
  const std::string settings = with_sets("", dp("shm", 2, {"job.output=runs/{time}", "train.steps=3"}));
  run_script(job.path(), exported(loopback_world(2)) + start_rank(0, settings) + start_rank(1, settings) + "wait\n");
  for (const int rank : {0, 1}) {
    INFO(text_of(job, rank, "err"));
    CHECK(code_of(job, rank) == 0);
  }
  std::vector<std::filesystem::path> folders;
  for (const auto& entry : std::filesystem::directory_iterator(job.path() / "runs")) {
    folders.push_back(entry.path());
  }
  REQUIRE(folders.size() == 1);
  for (const char* file : {"summary.json", "weights.safetensors", "log/rank-0.log", "log/rank-1.log"}) {
    CHECK(std::filesystem::exists(folders[0] / file));
  }
  CHECK_THAT(text_of(job, 0, "out"), Contains("results in runs/" + folders[0].filename().string()));
}
