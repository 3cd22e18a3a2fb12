// The page of `shardrun report`, in a browser.

#include <chrono>
#include <cmath>
#include <csignal>
#include <future>
#include <iostream>
#include <map>

#include "tests/browser/browser.h"
#include "tests/integration/processes.h"
#include "tests/integration/program.h"
#include "tests/support/catch.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Matchers::Contains;

namespace json = boost::json;

namespace {

const std::vector<std::string> in_3d = {"job.ranks=4",         "job.strategy=3d",   "mesh.data=2",
                                        "mesh.pipe=2",         "strategy.zero=1",   "data.microbatches=4",
                                        "train.steps=12",      "job.trace=steps",   "train.eval_every=4",
                                        "train.log_every=100", "checkpoint.every=6"};

std::string in_file(const std::filesystem::path& page) { return "file://" + page.string(); }

/// The page of a run of `in_3d`.
std::filesystem::path page_of_run(const JobFolder& job) {
  const Ended run = job.run(in_3d);
  INFO(run.err);
  REQUIRE(run.code == 0);
  const Ended report = run_program(job.path(), {"report", "run"});
  INFO(report.err);
  REQUIRE(report.code == 0);
  return job.path() / "run/report.html";
}

/// The texts of all elements.
std::vector<std::string> texts_of(const Browser& browser, const std::string& selector) {
  std::vector<std::string> texts;
  const json::value found =
      browser.run("return [...document.querySelectorAll(arguments[0])].map(each => each.textContent)", {selector});
  for (const json::value& text : found.as_array()) {
    texts.emplace_back(text.as_string());
  }
  return texts;
}

/// Opens the numbers of a chart, and returns their rows as JavaScript reads them: null where there is none.
json::array numbers_of(const Browser& browser, const std::string& id) {
  static_cast<void>(browser.run("document.getElementById(arguments[0]).click()", {id + "-title"}));
  browser.await("document.querySelector('#" + id + " tbody tr')");
  return browser
      .run("return [...document.querySelectorAll('#" + id +
           " tbody tr')].map(row => [...row.children].map(cell => cell.textContent === '–' ? null : "
           "Number(cell.textContent)))")
      .as_array();
}

double number_of(const json::value& value) { return value.to_number<double>(); }

/// Texts whose contrast with what is behind them is below 4.5, and their contrast.
constexpr const char* faint_texts = R"(
  const numbers = text => text.match(/[\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
                                .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (!colour.startsWith("rgb")) return null;
      if (numbers(colour)[3] !== 0) return numbers(colour);
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    if (!own || element.closest("svg") || element.getBoundingClientRect().width === 0) continue;
    const ground = behind(element);
    if (!ground) continue;
    const [a, b] = [light(numbers(getComputedStyle(element).color)), light(ground)].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) found.push(element.tagName + " " + element.className + " " + element.textContent.slice(0, 40));
  }
  return found;)";

}  // namespace

TEST_CASE("report page: every section is there, fits and can be read, without errors and requests", "[browser]") {
  const JobFolder job;
  const std::filesystem::path page = page_of_run(job);
  const Browser browser;
  for (const std::string scheme : {"light", "dark"}) {
    for (const int width : {375, 1920}) {
      INFO(scheme << " " << width);
      browser.scheme(scheme);
      browser.size(width, 900);
      browser.open(in_file(page));
      CHECK(browser.text("h1") == "run");
      CHECK(browser.text(".badge") == "✓ finished");
      CHECK(texts_of(browser, "h2") ==
            std::vector<std::string>{"Result", "Curves", "Slow ranks", "Computing and communication", "Memory",
                                     "Bytes between ranks", "Timeline", "Mesh and shards", "Job"});
      CHECK(browser.run("return document.documentElement.scrollWidth <= innerWidth").as_bool());
      CHECK(browser.run("return document.documentElement.dataset.theme") == json::value(scheme));
      CHECK(browser.run(faint_texts).as_array() == json::array());
      // Every picture of numbers has drawn something.
      CHECK(browser
                .run("return [...document.querySelectorAll('canvas')].filter(each => !each.getContext('2d')"
                     ".getImageData(0, 0, each.width, each.height).data.some(value => value)).map(each => each.id)")
                .as_array() == json::array());
    }
  }
  // On paper it is light, and its lists are open.
  const std::string opened =
      "return [document.documentElement.dataset.theme, [...document.querySelectorAll('details')].every(each => "
      "each.open), document.querySelectorAll('#summary-numbers tbody tr').length > 10]";
  static_cast<void>(browser.run("dispatchEvent(new Event('beforeprint'))"));
  CHECK(browser.run(opened) == json::value(json::array{"light", true, true}));
  static_cast<void>(browser.run("dispatchEvent(new Event('afterprint'))"));
  CHECK(browser.run(opened) == json::value(json::array{"dark", false, true}));
  browser.click("#theme");
  CHECK(browser.run("return document.documentElement.dataset.theme") == "light");
  CHECK(browser.complaints() == std::vector<std::string>());
  CHECK(browser.requests() == std::vector<std::string>());
}

