#include "core/metrics/jsonl.h"

#include <sys/resource.h>

#include <csignal>
#include <limits>
#include <vector>

#include "tests/support/allocations.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun::metrics;
using namespace shardrun::test;
using Catch::Matchers::Contains;

TEST_CASE("a step is a line with its fields in order", "[metrics]") {
  const TemporaryFolder folder;
  JsonlWriter writer(folder / "metrics.jsonl");

  writer.write({.step = 1,
                .loss = 4.25,
                .val_loss = {},
                .grad_norm = 0.1,
                .lr = 1e-3,
                .tokens_per_s = 12345,
                .step_s = 0.5,
                .comm_s = 0});
  writer.write({.step = 2,
                .loss = 1.0 / 3,
                .val_loss = 2.5,
                .grad_norm = 1e-300,
                .lr = 1e-4,
                .tokens_per_s = 1e22,
                .step_s = 0.5,
                .comm_s = 0.25,
                .comm_exposed_s = 0.125,
                .comm_hidden_s = 0.125});

  CHECK(read_file(folder / "metrics.jsonl") ==
        "{\"step\":1,\"loss\":4.25,\"grad_norm\":0.1,\"lr\":0.001,\"tokens_per_s\":12345,\"step_s\":0.5,\"comm_s\":0,"
        "\"comm_exposed_s\":0,"
        "\"comm_hidden_s\":0}\n"
        "{\"step\":2,\"loss\":0.3333333333333333,\"val_loss\":2.5,\"grad_norm\":1e-300,\"lr\":1e-04,\"tokens_per_s\":"
        "1e+22,"
        "\"step_s\":0.5,\"comm_s\":0.25,\"comm_exposed_s\":0.125,"
        "\"comm_hidden_s\":0.125}\n");
}

TEST_CASE("what JSON has no number for is null, and text is escaped", "[metrics]") {
  const TemporaryFolder folder;
  JsonlWriter writer(folder / "file");
  const JsonField fields[] = {{"nan", std::numeric_limits<double>::quiet_NaN()},
                              {"inf", -std::numeric_limits<double>::infinity()},
                              {"text", std::string_view("a \"b\" \\ \n é")},
                              {"int", std::int64_t{-9007199254740993}}};

  writer.write(fields);

  CHECK(read_file(folder / "file") ==
        "{\"nan\":null,\"inf\":null,\"text\":\"a \\\"b\\\" \\\\ \\u000a é\",\"int\":-9007199254740993}\n");
}

TEST_CASE("a writer goes on at the end of what is there", "[metrics]") {
  const TemporaryFolder folder;
  write_file(folder / "file", "{}\n");
  const JsonField field = {"a", std::int64_t{1}};

  JsonlWriter(folder / "file").write(std::span(&field, 1));

  CHECK(read_file(folder / "file") == "{}\n{\"a\":1}\n");
}

TEST_CASE("a full disk is an error that names the file", "[metrics]") {
  JsonlWriter writer("/dev/full");

  CHECK(error_of([&] { writer.write(StepRecord{}); }) ==
        "1: cannot write '/dev/full': No space left on device; free some space there or choose another folder");
  CHECK_THAT(error_of([] { JsonlWriter("/dev/null/metrics.jsonl"); }),
             Contains("cannot open '/dev/null/metrics.jsonl'"));
}

TEST_CASE("a line that the disk cuts short is taken back", "[metrics]") {
  const TemporaryFolder folder;
  JsonlWriter writer(folder / "file");
  const JsonField field = {"a", std::int64_t{1}};
  writer.write(std::span(&field, 1));
  rlimit before = {};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit = {12, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);

  const std::string error = error_of([&] { writer.write(std::span(&field, 1)); });

  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  std::signal(SIGXFSZ, handler);
  CHECK_THAT(error, Contains("File too large"));
  CHECK(read_file(folder / "file") == "{\"a\":1}\n");
}

TEST_CASE("after the longest line nothing is allocated", "[metrics]") {
  const TemporaryFolder folder;
  JsonlWriter writer(folder / "metrics.jsonl");
  const StepRecord longest = {.step = 123456,
                              .loss = 1.0 / 3,
                              .val_loss = 1.0 / 3,
                              .grad_norm = 1.0 / 3,
                              .lr = 1.0 / 3,
                              .tokens_per_s = 1.0 / 3,
                              .step_s = 1.0 / 3,
                              .comm_s = 1.0 / 3};
  writer.write(longest);
  const std::uint64_t before = allocations();

  for (int line = 0; line < 100; ++line) {
    writer.write(longest);
  }

  CHECK(allocations() == before);
}
