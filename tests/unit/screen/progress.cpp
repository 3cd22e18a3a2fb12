#include "core/screen/progress.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "core/files/descriptor.h"
#include "tests/support/catch.h"

using namespace shardrun::screen;

namespace {

/// A screen and a clock that the test controls.
struct FakeScreen {
  std::vector<std::string> writes;
  SteadyTime now;
  std::size_t columns = 100;

  ProgressSink sink(bool is_terminal) {
    return {[this](std::string_view text) { writes.emplace_back(text); }, is_terminal, [this] { return columns; },
            [this] { return now; }};
  }
  void pass(std::int64_t milliseconds) { now += std::chrono::milliseconds(milliseconds); }
  [[nodiscard]] std::string all() const {
    std::string text;
    for (const std::string& write : writes) {
      text += write;
    }
    return text;
  }
};

ProgressUpdate at(std::int64_t step) { return {.step = step, .loss = 2.5, .val_loss = {}, .rate = 12345}; }

}  // namespace

TEST_CASE("a terminal shows one line that is rewritten", "[screen]") {
  FakeScreen screen;
  Progress progress(screen.sink(true), 200, 0);

  progress.update(at(1));
  screen.pass(1000);
  progress.update({.step = 11, .loss = 2.25, .val_loss = 2.375, .rate = 999});
  screen.pass(1000);
  progress.update(at(200));
  progress.finish();

  CHECK(screen.writes == std::vector<std::string>{
                             "\rstep 1/200 0%  loss 2.5000  12.3k tok/s",
                             "\rstep 11/200 5%  loss 2.2500  val 2.3750  ETA 19s  999 tok/s",
                             "\rstep 200/200 100%  loss 2.5000  val 2.3750 (step 11)  12.3k tok/s",
                             "\rstep 200/200 100%  loss 2.5000  val 2.3750 (step 11)  took 2.0s  2.58k tok/s",
                             "\n",
                         });
}

TEST_CASE("a terminal is written to ten times a second at most", "[screen]") {
  FakeScreen screen;
  Progress progress(screen.sink(true), 1000, 0);

  for (std::int64_t step = 1; step <= 1000; ++step) {
    progress.update(at(step));
    screen.pass(1);
  }

  CHECK(screen.writes.size() == 10);
}

TEST_CASE("a line never reaches the terminal's last column", "[screen]") {
  for (std::size_t columns = 0; columns < 90; ++columns) {
    FakeScreen screen;
    screen.columns = columns;
    Progress progress(screen.sink(true), 200, 0);
    progress.update({.step = 1, .loss = 2.5, .val_loss = 2.5, .rate = 12345});
    screen.pass(1000);
    progress.update({.step = 100, .loss = 2.5, .val_loss = 2.5, .rate = 12345});

    for (const std::string& write : screen.writes) {
      INFO(columns << ": " << write);
      CHECK(write.size() - 1 <= std::max<std::size_t>(columns, 2) - 1);
    }
  }
}

TEST_CASE("a line that is too long loses its end", "[screen]") {
  FakeScreen screen;
  screen.columns = 30;
  Progress progress(screen.sink(true), 200, 0);

  progress.update(at(1));

  CHECK(screen.all() == "\rstep 1/200 0%  loss 2.5000");
}

TEST_CASE("padding does not wrap a line on a terminal that shrank", "[screen]") {
  FakeScreen screen;
  Progress progress(screen.sink(true), 200, 0);
  progress.update(at(1));
  screen.columns = 20;
  screen.pass(200);

  progress.update(at(2));

  CHECK(screen.writes.back() == "\rstep 2/200 1%      ");
}

TEST_CASE("a line's rate covers the steps since the line before, and the last line's covers all", "[screen]") {
  FakeScreen screen;
  Progress progress(screen.sink(false), 4, 2);
  progress.update({.step = 1, .loss = {}, .val_loss = {}, .rate = 100});
  progress.update({.step = 2, .loss = {}, .val_loss = {}, .rate = 300});
  progress.update({.step = 3, .loss = {}, .val_loss = {}, .rate = 100});
  progress.update({.step = 4, .loss = {}, .val_loss = {}, .rate = 300});
  progress.finish();

  REQUIRE(screen.writes.size() == 3);
  CHECK_THAT(screen.writes[0], Catch::EndsWith("  100 tok/s\n"));
  CHECK_THAT(screen.writes[1], Catch::EndsWith("  300 tok/s\n"));
  CHECK_THAT(screen.writes[2], Catch::EndsWith("  150 tok/s\n"));
}

