#include "core/report/document.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <cmath>
#include <vector>

#include "core/base/utf8.h"
#include "core/metrics/locked_run_folder.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun;
using namespace shardrun::report;
using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

namespace json = boost::json;

namespace {

json::object run_document(const std::filesystem::path& folder, const std::string& name) {
  return RunReader(folder, name).document();
}

/// A folder that a run has held.
class RunOf {
 public:
  RunOf() { write(".lock", "process 1 on here\n"); }

  void write(const std::filesystem::path& name, std::string_view text) const {
    std::filesystem::create_directories((folder_.path() / name).parent_path());
    write_file(folder_.path() / name, text);
  }
  [[nodiscard]] const std::filesystem::path& path() const { return folder_.path(); }
  [[nodiscard]] json::object document() const {
    json::object document = run_document(path(), "a run");
    join(document, trace_document(path()));
    return document;
  }

 private:
  TemporaryFolder folder_;
};

std::vector<double> numbers(const json::object& steps, std::string_view column) {
  std::vector<double> numbers;
  for (const json::value& number : steps.at(column).as_array()) {
    numbers.push_back(number.is_null() ? -1 : number.to_number<double>());
  }
  return numbers;
}

/// Parses the JSON document that is embedded in an HTML page.
json::object document_in(const std::string& page) {
  constexpr std::string_view begin = R"(<script type="application/json" id="document">)";
  const std::size_t at = page.find(begin) + begin.size();
  return json::parse(page.substr(at, page.find("</script>", at) - at)).as_object();
}

std::string all_notes(const json::object& run) {
  std::string text;
  for (const json::value& note : run.at("notes").as_array()) {
    text += std::string(note.as_string()) + '\n';
  }
  return text;
}

}  // namespace

TEST_CASE("the columns of a document have the numbers of metrics.jsonl", "[report]") {
  const RunOf run;
  run.write(
      "metrics.jsonl",
      "{\"step\":1,\"loss\":4.123456789012345,\"tokens_per_s\":1000,\"step_s\":0.5,\"comm_s\":1,\"bandwidth\":2}\n"
      "{\"step\":2,\"loss\":null,\"val_loss\":1e-300,\"tokens_per_s\":2000,\"step_s\":0.25}\n"
      "{\"step\":3,\"loss\":3,\"tokens_per_s\":500.00000001,\"step_s\":1,\"own\":-0.1}\n"
      "this is no line of it\n"
      "{\"step\":1,\"val_loss\":7}\n"
      "{\"step\":3,\"loss\":0.1,\"tokens_per_s\":1000,\"step_s\":0.5,\"own\":0.30000000000000004}\n"
      "{\"step\":4,\"loss\":0.0");
  const json::object document = run.document();
  const json::object& steps = document.at("steps").as_object();

  CHECK(numbers(steps, "step") == std::vector<double>{1, 2, 3});
  CHECK(numbers(steps, "loss") == std::vector<double>{4.123456789012345, -1, 0.1});
  CHECK(numbers(steps, "val_loss") == std::vector<double>{7, 1e-300, -1});
  CHECK(numbers(steps, "own") == std::vector<double>{-1, -1, 0.30000000000000004});
  CHECK(numbers(steps, "tokens") == std::vector<double>{500, 1000, 1500});
  CHECK(numbers(steps, "time_s") == std::vector<double>{0.5, 0.75, 1.25});
  CHECK_FALSE(steps.contains("comm_s"));
  CHECK_FALSE(steps.contains("bandwidth"));
  CHECK(document.at("kept_every").to_number<int>() == 1);
  CHECK(all_notes(document) == "1 line of metrics.jsonl could not be read\n");
  const std::string text = document_text({document}, "1", false);
  CHECK_THAT(text, Contains("[4.123456789012345,null,0.1]") && Contains("[7,1e-300,null]") && Contains("[1,2,3]"));
}