TEST_CASE("report page: its numbers are those of the run", "[browser]") {
  const JobFolder job;
  const std::filesystem::path page = page_of_run(job);
  const Browser browser;
  browser.open(in_file(page));
  const std::vector<json::object> metrics = job.metrics();
  const json::object summary = job.summary();

  const json::array losses = numbers_of(browser, "curve-loss-numbers");
  REQUIRE(losses.size() == metrics.size());
  for (std::size_t step = 0; step < metrics.size(); ++step) {
    INFO(step);
    CHECK(losses[step].at(0) == metrics[step].at("step"));
    CHECK(number_of(losses[step].at(1)) == number_of(metrics[step].at("loss")));
    const json::value* const validation = metrics[step].if_contains("val_loss");
    CHECK(losses[step].at(2).is_null() == (validation == nullptr));
    if (validation != nullptr) {
      CHECK(number_of(losses[step].at(2)) == number_of(*validation));
    }
  }
  for (const auto& [chart, key] : std::map<std::string, std::string>{
           {"grad_norm", "grad_norm"}, {"lr", "lr"}, {"tokens_per_s", "tokens_per_s"}, {"step_s", "step_s"}}) {
    INFO(chart);
    const json::array numbers = numbers_of(browser, "curve-" + chart + "-numbers");
    REQUIRE(numbers.size() == metrics.size());
    for (std::size_t step = 0; step < metrics.size(); ++step) {
      CHECK(number_of(numbers[step].at(1)) == number_of(metrics[step].at(key)));
    }
  }
  const json::array memory = numbers_of(browser, "memory-numbers");
  const json::array& ranks = summary.at("ranks").as_array();
  REQUIRE(memory.size() == ranks.size());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const json::array& row = memory[rank].as_array();
    CHECK(row[row.size() - 3] == ranks[rank].at("planned_bytes"));
    CHECK(row[row.size() - 2] == ranks[rank].at("peak_bytes"));
    CHECK(row[row.size() - 1] == ranks[rank].at("private_bytes"));
  }
  CHECK_THAT(browser.text("#memory p"), Contains("measured as planned on all 4 ranks"));
  for (const std::string& row : texts_of(browser, "#traffic .scroll:first-of-type tbody tr td:last-child")) {
    CHECK(row == "✓ as planned");
  }
  const std::vector<std::string> parts = texts_of(browser, "#tensor option");
  CHECK(std::find(parts.begin(), parts.end(), "layer.0/mlp/up/weights") != parts.end());
  CHECK(browser.complaints() == std::vector<std::string>());
}