TEST_CASE("a printed line goes above the live line", "[screen]") {
  FakeScreen screen;
  screen.columns = 30;
  Progress progress(screen.sink(true), 200, 0);
  progress.print("before");
  progress.update(at(1));

  progress.print("checkpoint written");

  CHECK(screen.all() ==
        "before\n\rstep 1/200 0%  loss 2.5000\r                          \rcheckpoint written\n"
        "\rstep 1/200 0%  loss 2.5000");
}

TEST_CASE("off a terminal the first step, every tenth of all and the last have a line", "[screen]") {
  FakeScreen screen;
  Progress progress(screen.sink(false), 20, 0);

  for (std::int64_t step = 1; step <= 20; ++step) {
    progress.update(at(step));
    screen.pass(100);
  }
  progress.finish();

  REQUIRE(screen.writes.size() == 11);
  CHECK(screen.writes[0] == "step 1/20 5%  loss 2.5000  12.3k tok/s\n");
  CHECK(screen.writes[1] == "step 2/20 10%  loss 2.5000  ETA 1.8s  12.3k tok/s\n");
  CHECK(screen.writes[9] == "step 18/20 90%  loss 2.5000  ETA 0.20s  12.3k tok/s\n");
  CHECK(screen.writes[10] == "step 20/20 100%  loss 2.5000  took 2.0s  12.3k tok/s\n");
  CHECK(screen.all().find('\r') == std::string::npos);
}

TEST_CASE("off a terminal a slow run has a line every ten seconds", "[screen]") {
  FakeScreen screen;
  Progress progress(screen.sink(false), 1000000, 0);

  for (std::int64_t step = 1; step <= 21; ++step) {
    progress.update(at(step));
    screen.pass(1000);
  }

  CHECK(screen.writes.size() == 3);
}