TEST_CASE("of many steps every n-th is kept, and the last and the validated ones", "[report]") {
  const RunOf run;
  std::string lines;
  for (int step = 1; step <= 50'000; ++step) {
    lines += fmt::format("{{\"step\":{},\"loss\":1{}}}\n", step, step == 20'000 ? ",\"val_loss\":2" : "");
  }
  run.write("metrics.jsonl", lines);
  const json::object document = run.document();
  const std::vector<double> steps = numbers(document.at("steps").as_object(), "step");

  CHECK(document.at("kept_every").to_number<int>() == 3);
  CHECK(steps.size() == 16'667 + 2);
  CHECK(steps[1] == 4);
  CHECK(steps.back() == 50'000);
  CHECK(std::ranges::find(steps, 20'000) != steps.end());
}

TEST_CASE("a page of 10,000 steps and 64 ranks with a large trace is smaller than 5 MB", "[report]") {
  const RunOf run;
  const auto number = [](int i) { return 1 / (i + 3.0); };
  std::string lines;
  for (int step = 1; step <= 10'000; ++step) {
    lines += fmt::format(
        "{{\"step\":{0},\"loss\":{1},\"grad_norm\":{1},\"lr\":{1},\"tokens_per_s\":{2},\"step_s\":{1},\"comm_s\":{1},"
        "\"comm_exposed_s\":{1},\"comm_hidden_s\":{1},\"bandwidth\":{1},\"flops_per_s\":{2},\"utilisation\":{1}}}\n",
        step, number(step), 1e6 * number(step));
  }
  run.write("metrics.jsonl", lines);
  lines.clear();
  std::string of_ranks;
  for (int rank = 0; rank < 64; ++rank) {
    of_ranks += fmt::format("{}{}", rank == 0 ? "" : ",", number(rank));
  }
  for (int step = 10; step <= 10'000; step += 10) {
    if (step == 5'000) {
      continue;  // a restart cut this interval short
    }
    lines += fmt::format("{{\"step\":{0},\"steps\":10", step);
    for (const char* const name : {"seconds", "computing_s", "exposed_s", "hidden_s", "input_s", "sent_bytes"}) {
      lines += fmt::format(",\"{}\":[{}]", name, of_ranks);
    }
    lines += "}\n";
  }
  run.write("ranks.jsonl", lines);
  lines = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  for (int rank = 1; rank <= 64; ++rank) {
    for (int i = 0; i < 1000; ++i) {
      lines += fmt::format(
          "{{\"ph\":\"X\",\"pid\":{},\"tid\":1,\"name\":\"op {}\",\"cat\":\"compute\",\"ts\":{},\"dur\":{},\"args\":"
          "{{\"step\":3,\"phase\":\"forward\",\"microbatch\":1,\"chunk\":0}}}},\n",
          rank, i % 100, 1e9 + i * 101.7, 1 + i);
    }
    lines += fmt::format(
        "{{\"ph\":\"X\",\"pid\":{},\"tid\":1,\"name\":\"0F1\",\"cat\":\"action\",\"ts\":1000000000.0,\"dur\":0.1,"
        "\"args\":{{\"step\":4,\"microbatch\":1,\"chunk\":0}}}}{}\n",
        rank, rank < 64 ? "," : "");
  }
  run.write("trace.json", lines + "]}\n");
  const json::object document = run.document();

  CHECK(all_notes(document).empty());
  const json::object& times = document.at("rank_times").as_object();
  CHECK(times.at("step").as_array().size() == 251);
  CHECK(times.at("steps").as_array()[0] == 40);
  CHECK(times.at("step").as_array()[124] == 4'990);
  CHECK(times.at("steps").as_array()[125] == 10);
  CHECK(times.at("step").as_array()[250] == 10'000);
  CHECK(times.at("seconds").as_array()[1].as_array().size() == 64);
  CHECK(std::abs(times.at("hidden_s").as_array()[1].as_array()[1].as_double() - 4 * number(1)) < 1e-3);
  const json::object& trace = document.at("trace").as_object();
  CHECK(trace.at("left_out") == 64'064 - 50'000);
  CHECK(trace.at("first_step") == 3);
  CHECK(trace.at("last_step") == 4);
  CHECK(trace.at("ranks").as_array().size() == 64);
  std::size_t spans = 0;
  std::size_t actions = 0;
  const json::array& kinds = trace.at("kinds").as_array();
  for (const json::value& rank : trace.at("ranks").as_array()) {
    for (const json::value& span : rank.at("rows").as_array()[0].at("spans").as_array()) {
      ++spans;
      actions += kinds[span.at(5).to_number<std::size_t>()] == "action" ? 1 : 0;
    }
  }
  CHECK(spans == 50'000);
  CHECK(actions == 64);
  CHECK(page_text("a run", document_text({document}, "1", false), false).size() < 5'000'000);
}

TEST_CASE("a document's trace has what the trace of the run has", "[report]") {
  const RunOf run;
  run.write("trace.json",
            "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
            "{\"ph\":\"M\",\"pid\":1,\"tid\":0,\"name\":\"process_name\",\"args\":{\"name\":\"rank 0\"}},\n"
            "{\"ph\":\"M\",\"pid\":1,\"tid\":1,\"name\":\"thread_name\",\"args\":{\"name\":\"compute\"}},\n"
            "{\"ph\":\"X\",\"pid\":1,\"tid\":1,\"name\":\"mlp\",\"cat\":\"compute\",\"ts\":1000.123,\"dur\":2.000,"
            "\"args\":{\"step\":3,\"phase\":\"forward\",\"chunk\":1,\"microbatch\":2}},\n"
            "{\"ph\":\"X\",\"pid\":1,\"tid\":1,\"name\":\"step 3\",\"cat\":\"step\",\"ts\":1000.000,\"dur\":9.000,"
            "\"args\":{\"step\":3}},\n"
            "{\"ph\":\"s\",\"pid\":1,\"tid\":1,\"name\":\"message\",\"cat\":\"message\",\"id\":1,\"ts\":1}\n"
            "]}\n");
  const json::object document = run.document();
  CHECK(document.at("trace") == json::parse(R"({"ranks": [{"rank": 0, "rows": [{"name": "compute", "spans":
                        [[0.0, 9.0, 1, -1, -1, 1], [0.1, 2.0, 0, 2, 1, 0]]}]}],
                        "names": ["mlp", "step 3"], "kinds": ["op", "step"], "left_out": 0, "first_step": 3,
                        "last_step": 3})"));
  run.write("trace.json", "{\"ph\":\"X\"}\n");
  CHECK(run.document().at("trace").is_null());
  CHECK_THAT(all_notes(run.document()), StartsWith("the trace is left out"));
}

TEST_CASE("texts from outside cannot leave the document of a page", "[report]") {
  const std::string hostile = "</script><script>alert(1)</script><!--\xe2\x80\xa8\xe2\x80\xa9";
  const RunOf run;
  json::object summary = {{"status", "failed"}, {"error", hostile}, {hostile, hostile}};
  run.write("summary.json", json::serialize(summary));
  run.write("job.ini", "[job]\noutput = \"" + hostile + "\"\n");
  const json::object document = run_document(run.path(), hostile + "\xff");
  const std::string text = document_text({document}, "1", false);

  CHECK_FALSE(first_invalid_utf8(text));
  CHECK(text.find('<') == std::string::npos);
  CHECK(text.find("\xe2\x80") == std::string::npos);
  const std::string page = page_text(hostile, text, false);
  CHECK(page.find("<script>alert") == std::string::npos);
  const json::object parsed = document_in(page).at("runs").as_array()[0].as_object();
  CHECK(parsed.at("error") == json::string(hostile));
  CHECK(parsed.at("name") == json::string(hostile + "\xef\xbf\xbd"));
  CHECK(parsed.at("summary") == summary);
  CHECK(parsed.at("job").at("settings").as_array().size() == 1);
  CHECK(parsed.at("job").at("settings").at(0) == json::array{"job", "output", json::string(hostile)});
}

TEST_CASE("a page is known as one", "[report]") {
  const TemporaryFolder folder;
  const std::string page = page_text("t", document_text({}, "1", true), true);
  CHECK(document_in(page).at("live").as_bool());
  CHECK_THAT(page, Contains("connect-src 'self'") && Contains("<title>t</title>"));
  CHECK_THAT(page_text("t", "{}", false), Contains("connect-src 'none'"));
  write_file(folder / "page.html", page);
  write_file(folder / "other.html", "<!doctype html>\n<p>mine</p>\n");
  CHECK(is_page(folder / "page.html"));
  CHECK_FALSE(is_page(folder / "other.html"));
  CHECK_FALSE(is_page(folder / "none.html"));
  CHECK_FALSE(is_page(folder.path()));
}

TEST_CASE("a document tells how its run stands", "[report]") {
  const TemporaryFolder above;
  {
    const metrics::LockedRunFolder held(above / "run");
    CHECK(run_document(above / "run", "r").at("status") == "running");
  }
  CHECK(run_document(above / "run", "r").at("status") == "failed");
  CHECK_THAT(std::string(run_document(above / "run", "r").at("error").as_string()), Contains("there is no summary"));
  CHECK(run_document(above / "run", "r").at("slow_ranks").as_array().empty());
  // The last line tells of all that were found so far.
  write_file(above / "run/ranks.jsonl", R"({"step":9,"steps":9,"seconds":[1,1]}
{"step":19,"steps":10,"seconds":[1,1],"slow_ranks":[{"rank":1,"cause":"input"}]}
{"step":29,"steps":10,"seconds":[1,1],"slow_ranks":[{"rank":1,"cause":"input"},{"rank":0,"cause":"compute"}]}
{"step":39,"steps":10,"sec)");
  CHECK(run_document(above / "run", "r").at("slow_ranks") ==
        json::parse(R"([{"rank": 1, "cause": "input"}, {"rank": 0, "cause": "compute"}])"));
  write_file(above / "run/summary.json", R"({"status": "stopped", "error": null, "parameters": 7,
      "slow_ranks": [{"rank": 1}], "ranks": [{"host": "a", "planned_bytes": 9, "peak_bytes": 8, "sent_bytes": {},
      "categories": {"parameters": 5}}]})");
  const json::object document = run_document(above / "run", "r");
  CHECK(document.at("status") == "stopped");
  CHECK(document.at("parameters") == 7);
  CHECK(document.at("slow_ranks").as_array().size() == 1);
  CHECK(document.at("ranks") == json::parse(R"([{"rank": 0, "host": "a", "measured_peak": 8, "sent": {},
      "planned": {"parameters": 5, "peak": 9}}])"));
}

TEST_CASE("a document says which files of its run cannot be read, and what they lack", "[report]") {
  const auto notes_of = [](const std::filesystem::path& name, std::string_view text) {
    const RunOf run;
    run.write("summary.json", R"({"status": "finished", "first_step": 1, "steps": 2, "ranks": []})");
    run.write("metrics.jsonl", "{\"step\":3}\n");
    run.write(name, text);
    return all_notes(run.document());
  };
  CHECK(notes_of("ranks.jsonl", "") == "");
  CHECK(notes_of("ranks.jsonl", "[1]\n") == "1 line of ranks.jsonl could not be read\n");
  CHECK(notes_of("ranks.jsonl", "{\"st") == "");
  CHECK(notes_of("trace.json", "nonsense") == "the trace is left out: trace.json is no trace that a run has written\n");
  CHECK(notes_of("metrics.jsonl", "") == "metrics.jsonl has no steps, and the run ended with step 3\n");
  CHECK(notes_of("metrics.jsonl", "[1]\n{\"step\":\"a\"}\n{\"step\":2}\n") ==
        "2 lines of metrics.jsonl could not be read\n"
        "metrics.jsonl ends with step 2, and the run ended with step 3\n");
}

TEST_CASE("a report that is made again reads of growing lists what is new, and all where they were cut", "[report]") {
  const RunOf run;
  const std::string first = "{\"step\":1,\"loss\":4,\"step_s\":0.5}\nno line\n{\"step\":2,\"loss\":3,\"step_s\":0.5}\n";
  run.write("metrics.jsonl", first);
  run.write("ranks.jsonl", "{\"step\":2,\"steps\":2,\"seconds\":[1,2]}\n");
  RunReader reader(run.path(), "r");
  const auto is_as_new = [&] {
    const json::object again = reader.document();
    const json::object anew = run_document(run.path(), "r");
    INFO(json::serialize(again));
    CHECK(again == anew);
    return again;
  };
  is_as_new();
  // A validation loss is added to the last line; a line is not yet whole.
  const std::string validated = first.substr(0, first.size() - 2) + ",\"val_loss\":3.5}\n";
  run.write("metrics.jsonl", validated + "{\"step\":3,\"loss\":2");
  CHECK(numbers(is_as_new().at("steps").as_object(), "val_loss") == std::vector<double>{-1, 3.5});
  run.write("metrics.jsonl",
            validated + "{\"step\":3,\"loss\":2.5,\"step_s\":0.25}\nnor this\n{\"step\":2,\"val_loss\":9}\n");
  run.write("ranks.jsonl", "{\"step\":2,\"steps\":2,\"seconds\":[1,2]}\n{\"step\":3,\"steps\":1,\"seconds\":[3,4]}\n");
  const json::object grown = is_as_new();
  CHECK(numbers(grown.at("steps").as_object(), "time_s") == std::vector<double>{0.5, 1, 1.25});
  CHECK(numbers(grown.at("steps").as_object(), "val_loss") == std::vector<double>{-1, 9, -1});
  CHECK_THAT(all_notes(grown), Contains("2 lines of metrics.jsonl could not be read"));
  // A restart has cut the lists, and done steps again.
  run.write("metrics.jsonl", "{\"step\":1,\"loss\":7,\"step_s\":0.5}\n");
  run.write("ranks.jsonl", "{\"step\":1,\"steps\":1,\"seconds\":[1,2]}\n");
  CHECK(numbers(is_as_new().at("steps").as_object(), "loss") == std::vector<double>{7});
  run.write("metrics.jsonl", first + first);
  is_as_new();

  // What was read is not read again.
  std::string changed = first + first;
  changed[std::string_view("{\"step\":1,\"loss\":").size()] = '8';
  run.write("metrics.jsonl", changed + "{\"step\":3,\"loss\":1}\n");
  CHECK(numbers(reader.document().at("steps").as_object(), "loss") == std::vector<double>{4, 3, 1});
}

TEST_CASE("fields of a summary that have another form are left out, and a note names them", "[report]") {
  const RunOf run;
  run.write(
      "summary.json",
      R"({"status":"finished","steps":"many","loss":[1],"seconds":2.5,"command":"run","checkpoints":{"saved":"two"},
            "ranks":[{"host":1,"peak_bytes":"8","wire_bytes":5,"sent_bytes":{"data":{"all_reduce":"x"}}},7],
            "attempts":[{"rank":"0","cause":"c"}],"slow_ranks":{}})");

  const json::object document = run.document();

  const json::object& summary = document.at("summary").as_object();
  CHECK(document.at("status") == "finished");
  CHECK(summary.at("seconds") == 2.5);
  CHECK(summary.at("checkpoints").as_object().empty());
  for (const char* const name : {"steps", "loss", "command", "slow_ranks"}) {
    INFO(name);
    CHECK_FALSE(summary.contains(name));
  }
  CHECK(document.at("slow_ranks").as_array().empty());
  CHECK(document.at("attempts") == json::value(json::array{json::object{{"cause", "c"}}}));
  const json::object& rank = document.at("ranks").at(0).as_object();
  CHECK_FALSE(rank.contains("host"));
  CHECK_FALSE(rank.contains("measured_peak"));
  CHECK(rank.at("wire_bytes") == 5);
  CHECK(rank.at("sent").at("data").as_object().empty());
  CHECK_THAT(all_notes(document),
             Contains("of the summary this is left out: steps (a number was expected), loss (a number "
                      "was expected), command (a list was expected), ") &&
                 Contains(", and "));
}

TEST_CASE("a folder that is no run's is refused", "[report]") {
  const TemporaryFolder folder;
  CHECK_THAT(error_of([&] { static_cast<void>(run_document(folder / "none", "runs/none")); }),
             StartsWith("2: there is no folder 'runs/none'"));
  CHECK_THAT(error_of([&] { static_cast<void>(run_document(folder.path(), "here")); }),
             StartsWith("2: 'here' is not the folder of a run"));
}

TEST_CASE("a document has the last picture of each field and its animation", "[report]") {
  const RunOf run;
  run.write("pictures/heat-000100.png", "\x89PNG early");
  run.write("pictures/heat-000200.png", "\x89PNG");
  run.write("pictures/heat-map.png", "\x89PNG");
  run.write("pictures/heat-map-000100.png", "early");
  run.write("pictures/heat.gif", "GIF8");
  run.write("pictures/cut.png", "");
  run.write("pictures/large.png", "\x89PNG" + std::string(4U << 20U, 'x'));
  const json::object document = run.document();

  CHECK(document.at("pictures") == json::parse(R"([{"field": "heat", "step": null, "title": "heat, all saved steps",
                         "data": "data:image/gif;base64,R0lGOA=="},
                        {"field": "heat", "step": 200, "title": "heat, step 200",
                         "data": "data:image/png;base64,iVBORw=="},
                        {"field": "heat-map", "step": null, "title": "heat-map, last step",
                         "data": "data:image/png;base64,iVBORw=="}])"));
  CHECK_THAT(all_notes(document), StartsWith("the picture cut.png is left out: it is no PNG file\n"
                                             "the picture large.png is left out"));
}

TEST_CASE("what was planned joins what a run says of its ranks", "[report]") {
  json::object run =
      json::parse(R"({"ranks": [{"rank": 0, "host": "a", "planned": {"peak": 1}}], "notes": []})").as_object();
  join(run, json::parse(R"({"ranks": [{"rank": 0, "host": "b", "stage": 0, "planned": {"peak": 2}},
                                          {"rank": 1, "host": "b"}], "notes": ["n"], "timeline": null})")
                .as_object());
  CHECK(run == json::parse(R"({"ranks": [{"rank": 0, "host": "a", "stage": 0, "planned": {"peak": 2}},
                                         {"rank": 1, "host": "b"}], "notes": ["n"], "timeline": null})"));
}
