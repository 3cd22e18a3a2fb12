#include <sys/resource.h>

#include <csignal>
#include <limits>
#include <vector>

#include "core/base/error.h"
#include "core/metrics/jsonl.h"
#include "core/metrics/rates.h"
#include "core/metrics/summary.h"
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
                .comm_hidden_s = 0.125,
                .bandwidth = 1e9,
                .flops_per_s = 2e9,
                .utilisation = 0.25});

  CHECK(read_file(folder / "metrics.jsonl") ==
        "{\"step\":1,\"loss\":4.25,\"grad_norm\":0.1,\"lr\":0.001,\"tokens_per_s\":12345,\"step_s\":0.5,\"comm_s\":0,"
        "\"comm_exposed_s\":0,"
        "\"comm_hidden_s\":0,\"bandwidth\":0}\n"
        "{\"step\":2,\"loss\":0.3333333333333333,\"val_loss\":2.5,\"grad_norm\":1e-300,\"lr\":1e-04,\"tokens_per_s\":"
        "1e+22,"
        "\"step_s\":0.5,\"comm_s\":0.25,\"comm_exposed_s\":0.125,"
        "\"comm_hidden_s\":0.125,\"bandwidth\":1e+09,\"flops_per_s\":2e+09,\"utilisation\":0.25}\n");
}

TEST_CASE("a line shows the rates of each of a few ranks, and the least and the most of many", "[metrics]") {
  RankRates slow{.step = 3, .seconds = 2, .communicating = 1, .waiting = 0.5, .bytes = 3.0 * (1 << 20), .flops = 4e9};
  RankRates fast = slow;
  fast.flops = 0;
  fast.add({.step = 4, .seconds = 2, .communicating = 1, .waiting = 1.5, .bytes = 1 << 20, .flops = 8e9});
  slow.add({.step = 4, .seconds = 2, .communicating = 1, .waiting = 0, .bytes = 1 << 20});
  CHECK(rates_line({rates_of(to_text(slow)), fast}, 1e10) ==
        "step 4: rank 0 sends 2.00 MiB/s, computes 1.00 GFLOP/s (10 % of [cluster] flops), waits 12 % of the time; "
        "rank 1 sends 2.00 MiB/s, computes 2.00 GFLOP/s (20 % of [cluster] flops), waits 50 % of the time");
  CHECK(rates_line({slow, slow, slow, fast, slow}, 0) ==
        "step 4: 5 ranks send 2.00 MiB/s (rank 0) to 2.00 MiB/s (rank 4), compute 1.00 GFLOP/s (rank 0) to 2.00 "
        "GFLOP/s (rank 3), wait 12 % (rank 0) to 50 % (rank 3) of the time");
  fast.fastest = 8e9;
  CHECK(
      rates_line({rates_of(to_text(fast))}, 0) ==
      "step 4: rank 0 sends 2.00 MiB/s, computes 2.00 GFLOP/s (25 % of the rate of its fastest op), waits 50 % of the "
      "time");
  CHECK(rates_line({{.step = 1, .seconds = 1}}, 0) == "step 1: rank 0 sends 0 B/s, waits 0 % of the time");
}

TEST_CASE("a validation that comes later joins the line of its step", "[metrics]") {
  const TemporaryFolder folder;
  const JsonField of_step[] = {{"step", std::int64_t{10}}, {"loss", 2.5}, {"lr", 0.5}};
  JsonlWriter writer(folder / "file");

  writer.add_validation(0, 4.5);
  writer.add_validation(0, 4);
  CHECK(read_file(folder / "file") == "{\"step\":0,\"val_loss\":4}\n");
  writer.write(of_step);
  writer.add_validation(10, 0.123456789);
  writer.add_validation(10, 1.5);
  CHECK(read_file(folder / "file") ==
        "{\"step\":0,\"val_loss\":4}\n{\"step\":10,\"loss\":2.5,\"lr\":0.5,\"val_loss\":1.5}\n");
  writer.add_validation(1, 3);
  CHECK_THAT(read_file(folder / "file"), Catch::EndsWith("1.5}\n{\"step\":1,\"val_loss\":3}\n"));
}

