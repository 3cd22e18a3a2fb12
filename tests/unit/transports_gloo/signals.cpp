#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <atomic>
#include <vector>

#include "tests/support/catch.h"
#include "tests/unit/transports_gloo/ranks.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

std::atomic<int> writes = 0;
std::atomic<int> exposed = 0;  ///< of the writes

bool is_socket(int descriptor) {
  struct stat status = {};
  return fstat(descriptor, &status) == 0 && S_ISSOCK(status.st_mode);
}

bool is_sigpipe_blocked() {
  sigset_t mask;
  return pthread_sigmask(SIG_BLOCK, nullptr, &mask) == 0 && sigismember(&mask, SIGPIPE) == 1;
}

}  // namespace

/// In the place of the C library's: what Gloo writes to its connections by. Whether a peer has just died is a matter of
/// luck; whether a thread is ready for that is not.
extern "C" ssize_t writev(int descriptor, const iovec* parts, int count) {
  static const auto real = reinterpret_cast<decltype(&writev)>(dlsym(RTLD_NEXT, "writev"));
  if (is_socket(descriptor)) {
    ++writes;
    exposed += is_sigpipe_blocked() ? 0 : 1;
  }
  return real(descriptor, parts, count);
}

TEST_CASE("gloo: nothing is written where a SIGPIPE would come through") {
  REQUIRE_FALSE(is_sigpipe_blocked());
  writes = exposed = 0;
  run_ranks(3, [](Rank& rank) {
    auto group = rank.group();
    for (const std::uint64_t count : {10, 100'000}) {
      std::vector<float> data(count);
      auto op = group.prepare({request_of(SR_OP_ALL_REDUCE, 1, count, data)}, after(30));
      run(op);
    }
    rank.meet("end");
    group.abort("enough");
  });
  CHECK(writes > 0);
  CHECK(exposed == 0);
}