TEST_CASE("report page: charts and the timeline zoom and tell values, by pointer and by keys", "[browser]") {
  const JobFolder job;
  const std::filesystem::path page = page_of_run(job);
  const Browser browser;
  browser.size(1280, 900);
  browser.open(in_file(page));
  const std::vector<json::object> metrics = job.metrics();
  const auto shown = [&](const std::string& chart) {
    const json::value ends = browser.run(
        "const chart = document.getElementById(arguments[0]);"
        "return [Number(chart.getAttribute('aria-valuemin')), Number(chart.getAttribute('aria-valuemax'))]",
        {chart});
    return std::pair(number_of(ends.at(0)), number_of(ends.at(1)));
  };
  // A pointer event at shares of the width and height of an element.
  const auto point = [&](const std::string& id, const std::string& kind, double x, double y) {
    static_cast<void>(browser.run(
        "const box = document.getElementById(arguments[0]).getBoundingClientRect();"
        "document.getElementById(arguments[0]).dispatchEvent(new PointerEvent(arguments[1], {bubbles: true, button: 0, "
        "clientX: box.left + arguments[2] * box.width, clientY: box.top + arguments[3] * box.height}))",
        {id, kind, x, y}));
  };
  browser.await("document.querySelector('#curve-loss').width > 300");
  CHECK(shown("curve-loss") == std::pair(1.0, 12.0));

  point("curve-loss", "pointermove", 1, 0.5);
  const auto is_told = [&](std::size_t step) {
    const std::string told = browser.text("#curves .readout");
    INFO(told);
    CHECK_THAT(told, Contains("step " + std::to_string(step)));
    const double value = number_of(metrics[step - 1].at("loss"));
    const std::string after = told.substr(told.find("loss ") + 5);
    CHECK(std::stod(after) == Approx(value).epsilon(1e-4));
  };
  is_told(12);
  point("curve-loss", "pointerdown", 0.3, 0.5);
  point("curve-loss", "pointermove", 0.7, 0.5);
  point("curve-loss", "pointerup", 0.7, 0.5);
  CHECK(shown("curve-loss").first > 3);
  CHECK(shown("curve-loss").second < 10);
  CHECK(shown("curve-lr") == shown("curve-loss"));  // they zoom together
  point("curve-lr", "dblclick", 0.5, 0.5);
  CHECK(shown("curve-loss") == std::pair(1.0, 12.0));

  point("curve-lr", "pointerleave", 0.5, 0.5);
  static_cast<void>(browser.run(
      "const chart = document.getElementById('curve-loss'), box = chart.getBoundingClientRect();"
      "for (const kind of ['pointerdown', 'pointerup', 'pointerleave']) chart.dispatchEvent(new PointerEvent("
      "kind, {pointerType: 'touch', button: 0, clientX: box.left, clientY: box.top + 50}))"));
  is_told(1);  // a tap moves the cursor, which stays when the finger is lifted
  point("curve-lr", "pointerleave", 0.5, 0.5);
  static_cast<void>(browser.run("document.getElementById('curve-loss').focus()"));
  browser.press("\uE014");  // right
  browser.press("\uE014");
  is_told(2);
  browser.press("+");
  CHECK(shown("curve-loss").second < 10);
  browser.press("0");
  CHECK(shown("curve-loss") == std::pair(1.0, 12.0));
  browser.click("#curves-in");
  CHECK(shown("curve-loss").second < 12);
  browser.click("#curves-all");
  static_cast<void>(
      browser.run("const smooth = document.getElementById('smooth'); smooth.value = 0.9; smooth.dispatchEvent(new "
                  "Event('input'))"));
  CHECK(browser.text("output[for=smooth]") == "0.90");
  browser.click("#logarithmic");
  static_cast<void>(
      browser.run("const axis = document.getElementById('x-axis'); axis.value = 'tokens'; axis.dispatchEvent(new "
                  "Event('change'))"));
  CHECK(shown("curve-loss").second > 1000);
  static_cast<void>(
      browser.run("const axis = document.getElementById('x-axis'); axis.value = 'time'; axis.dispatchEvent(new "
                  "Event('change'))"));
  CHECK_THAT(browser.text("#curves"), Contains("Time in steps is shorter than the run"));

  // The drawing fits into its box: only rows below it make it scroll.
  CHECK(browser.run("const box = document.querySelector('.timeline');"
                    "return box.scrollHeight - box.lastChild.clientHeight === box.clientHeight")
            .as_bool());
  const auto told = [&] { return browser.text("#timeline .readout"); };
  static_cast<void>(browser.run("document.getElementById('timeline-plot').focus()"));
  const std::string whole = told();
  browser.press("\uE014");
  CHECK_THAT(told(), Contains("rank 0, actions: 0F0") && Contains("microbatch 0"));
  browser.press("\uE014");
  CHECK_THAT(told(), Contains("rank 0, actions: 0F1") && Contains("microbatch 1"));
  browser.press("\uE015");  // down
  CHECK_THAT(told(), Contains("rank 0, compute: "));
  browser.press("+");
  browser.await("document.querySelector('#timeline .readout').textContent.startsWith('Shown: ')");
  browser.click("#timeline-step-0");
  CHECK_THAT(told(), Contains("Shown: ") && Contains(", step 3."));
  browser.click("#timeline-all");
  CHECK_THAT(told(), Contains("All: ") && Contains(", step 3 to step 5."));
  static_cast<void>(browser.run("document.getElementById('timeline-numbers-title').click()"));
  browser.await("document.querySelector('#timeline-numbers tbody tr')");
  CHECK(browser.complaints() == std::vector<std::string>());
}