TEST_CASE("log_every and validations add lines", "[screen]") {
  FakeScreen screen;
  Progress progress(screen.sink(false), 100, 7);

  for (std::int64_t step = 1; step <= 15; ++step) {
    progress.update({.step = step, .loss = 1, .val_loss = step == 10 ? std::optional(1.5) : std::nullopt, .rate = 1});
    screen.pass(60'000);
  }

  REQUIRE(screen.writes.size() == 4);
  CHECK(screen.writes[1].find("step 7/100") == 0);
  CHECK(screen.writes[2].find("step 10/100 10%  loss 1.0000  val 1.5000") == 0);
  CHECK(screen.writes[3].find("step 14/100") == 0);
}

TEST_CASE("a run without steps shows nothing, and a run without an end shows no percentage", "[screen]") {
  FakeScreen screen;
  Progress(screen.sink(true), 10, 0).finish();
  CHECK(screen.writes.empty());

  Progress endless(screen.sink(false), 0, 0, "samples");
  endless.update({.step = 5, .loss = 123456, .val_loss = {}, .rate = std::numeric_limits<double>::infinity()});
  CHECK(screen.all() == "step 5  loss 1.235e+05  - samples/s\n");
}

TEST_CASE("a descriptor that is not a terminal, or a dumb one, gets plain lines", "[screen]") {
  std::array<int, 2> ends{};
  REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
  const shardrun::files::FileDescriptor read_end(ends[0]);
  const shardrun::files::FileDescriptor write_end(ends[1]);
  const ProgressSink sink = descriptor_sink(write_end.get(), "xterm");

  sink.write("text");

  std::array<char, 8> read{};
  CHECK_FALSE(sink.is_terminal);
  CHECK(::read(read_end.get(), read.data(), read.size()) == 4);
  CHECK(std::string(read.data()) == "text");
  CHECK(sink.width() == 80);
}

TEST_CASE("a pseudo-terminal counts as one unless TERM says otherwise", "[screen]") {
  const shardrun::files::FileDescriptor terminal(::open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!terminal.is_open()) {
    WARN("no pseudo-terminals here");
    return;
  }
  CHECK(descriptor_sink(terminal.get(), "xterm").is_terminal);
  CHECK_FALSE(descriptor_sink(terminal.get(), "dumb").is_terminal);
  CHECK_FALSE(descriptor_sink(terminal.get(), nullptr).is_terminal);
}

TEST_CASE("a screen that cannot be written is not an error", "[screen]") {
  const shardrun::files::FileDescriptor full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  CHECK_NOTHROW(descriptor_sink(full.get(), nullptr).write("text"));
}

TEST_CASE("a task without a loss shows none", "[screen]") {
  FakeScreen screen;
  Progress heat(screen.sink(false), 10, 0, "it");
  heat.update({.step = 1, .loss = {}, .val_loss = {}, .rate = 250});
  CHECK(screen.all() == "step 1/10 10%  250 it/s\n");
}

TEST_CASE("a validation is shown only in the line of its step", "[screen]") {
  FakeScreen screen;
  Progress progress(screen.sink(false), 4, 1);
  for (std::int64_t step = 1; step <= 4; ++step) {
    progress.update({.step = step, .loss = 2, .val_loss = step == 2 ? std::optional(1.5) : std::nullopt, .rate = 1});
  }
  progress.finish();
  REQUIRE(screen.writes.size() == 4);
  for (std::size_t line = 0; line < 4; ++line) {
    INFO(screen.writes[line]);
    CHECK((screen.writes[line].find("val 1.5000") != std::string::npos) == (line == 1));
  }
}

TEST_CASE("a terminal shows the activity before the first step at once, with its duration", "[screen]") {
  FakeScreen screen;
  Progress progress(screen.sink(true), 10, 0);

  progress.now_at("compiling");
  screen.pass(999);
  progress.tick();
  screen.pass(1501);
  progress.tick();
  progress.now_at("first step");
  progress.print("a line");
  progress.update({.step = 1, .loss = {}, .val_loss = {}, .rate = 1});

  CHECK(screen.all() ==
        "\rcompiling\rcompiling, 2s\rfirst step   \r          \ra line\n\rfirst step\rstep 1/10 10%  1 tok/s");
}

TEST_CASE("a long validation shows its progress, and a short one does not", "[screen]") {
  FakeScreen screen;
  Progress progress(screen.sink(true), 10, 0);
  progress.update(at(1));
  for (std::int64_t batch = 1; batch <= 30; ++batch) {
    progress.now_at("validating batch", batch, 30);
    screen.pass(batch < 10 ? 100 : 50);
  }
  REQUIRE(screen.writes.size() == 11);
  CHECK_THAT(screen.writes[1], Catch::StartsWith("\rstep 1/10 10%  validating batch 12/30, 1s  loss 2.5000"));
  CHECK_THAT(screen.writes[10], Catch::StartsWith("\rstep 1/10 10%  validating batch 30/30, 1s  loss 2.5000"));
}

TEST_CASE("off a terminal a long activity has a line after 10, 20 and 40 seconds", "[screen]") {
  FakeScreen screen;
  Progress progress(screen.sink(false), 10, 0);
  progress.now_at("reading data");
  screen.pass(5000);
  progress.tick();
  progress.now_at("compiling");
  for (int second = 0; second < 79; ++second) {
    screen.pass(1000);
    progress.tick();
  }
  CHECK(screen.writes == std::vector<std::string>{"compiling, 10s\n", "compiling, 20s\n", "compiling, 40s\n"});
}

TEST_CASE("a step that takes longer than those before is shown while it runs", "[screen]") {
  FakeScreen terminal;
  Progress live(terminal.sink(true), 10, 0);
  live.update(at(1));
  FakeScreen pipe;
  Progress plain(pipe.sink(false), 10, 1);
  plain.update(at(1));
  pipe.pass(15'000);
  plain.update(at(2));
  for (int second = 0; second < 35; ++second) {
    terminal.pass(1000);
    live.tick();
    pipe.pass(1000);
    plain.tick();
  }
  CHECK(terminal.writes.size() == 34);
  CHECK(terminal.writes[1] == "\rstep 1/10 10%  loss 2.5000  12.3k tok/s  step 2, 3s");
  REQUIRE(pipe.writes.size() == 3);
  CHECK_THAT(pipe.writes[2], Catch::EndsWith("  step 3, 30s\n"));
}

TEST_CASE("time in which the process was stopped does not change the estimate", "[screen]") {
  FakeScreen screen;
  Progress progress(screen.sink(false), 100, 1);
  const auto step = [&](std::int64_t number) {
    screen.pass(1000);
    progress.tick();
    progress.update(at(number));
  };
  for (std::int64_t number = 1; number <= 10; ++number) {
    step(number);
  }
  CHECK_THAT(screen.writes.back(), Catch::Contains("ETA 1m30s"));

  screen.pass(3'600'000);
  step(11);

  CHECK_THAT(screen.writes.back(), Catch::Contains("ETA 1m29s"));
}

TEST_CASE("a stop that ends within a step, before a tick notices it, does not change the estimate", "[screen]") {
  FakeScreen screen;
  Progress progress(screen.sink(false), 100, 1);
  progress.update(at(1));
  progress.tick();
  screen.pass(1000);
  progress.tick();
  screen.pass(3'600'000);
  progress.update(at(2));
  progress.tick();
  screen.pass(1000);
  progress.tick();
  progress.update(at(3));
  CHECK_THAT(screen.writes.back(), Catch::Contains("step 3/100 3%  loss 2.5000  ETA 2m26s"));

  for (int second = 0; second < 12; ++second) {
    screen.pass(1000);
    progress.tick();
  }
  CHECK_THAT(screen.writes.back(), Catch::EndsWith("  step 4, 10s\n"));
}

TEST_CASE("without ticks a long gap counts as a long step", "[screen]") {
  FakeScreen screen;
  Progress progress(screen.sink(false), 100, 1);
  progress.update(at(1));
  screen.pass(3'600'000);
  progress.update(at(2));
  CHECK_THAT(screen.writes.back(), Catch::Contains("ETA 4d02h"));
}

TEST_CASE("after ticks have ended, every long gap counts as a long step", "[screen]") {
  FakeScreen screen;
  Progress progress(screen.sink(false), 100, 1);
  progress.tick();
  screen.pass(1000);
  progress.tick();
  for (std::int64_t number = 1; number <= 10; ++number) {
    screen.pass(10'000);
    progress.update(at(number));
  }
  CHECK_THAT(screen.writes.back(), Catch::Contains("ETA 15m00s"));
}

TEST_CASE("text of others stands below the live line, not behind it", "[screen]") {
  FakeScreen screen;
  {
    Progress progress(screen.sink(true), 10, 0);
    progress.update(at(1));
    progress.leave();
    progress.leave();
  }
  CHECK(screen.all() == "\rstep 1/10 10%  loss 2.5000  12.3k tok/s\n");

  FakeScreen early;
  { Progress(early.sink(true), 10, 0).now_at("compiling"); }
  CHECK(early.all() == "\rcompiling\r         \r");

  FakeScreen plain;
  {
    Progress progress(plain.sink(false), 10, 0);
    progress.update(at(1));
  }
  CHECK(plain.all() == "step 1/10 10%  loss 2.5000  12.3k tok/s\n");
}

TEST_CASE("nothing is drawn into text of others until there is something new", "[screen]") {
  FakeScreen screen;
  Progress progress(screen.sink(true), 10, 0);
  const auto tick_for_a_while = [&] {
    for (int second = 0; second < 10; ++second) {
      screen.pass(1000);
      progress.tick();
    }
  };
  progress.now_at("sampling token", 7, 20);
  progress.leave();
  const std::size_t before_steps = screen.writes.size();
  tick_for_a_while();
  CHECK(screen.writes.size() == before_steps);

  progress.update(at(1));
  CHECK(screen.writes.size() == before_steps + 1);
  progress.leave();
  const std::size_t after_step = screen.writes.size();
  tick_for_a_while();
  CHECK(screen.writes.size() == after_step);

  progress.now_at("validating batch", 1, 3);
  tick_for_a_while();
  CHECK(screen.writes.size() == after_step + 10);
}

TEST_CASE("an activity after the last step is shown below it and then erased", "[screen]") {
  FakeScreen screen;
  Progress progress(screen.sink(true), 1, 0);
  progress.update({.step = 1, .loss = {}, .val_loss = {}, .rate = 1});
  progress.finish();
  const std::size_t before = screen.all().size();
  progress.now_at("sampling token", 1, 20);
  screen.pass(1200);
  progress.now_at("sampling token", 7, 20);
  progress.leave();
  CHECK(screen.all().substr(before) == "\rsampling token 7/20, 1s\r                       \r");
}

TEST_CASE("an activity whose total is not known shows what is done", "[screen]") {
  FakeScreen screen;
  Progress progress(screen.sink(true), 0, 0);
  progress.now_at("reading token", 1);
  screen.pass(1200);
  progress.now_at("reading token", 700);
  CHECK(screen.all().ends_with("reading token 700, 1s"));
}

TEST_CASE("a ticker's destructor waits for the running call", "[screen]") {
  std::atomic<bool> is_under_way = false;
  std::atomic<bool> is_ending = false;
  std::atomic<bool> has_returned = false;
  auto ticker = std::make_unique<Ticker>(std::chrono::milliseconds(1), [&] {
    is_under_way = true;
    while (!is_ending) {
      std::this_thread::yield();
    }
    has_returned = true;
  });
  while (!is_under_way) {
    std::this_thread::yield();
  }
  is_ending = true;
  ticker.reset();
  CHECK(has_returned);
}
