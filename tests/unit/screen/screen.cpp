#include "core/screen/screen.h"

#include <algorithm>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/screen/progress.h"
#include "tests/support/catch.h"

using namespace shardrun::screen;
using namespace std::chrono_literals;

namespace {

/// A screen that accepts nothing before `release`, like a terminal after Ctrl-S.
struct StoppedWriter {
  std::promise<void> release;
  std::shared_ptr<std::promise<std::string>> all = std::make_shared<std::promise<std::string>>();

  std::function<void(std::string_view)> writer() {
    return [released = release.get_future().share(), text = std::make_shared<std::string>(),
            all = all](std::string_view piece) {
      released.wait();
      *text += piece;
      if (text->ends_with("the end")) {
        all->set_value(*text);
      }
    };
  }
};

}  // namespace

TEST_CASE("a blocked screen delays nobody, and shows everything once it is unblocked", "[screen]") {
  StoppedWriter stopped;
  Screen screen(stopped.writer());
  std::string expected;
  for (int line = 0; line < 1000; ++line) {
    const std::string text = "line " + std::to_string(line) + "\n";
    screen.write(text);
    expected += text;
  }
  screen.write("the end");
  CHECK(screen.waiting_bytes() == expected.size() + 7);

  stopped.release.set_value();
  CHECK(screen.finish({}, 60s));

  CHECK(stopped.all->get_future().get() == expected + "the end");
  CHECK(screen.waiting_bytes() == 0);
}

TEST_CASE("a screen can be asked how much waits while it writes", "[screen]") {
  std::size_t taken = 0;
  Screen screen([&](std::string_view piece) { taken += piece.size(); });
  std::size_t waiting = 1'000'000;
  screen.write(std::string(waiting, 'x'));
  bool grows = false;
  while (waiting > 0) {
    const std::size_t now = screen.waiting_bytes();
    grows = grows || now > waiting;
    waiting = now;
    std::this_thread::yield();
  }
  CHECK_FALSE(grows);
  CHECK(screen.finish({}, 60s));
  CHECK(taken == 1'000'000);
}

TEST_CASE("a screen that takes nothing is given up, and a slow one is waited for", "[screen]") {
  StoppedWriter stopped;
  Screen given_up(stopped.writer());
  given_up.write("the end");
  int asked = 0;
  CHECK_FALSE(given_up.finish([&] { return ++asked < 3; }, 1ms));
  CHECK(asked == 3);
  stopped.release.set_value();
  CHECK(stopped.all->get_future().get() == "the end");

  std::string taken;
  Screen slow([&](std::string_view piece) { taken += piece; });
  slow.write(std::string(1'000'000, 'x'));
  CHECK(slow.finish({}, 60s));
  CHECK(taken.size() == 1'000'000);
}

TEST_CASE("the thread of an abandoned screen does not use the screen", "[screen]") {
  StoppedWriter stopped;
  std::promise<void> ended;
  {
    std::shared_ptr<void> last(nullptr, [&](void*) { ended.set_value(); });
    Screen screen([writer = stopped.writer(), last = std::move(last)](std::string_view piece) { writer(piece); });
    screen.write("the end");
    CHECK_FALSE(screen.finish({}, 1ms));
  }
  stopped.release.set_value();
  CHECK(stopped.all->get_future().get() == "the end");
  CHECK(ended.get_future().wait_for(60s) == std::future_status::ready);
}

TEST_CASE("updates are dropped while the screen is behind, but lines and the end are not", "[screen]") {
  std::string shown;
  bool is_behind = false;
  Progress progress({.write = [&](std::string_view text) { shown += text; },
                     .width = [] { return std::size_t{80}; },
                     .now = [] { return SteadyTime(); },
                     .is_behind = [&] { return is_behind; }},
                    3, 1);
  progress.update({.step = 1});
  is_behind = true;
  progress.update({.step = 2});
  progress.print("a line");
  progress.update({.step = 3});
  progress.finish();

  CHECK(shown.find("step 1/3") != std::string::npos);
  CHECK(shown.find("step 2/3") == std::string::npos);
  CHECK(shown.find("a line\n") != std::string::npos);
  CHECK(shown.find("step 3/3") != std::string::npos);
}
