#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/conformance/conformance.h"
#include "core/conformance/member.h"
#include "core/conformance/peer.h"
#include "tests/support/catch.h"
#include "tests/support/depth.h"
#include "tests/support/mpirun.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

/// The first rank that has not gone through all cases.
std::optional<std::uint32_t> first_missing(conformance::Store& store, std::uint32_t ranks) {
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    if (!store.get("passed/" + std::to_string(rank), 0)) {
      return rank;
    }
  }
  return std::nullopt;
}

/// The status of a shell command. Nothing if it had to be killed after `is_done`: mpirun sometimes hangs, within its
/// own PMIx, after ranks that have ended without MPI_Finalize.
std::optional<int> run_command(const std::string& command, const std::function<bool()>& is_done) {
  constexpr std::chrono::milliseconds look{20};
  constexpr std::chrono::seconds patience{5};
  const pid_t process = ::fork();
  if (process == 0) {
    ::execl("/bin/sh", "sh", "-c", ("exec env " + command).c_str(), nullptr);
    ::_exit(127);
  }
  std::optional<std::chrono::steady_clock::time_point> done;
  int status = 0;
  while (::waitpid(process, &status, WNOHANG) == 0) {
    const auto now = std::chrono::steady_clock::now();
    done = done || !is_done() ? done : now;
    if (done && now - *done > patience) {
      ::kill(process, SIGKILL);
      ::waitpid(process, &status, 0);
      return std::nullopt;
    }
    std::this_thread::sleep_for(look);  // between looks: two things are awaited, and is_done() has no event
  }
  return status;
}

/// As many communicators as an op may want; so few that most ops share one; and only the shared one.
const std::vector<std::string> settings = {"communicators=64", "communicators=3", "communicators=0"};

/// Runs cases, and returns what went wrong on any rank; "" if all is well. If MPI was given up, the processes end
/// without MPI_Finalize, which mpirun calls an error.
std::string run_cases(std::uint32_t ranks, const std::vector<std::string>& names, const std::string& setting) {
  conformance::Store store;
  const TemporaryFolder folder;
  const std::filesystem::path errors = folder.path() / "errors";
  std::string command = mpirun + " -n " + std::to_string(ranks) + " " SHARDRUN_MPI_MEMBER " /proc/" +
                        std::to_string(::getpid()) + "/fd/" + std::to_string(store.descriptor()) +
                        " " SHARDRUN_PLUGINS + " " + setting;
  for (const std::string& name : names) {
    command += " '" + name + "'";
  }
  const std::optional<int> status = run_command(command + " > /dev/null 2> " + errors.string(),
                                                [&] { return !first_missing(store, ranks).has_value(); });
  if (const std::optional<std::uint32_t> rank = first_missing(store, ranks)) {
    return "rank " + std::to_string(*rank) + ", status " + std::to_string(status.value_or(-1)) + ": " +
           read_file(errors);
  }
  return "";
}

/// Cases in which a group fails with an op in progress. MPI cannot take the op back, so the process can use MPI no
/// more, and each case needs a world of its own.
const std::vector<std::string> endings = {"a wait that runs out of time",
                                          "an abort while a receive is under way",
                                          "an op freed after an abort",
                                          "an op past its own deadline",
                                          "a member that lets go of a group",
                                          "the rank that a late receive waited for",
                                          "the rank that a late collective op waited for",
                                          "an abort waits for no rank"};

/// Cases that are impossible with MPI. Most go on with another group after one has ended; in some a rank dies, which
/// mpirun does not allow.
const std::vector<std::string> impossible = {
    "an abort while ops are under way",         "a collective and a receive that fail together",
    "the memory of an op freed after an abort", "the memory of a send or receive freed after an abort",
    "an op that is late in another group",      "an op that goes well, is started again and fails"};

bool is_of(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

TEST_CASE("mpi passes all conformance cases in which no group fails", "[mpi]") {
  if (!has_mpirun()) {
    return;
  }
  std::vector<std::string> names;
  for (const conformance::Case& each : conformance::transport_cases()) {
    if (each.ranks == 4 && !each.victim && !is_of(endings, each.name) && !is_of(impossible, each.name)) {
      names.push_back(each.name);
    }
  }
  CHECK(names.size() > 30);
  for (const std::string& setting : settings) {
    INFO(setting);
    CHECK(run_cases(4, names, setting) == "");
  }
}

TEST_CASE("mpi works with one rank", "[mpi]") {
  if (has_mpirun()) {
    CHECK(run_cases(1, {"a world of one rank"}, settings.front()) == "");
  }
}

TEST_CASE("mpi ends the processes when an op fails", "[mpi]") {
  if (!has_mpirun()) {
    return;
  }
  for (std::size_t e = 0; e < endings.size(); ++e) {
    const auto every = depth<std::size_t>(1, 3, 3);  // a setting each, in turn
    for (std::size_t s = e % every; s < settings.size(); s += every) {
      INFO(endings[e] << ", " << settings[s]);
      CHECK(run_cases(4, {endings[e]}, settings[s]) == "");
    }
  }
}
