#include <string>

#include "tests/unit/job/support.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;

namespace {

job::Job parse_where(std::int64_t ranks_here, const std::string& text, const std::vector<std::string>& overrides = {}) {
  job::SchemaProviders providers = job_providers();
  providers.automatic_ranks = [ranks_here] { return ranks_here; };
  return job::parse_job(job::read_job_text(text, "toy.ini", overrides), providers);
}

}  // namespace

TEST_CASE("ranks = auto is what there is here", "[job]") {
  const job::Job job = parse_where(6, minimal + "[job]\nranks = auto\n");

  CHECK(job.ranks == 6);
  CHECK(job.transports.size() == 1);
  // Whoever reads the job as it was run gets the number.
  CHECK_THAT(job::canonical_text(job), Contains("ranks = 6\n"));
  CHECK(parse_where(1, minimal + "[job]\nranks = auto\n").transports.empty());
  CHECK(parse_where(3, minimal + "[job]\nranks = 2\n", {"job.ranks=auto"}).ranks == 3);
  CHECK(parse_where(3, minimal).ranks == 1);
}

TEST_CASE("ranks = auto is the product of the mesh where there is one", "[job]") {
  const job::Job job = parse_where(64, minimal + "[job]\nranks = auto\n[mesh]\ndata = 2\nmodel = 3\n");

  CHECK(job.ranks == 6);
  CHECK_THAT(job::canonical_text(job), Contains("ranks = 6\n"));
}

TEST_CASE("auto is a word for ranks alone", "[job]") {
  CHECK_THAT(refusal(minimal + "[job]\nthreads = auto\n"), Contains("threads = auto: is not an integer"));
  CHECK_THAT(refusal(minimal + "[job]\nranks = Auto\n"), Contains("ranks = Auto: is not an integer; write its digits "
                                                                  "alone, without unit, decimal point or exponent, or "
                                                                  "auto"));
  CHECK_THAT(refusal(minimal + "[job]\nranks = 0\n"), Contains("must be at least 1"));
}
