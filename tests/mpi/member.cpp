// One rank of an MPI world: test_mpi_member STORE PLUGINS CASE… goes through those conformance cases with the others.

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "plugins/conformance/cases.h"

namespace {

using namespace shardrun::conformance;

std::uint32_t number(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? 0 : static_cast<std::uint32_t>(std::stoul(text));
}

void run(Store& store, const std::string& plugins, const std::vector<std::string>& names, std::string& at) {
  const std::vector<Case> cases = transport_cases();
  const std::uint32_t ranks = number("OMPI_COMM_WORLD_SIZE");
  Member member(store, {plugins}, "mpi", number("OMPI_COMM_WORLD_RANK"), ranks, {});
  for (const std::string& name : names) {
    at = name;
    std::find_if(cases.begin(), cases.end(), [&](const Case& each) { return each.name == name; })->run(member);
    member.meet("the end of " + name, ranks);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  Store store(open(words.at(0).c_str(), O_RDWR | O_CLOEXEC));
  std::string at = "opening";
  try {
    run(store, words.at(1), {words.begin() + 2, words.end()}, at);
    store.set("passed/" + std::to_string(number("OMPI_COMM_WORLD_RANK")), "");
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: rank {}: {}\n", at, number("OMPI_COMM_WORLD_RANK"), error.what());
    store.abort();
    std::_Exit(1);
  }
}