TEST_CASE("report page: the Tab key reaches everything that can be used", "[browser]") {
  const JobFolder job;
  const std::filesystem::path page = page_of_run(job);
  const Browser browser;
  browser.open(in_file(page));
  static_cast<void>(browser.run(R"(window.reached = new Set();
      document.addEventListener('focusin', event => window.reached.add(event.target));
      window.usable = [...document.querySelectorAll('a[href], button, input, select, summary, [tabindex="0"]')]
          .filter(each => each.offsetParent !== null || each.closest('nav') || each.classList.contains('skip'));)"));
  const std::int64_t count = browser.run("return window.usable.length").as_int64();
  CHECK(count > 30);
  for (std::int64_t i = 0; i < count + 5; ++i) {
    browser.press("\uE004");
  }
  CHECK(
      browser
          .run(
              "return window.usable.filter(each => !window.reached.has(each)).map(each => each.outerHTML.slice(0, 80))")
          .as_array() == json::array());
  // What has the focus is marked.
  static_cast<void>(browser.run("document.getElementById('curve-loss').focus()"));
  browser.press("\uE014");
  CHECK(browser.run("return getComputedStyle(document.getElementById('curve-loss')).outlineStyle") == "solid");
}

TEST_CASE("report page: several runs are compared, and can be switched off", "[browser]") {
  const JobFolder job;
  REQUIRE(job.run({"job.output=a"}).code == 0);
  REQUIRE(job.run({"job.output=b", "train.learning_rate=3e-2"}).code == 0);
  REQUIRE(run_program(job.path(), {"report", "a", "b", "--to", "both.html"}).code == 0);
  const Browser browser;
  browser.open(in_file(job.path() / "both.html"));
  CHECK_THAT(browser.text("#compared"), Contains("train.learning_rate") && !Contains("job.output"));
  CHECK(texts_of(browser, "#curves figure:first-child .readout .value").size() == 4);
  browser.click("#switch-1");
  CHECK(texts_of(browser, "#curves figure:first-child .readout .value").size() == 2);
  CHECK_THAT(browser.text("#memory h2"), Contains("a"));
  browser.click("#switch-0");
  CHECK_THAT(browser.text("#curves"), Contains("All runs are switched off."));
  browser.click("#switch-0");
  static_cast<void>(
      browser.run("const run = document.getElementById('run'); run.value = 1; run.dispatchEvent(new Event('change'))"));
  CHECK_THAT(browser.text("#memory h2"), Contains("Memory: b"));
  CHECK(browser.complaints() == std::vector<std::string>());
}

TEST_CASE("report page: 10,000 steps and a trace of 60,000 spans on 64 ranks are drawn at once", "[browser]") {
  const JobFolder job;
  const std::filesystem::path page = page_of_run(job);
  // The page of a small run with a larger document. Its numbers are made in the browser.
  std::string text = read_file(page);
  const std::string script = R"(<script>
    const large = JSON.parse(document.getElementById("document").textContent), run = large.runs[0], steps = 10000, ranks = 64;
    const column = make => Array.from({length: steps}, (_, i) => make(i));
    run.steps = {step: column(i => i + 1), loss: column(i => 2 + Math.cos(i * i) / 9), val_loss: column(i => i % 500 ? null : 2),
                 grad_norm: column(i => 1 + Math.sin(i)), lr: column(i => 1e-3), step_s: column(i => 0.1),
                 tokens_per_s: column(i => 1e4 + i), comm_exposed_s: column(i => 0.02), comm_hidden_s: column(i => 0.01)};
    run.ranks = Array.from({length: ranks}, (_, rank) => ({...run.ranks[rank % run.ranks.length], rank}));
    const spans = rank => Array.from({length: 940}, (_, i) => [10 * i + rank, i % 50 ? 9 : 0.2, 0, i % 8, 0, 0]);
    run.trace = {ranks: run.ranks.map(({rank}) => ({rank, rows: [{name: "compute", spans: spans(rank)}]})), names: ["layer"], kinds: ["op"],
                 first_step: 3, last_step: 5, left_out: 0};
    const rows = () => Array.from({length: 300}, (_, i) => run.ranks.map(({rank}) => i ? 1 + (rank === 5 && i > 100) : 500));
    run.rank_times = {step: Array.from({length: 300}, (_, i) => 33 * i + 33 + (i > 5 ? 7 : 0)), steps: Array(300).fill(33), seconds: rows(), computing_s: rows(),
                      exposed_s: rows(), hidden_s: rows(), input_s: rows(), sent_bytes: rows()};
    run.attempts = [{rank: 1, cause: "killed", first_step: 0, steps: 72, ranks: 64, seconds: 1}];
    Object.assign(run.summary, {steps: 10000, first_step: 60});
    run.slow_ranks = [{rank: 5, host: null, cause: "transfer", first_step: 1, last_step: 9, behind_s: 1, share: 0.5}];
    const gif = [71, 73, 70, 56, 57, 97, 1, 0, 1, 0, 0x80, 0, 0, 0, 0, 0, 255, 255, 255,                        // 1 x 1, two colours
                 ...[0, 1].flatMap(frame => [0x21, 0xf9, 4, 0, 10, 0, 0, 0, 0x2c, 0, 0, 0, 0, 1, 0, 1, 0, 0,  // shown for 100 ms
                                             2, 2, frame ? 0x4c : 0x44, 1, 0]), 0x3b];
    run.pictures = [{field: "u", title: "u", step: null, data: "data:image/gif;base64," + btoa(String.fromCharCode(...gif))}];
    document.getElementById("document").textContent = JSON.stringify(large);
    </script>)";
  const std::size_t at = text.rfind("<script>");
  text.insert(at, script + "\n");
  write_file(job.path() / "large.html", text);
  const Browser browser;
  browser.size(1280, 900);
  browser.open(in_file(job.path() / "large.html"));
  const std::string drawn(browser.run("return document.documentElement.dataset.drawn").as_string());
  std::cout << "report page: 10,000 steps, 64 ranks: " << drawn << " ms\n";
  CHECK(std::stod(drawn) > 0);
  // Ranks whose memory reads alike share a row.
  const std::size_t rows = texts_of(browser, "#memory .row").size();
  CHECK(rows > 0);
  CHECK(rows <= 4);
  CHECK(numbers_of(browser, "memory-numbers").size() == 64);
  // An animation stops at the frame that is shown.
  const std::string frame = "document.querySelector('.pictures input').value";
  browser.await(frame + " === '1'");
  const json::value kept = browser.run(
      "const [image, button] = document.querySelectorAll('.pictures img, .pictures button'), before = image.src;"
      "button.click(); return [button.textContent, image.src === before, image.naturalWidth]");
  CHECK(kept == json::value(json::array{"Play", true, 1}));
  const std::string result = browser.text("#overview");
  CHECK_THAT(result,
             Contains("Attempt 1 failed after step 72; the next went on after step 60 and did 12 steps again."));
  CHECK_THAT(result, Contains("10,000"));
  CHECK_THAT(result, Contains("rank 5 began its transfers later than the others, which waited for it"));
  CHECK_THAT(browser.text("#times .bars"), Contains("▲ rank 5") && Contains("rank 030.3"));
  CHECK_THAT(browser.text("#times"),
             Contains("Every rank, mean of a step from step 34 on, without steps 199–205") && Contains("(faint) to 60.6"));
  CHECK_THAT(browser.text("#timeline"), Contains("As planned"));
  CHECK(browser.run("return Timeline.shown[0].lanes[5].label") == "▲ rank 5");
  CHECK(browser.run("return Timeline.shown[0].lanes.reduce((sum, lane) => sum + lane.spans.length, 0)") == 64 * 940);
  const json::value seen = browser.run(
      "const [line] = Timeline.shown; line.view.show(null); const began = performance.now(); line.surface.draw();"
      "return [line.drawn, performance.now() - began]");
  std::cout << "report page: 60,160 spans: " << number_of(seen.at(1)) << " ms\n";
  CHECK(number_of(seen.at(0)) > 1'000);
  // Rows that are scrolled out of sight are not drawn.
  CHECK(number_of(seen.at(0)) < 64 * 940);
  CHECK_THAT(browser.text("#curve-loss-numbers summary"), Contains("Numbers"));
  CHECK(browser.complaints() == std::vector<std::string>());
}

TEST_CASE("report page: a live page follows the run, keeps what is zoomed, and tells the end", "[browser]") {
  const JobFolder job;
  // A run that stands after its first lines until the page has seen it.
  std::promise<pid_t> running;
  bool told = false;
  const auto run = std::async(std::launch::async, [&] {
    return run_program(job.path(), with_settings({"job.ini"}, {"train.steps=1000000", "train.log_every=1"}),
                       [&](pid_t process, std::string_view out) {
                         if (out.find("step 20/") != std::string_view::npos && !std::exchange(told, true)) {
                           ::kill(process, SIGSTOP);
                           running.set_value(process);
                         }
                       });
  });
  const pid_t process = running.get_future().get();
  std::promise<std::pair<pid_t, std::string>> serving;
  bool has_address = false;
  const auto report = std::async(std::launch::async, [&] {
    return run_program(job.path(), {"report", "run", "--live"}, [&](pid_t server, std::string_view out) {
      const std::size_t at = out.find("http://");
      if (at != std::string_view::npos && out.back() == '\n' && !std::exchange(has_address, true)) {
        serving.set_value({server, std::string(out.substr(at, out.find(' ', at) - at))});
      }
    });
  });
  struct Stopped {
    pid_t process;
    ~Stopped() { ::kill(process, SIGKILL); }
  };
  const Stopped run_ends{process};
  const auto [server, address] = serving.get_future().get();
  const Stopped server_ends{server};
  const Browser browser;
  browser.open(address);
  browser.await("document.getElementById('live').textContent === 'Live'");
  CHECK(browser.text(".badge") == "▶ running");
  CHECK_THAT(browser.text("#overview"), Contains(" of 1,000,000") && Contains(" of steps left"));
  static_cast<void>(browser.run("document.getElementById('curve-loss').focus()"));
  browser.press("+");
  static_cast<void>(
      browser.run("window.zoomed = JSON.stringify(View.of('curves step').range);"
                  "window.before = shown_document.runs[0].steps.step.length;"
                  "window.sections = new Map([...document.querySelectorAll('section')].map(each => [each.id, each]))"));

  ::kill(process, SIGCONT);
  browser.await("shown_document.runs[0].steps.step.length > window.before");
  CHECK(browser.run("return JSON.stringify(View.of('curves step').range) === window.zoomed").as_bool());
  CHECK(browser.run("return document.activeElement.id") == "curve-loss");
  // Only what has changed is made anew.
  CHECK(browser.run("return ['job', 'mesh', 'memory', 'curves'].map(id => "
                    "window.sections.get(id) === document.getElementById(id))") ==
        json::value(json::array{true, true, true, false}));
  ::kill(process, SIGTERM);
  browser.await("document.getElementById('live').textContent === 'The run has ended.'");
  CHECK(browser.text(".badge") == "■ stopped");
  CHECK(browser.complaints() == std::vector<std::string>());
  for (const std::string& asked : browser.requests()) {
    CHECK(asked == address + "document.json");
  }
}