TEST_CASE("numbers that are not finite are null, and text is escaped", "[metrics]") {
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

TEST_CASE("a writer continues after the existing lines", "[metrics]") {
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

TEST_CASE("after the longest line writing allocates nothing", "[metrics]") {
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

TEST_CASE("a summary has its keys in one order", "[metrics]") {
  Summary summary;
  summary.status = "finished";
  summary.steps = 2000;
  summary.seconds = 65.25;
  summary.loss = 1.5;
  summary.parameters = 804096;
  summary.data_bytes = 1003854;
  summary.tokens_per_s = 12345.5;
  summary.step_ms_median = 0.1;
  summary.checks = 3;
  summary.check_s = 0.5;
  summary.saved = "new";
  summary.origin = {.version = "1.2.3",
                    .command = {"shardrun", "run", "a job.ini"},
                    .host = "node7",
                    .started = "2026-11-22T14:15:03.000Z",
                    .ended = "2026-11-22T14:16:08.250Z"};
  summary.ranks.push_back({.host = "node1",
                           .device = "cpu",
                           .planned_bytes = 210,
                           .peak_bytes = 200,
                           .private_bytes = 40,
                           .categories = {10, 20, 30, 40, 50, 60},
                           .sent_bytes = {{"data", {{"all_reduce", 8}, {"all_gather", 4}}}},
                           .wire_bytes = 99});

  CHECK(to_json(summary).find("strangers") == std::string::npos);
  summary.strangers = 12;
  CHECK(to_json(summary).ends_with("\n  ],\n  \"strangers\": 12\n}\n"));
  summary.strangers = 0;
  CHECK(to_json(summary) == R"({
  "status": "finished",
  "exit_code": 0,
  "error": null,
  "steps": 2000,
  "seconds": 65.25,
  "loss": 1.5,
  "val_loss": null,
  "parameters": 804096,
  "data_bytes": 1003854,
  "tokens_per_s": 12345.5,
  "step_ms_median": 0.1,
  "checks": 3,
  "check_s": 0.5,
  "saved": "new",
  "ending_s": null,
  "version": "1.2.3",
  "command": [
    "shardrun",
    "run",
    "a job.ini"
  ],
  "host": "node7",
  "started": "2026-11-22T14:15:03.000Z",
  "ended": "2026-11-22T14:16:08.250Z",
  "ranks": [
    {
      "host": "node1",
      "device": "cpu",
      "planned_bytes": 210,
      "peak_bytes": 200,
      "private_bytes": 40,
      "categories": {
        "parameters": 10,
        "gradients": 20,
        "optimizer": 30,
        "activations": 40,
        "communication": 50,
        "scratch": 60
      },
      "sent_bytes": {
        "data": {
          "all_gather": 4,
          "all_reduce": 8
        }
      },
      "wire_bytes": 99
    }
  ]
}
)");
}

TEST_CASE("empty and non-finite values give valid JSON", "[metrics]") {
  Summary summary;
  summary.status = "a \"quoted\" status";
  summary.exit_code = 1;
  summary.loss = 0.0 / 0.0;
  summary.ranks.resize(1);

  const std::string json = to_json(summary);

  CHECK_THAT(json, Contains("\"status\": \"a \\\"quoted\\\" status\""));
  CHECK_THAT(json, Contains("\"loss\": null"));
  CHECK_THAT(json, Contains("\"sent_bytes\": {},"));
  summary.ranks.clear();
  CHECK_THAT(to_json(summary), Contains("\"ranks\": []\n"));
}

TEST_CASE("a summary replaces the one before it", "[metrics]") {
  const TemporaryFolder folder;
  write_file(folder / "summary.json", "old");
  Summary summary;
  summary.steps = 5;

  write_summary(folder / "summary.json", summary);

  CHECK(read_file(folder / "summary.json") == to_json(summary));
  CHECK(files_in(folder.path()) == 1);
  CHECK_THAT(error_of([&] { write_summary(folder / "missing/summary.json", summary); }),
             Contains("1: cannot create") && Contains("No such file or directory"));
}

TEST_CASE("a summary is read back unchanged", "[metrics]") {
  Summary summary{.status = "failed", .exit_code = 1, .error = "rank 1: \"no\"", .steps = 3, .seconds = 0.5};
  summary.loss = 1.25;
  summary.checks = 2;
  summary.check_s = 0.25;
  summary.ranks = {{.planned_bytes = 7, .peak_bytes = 6, .wire_bytes = 5}, {}};
  summary.ranks[0].sent_bytes["data"]["all_reduce"] = 12;
  summary.ranks[0].programs["decode"] = {.calls = 9, .sent_bytes = {{"data", {{"all_reduce", 12}}}}};
  summary.ranks[0].programs["prefill"] = {.calls = 2, .sent_bytes = {}};
  CHECK_THAT(to_json(summary), Contains("\"programs\": {\n        \"decode\": {\n          \"calls\": 9,"));

  CHECK(to_json(parse_summary(to_json(summary))) == to_json(summary));
  CHECK_THROWS_AS(static_cast<void>(parse_summary("{}")), shardrun::Error);
  CHECK_THROWS_AS(static_cast<void>(parse_summary("{")), shardrun::Error);
}

TEST_CASE("numbers of a summary are read back with the same bits", "[metrics]") {
  int changed = 0;
  for (int i = 1; i <= 1000; ++i) {
    Summary summary{.status = "finished"};
    summary.loss = i / 997.0;
    changed += parse_summary(to_json(summary)).loss == summary.loss ? 0 : 1;
  }
  CHECK(changed == 0);
}
