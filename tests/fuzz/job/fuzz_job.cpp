// Reads any bytes as a job file. Nothing but shardrun::Error may be thrown. A job that is accepted is the same when it
// is written and read again.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/job/job.h"
#include "tests/support/job_providers.h"

using namespace shardrun;

namespace {

void fail(std::string_view what, std::string_view first, std::string_view second) {
  std::fprintf(stderr, "%.*s\n--- first\n%.*s\n--- second\n%.*s\n", static_cast<int>(what.size()), what.data(),
               static_cast<int>(first.size()), first.data(), static_cast<int>(second.size()), second.data());
  std::abort();
}

void check_round_trip(const job::Job& parsed, const job::SchemaProviders& providers) {
  const std::string text = job::canonical_text(parsed);
  try {
    const job::Job again = job::parse_job(job::read_job_text(text, "elsewhere/copy.ini"), providers);
    if (job::canonical_text(again) != text) {
      fail("a job file is not written the same twice", text, job::canonical_text(again));
    }
    if (to_string(again.model.options) != to_string(parsed.model.options) || again.mesh != parsed.mesh ||
        again.train.learning_rate != parsed.train.learning_rate || again.data.arrays != parsed.data.arrays) {
      fail("a job file that was written says another thing", text, to_string(again.model.options));
    }
  } catch (const Error& error) {
    fail("a job file that was written is refused", text, error.message());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const job::SchemaProviders providers = test::job_providers();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const job::Job parsed = job::parse_job(job::read_job_text(text, "fuzz.ini"), providers);
    check_round_trip(parsed, providers);
  } catch (const Error& error) {
    if (error.message().rfind("fuzz.ini", 0) != 0) {
      fail("a message does not begin with its place", text, error.message());
    }
  }
  return 0;
}
