// One rank of an MPI world. test_mpi_member STORE PLUGINS SETTING CASE… runs these conformance cases together with the
// other ranks.

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "core/conformance/member.h"
#include "core/launch/world.h"

namespace {

using namespace shardrun::conformance;

void run(const shardrun::launch::World& world, Store& store, const std::string& plugins, const std::string& setting,
         const std::vector<std::string>& names, std::string& at) {
  const std::vector<Case> cases = transport_cases();
  const auto ranks = static_cast<std::uint32_t>(world.size);
  Member member(store, {plugins}, "mpi", static_cast<std::uint32_t>(world.rank), ranks, {setting});
  for (const std::string& name : names) {
    at = name;
    std::find_if(cases.begin(), cases.end(), [&](const Case& each) { return each.name == name; })->run(member);
    member.meet("the end of " + name, ranks);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const shardrun::launch::World world = shardrun::launch::world_of().value();
  Store store(open(words.at(0).c_str(), O_RDWR | O_CLOEXEC));
  std::string at = "opening";
  try {
    run(world, store, words.at(1), words.at(2), {words.begin() + 3, words.end()}, at);
    store.set("passed/" + std::to_string(world.rank), "");
    for (int rank = 0; rank < world.size; ++rank) {
      // If MPI was given up, a launcher may end the other processes once the first one is gone.
      static_cast<void>(store.get("passed/" + std::to_string(rank), INT64_MAX));
    }
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: rank {}: {}\n", at, world.rank, error.what());
    store.abort();
    std::_Exit(1);
  }
}
