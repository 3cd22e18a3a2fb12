#include <future>
#include <thread>
#include <vector>

#include "core/launch/rank.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/unit/launch/attacks.h"
#include "tests/unit/launch/store.h"

using namespace shardrun::launch;
using shardrun::test::error_of;
using shardrun::test::Store;

namespace {

Rank::Deadline in(int milliseconds) { return Rank::Clock::now() + std::chrono::milliseconds(milliseconds); }

constexpr int a_minute = 60000;

}  // namespace

TEST_CASE("get() waits for a key that is set later, by any thread", "[launch]") {
  Store store(2);
  Rank reader(store.context(0), Store::job, in(a_minute));
  Rank writer(store.context(1), Store::job, in(a_minute));
  std::vector<std::future<std::string>> values;
  for (int i = 0; i < 8; ++i) {
    values.push_back(
        std::async(std::launch::async, [&reader, i] { return reader.get("key/" + std::to_string(i), in(a_minute)); }));
  }
  for (int i = 7; i >= 0; --i) {
    writer.set("key/" + std::to_string(i), std::string_view("\0value", 6));
  }
  for (std::future<std::string>& value : values) {
    CHECK(value.get() == std::string("\0value", 6));
  }
  const std::string large(1000000, 'x');
  writer.set("large", large);
  CHECK(reader.get("large", in(a_minute)) == large);
  writer.set("empty", std::string_view());
  CHECK(reader.get("empty", in(a_minute)).empty());
}

TEST_CASE("an answer that arrives after its wait has ended serves the next wait", "[launch]") {
  Store store(1);
  Rank rank(store.context(0), Store::job, in(a_minute));
  rank.set("far", "away");
  std::string found;
  const Rank::Deadline latest = in(a_minute);
  while (found.empty() && Rank::Clock::now() < latest) {
    try {
      found = rank.get("far", in(0));  // shorter than any way to the store
    } catch (const shardrun::Error& error) {
      REQUIRE(error.code() == shardrun::ErrorCode::timeout);
      std::this_thread::yield();
    }
  }
  CHECK(found == "away");
  // Many waits for keys that nobody sets do not keep a rank from being answered.
  for (int i = 0; i < 200; ++i) {
    CHECK_THROWS(rank.get("never/" + std::to_string(i), in(0)));
  }
  rank.set("never/0", "late");
  CHECK(rank.get("never/0", in(a_minute)) == "late");
  CHECK(rank.get("far", in(a_minute)) == "away");
}

TEST_CASE("a rank finds the address of its job among several", "[launch]") {
  Store store(1);
  RankContext context = store.context(0);
  context.address = "127.0.0.9,::1," + context.address;
  Rank rank(context, Store::job, in(30'000));
  rank.set("a", "1");
  CHECK(rank.get("a", in(30'000)) == "1");
}

TEST_CASE("get() names the missing key when its deadline passes, and works afterwards", "[launch]") {
  Store store(1);
  Rank rank(store.context(0), Store::job, in(a_minute));
  CHECK(error_of([&] { (void)rank.get("missing", in(20)); }).find("for the key 'missing', which no rank has set") !=
        std::string::npos);
  try {
    (void)rank.get("missing", in(20));
  } catch (const shardrun::Error& error) {
    CHECK(error.code() == shardrun::ErrorCode::timeout);
  }
  rank.set("missing", "here");
  CHECK(rank.get("missing", in(a_minute)) == "here");
}

TEST_CASE("a value larger than a frame is refused by set()", "[launch]") {
  Store store(1);
  Rank rank(store.context(0), Store::job, in(a_minute));
  CHECK(error_of([&] { rank.set("key", std::string(1 << 20, 'x')); }).find("at most 1048576") != std::string::npos);
  rank.set("key", "short");
  CHECK(rank.get("key", in(a_minute)) == "short");
}

TEST_CASE("a store refuses a process with another token or another job", "[launch]") {
  Store store(2);
  RankContext stranger = store.context(0);
  stranger.token[0] ^= 1U;
  CHECK(error_of([&] { Rank(stranger, Store::job, in(300)); }).find("could not join its job") != std::string::npos);
  CHECK(error_of([&] { Rank(store.context(0), "[job]\nranks = 3\n", in(a_minute)); })
            .ends_with("came with another job: have the job file or a plugin changed while the job was starting?; the "
                       "first difference is [job] ranks = 3 here, 2 there"));
  const Rank rank(store.context(0), Store::job, in(a_minute));
  CHECK(error_of([&] { Rank(store.context(0), Store::job, in(a_minute)); }) ==
        "1: the launcher refused this process: rank 0 is taken");
}

TEST_CASE("silent connections keep no rank out", "[launch]") {
  Store store(2, {.hello_timeout = std::chrono::hours(1), .max_strangers = 8});
  std::vector<shardrun::files::FileDescriptor> silent;
  for (int i = 0; i < 100; ++i) {
    silent.push_back(shardrun::test::connect_to(store.context(0)));
  }
  Rank writer(store.context(0), Store::job, in(a_minute));
  for (int i = 0; i < 100; ++i) {
    silent.push_back(shardrun::test::connect_to(store.context(0)));
  }
  const Rank late(store.context(1), Store::job, in(a_minute));
  writer.set("key", "value");
  CHECK(writer.get("key", in(a_minute)) == "value");
}

TEST_CASE("an abort ends waits and later calls, and calls the callback once", "[launch]") {
  Store store(2);
  Rank rank(store.context(0), Store::job, in(a_minute));
  int calls = 0;
  std::promise<std::string> reason;
  rank.on_abort([&](const std::string& why) {
    ++calls;
    reason.set_value(why);
  });
  CHECK_FALSE(rank.aborted());
  std::future<std::string> waiting =
      std::async(std::launch::async, [&] { return error_of([&] { (void)rank.get("never", in(a_minute)); }); });
  store.abort("rank 1 is gone");
  CHECK(reason.get_future().get() == "rank 1 is gone");
  CHECK(waiting.get() == "1: rank 0 could not wait for the key 'never': the job is aborted: rank 1 is gone");
  CHECK(rank.aborted());
  CHECK(rank.abort_reason() == "rank 1 is gone");
  CHECK(error_of([&] { rank.set("key", "value"); }).find("the job is aborted: rank 1 is gone") != std::string::npos);
  std::string late;
  rank.on_abort([&](const std::string& why) { late = why; });
  CHECK(late == "rank 1 is gone");
  CHECK(calls == 1);
  Rank latecomer(store.context(1), Store::job, in(a_minute));
  CHECK(error_of([&] { (void)latecomer.get("never", in(a_minute)); }).find("the job is aborted") != std::string::npos);
}

TEST_CASE("losing the launcher aborts the rank", "[launch]") {
  Store store(1);
  Rank rank(store.context(0), Store::job, in(a_minute));
  std::promise<std::string> reason;
  rank.on_abort([&](const std::string& why) { reason.set_value(why); });
  store.end();
  CHECK(reason.get_future().get().starts_with("the connection to the launcher is lost: "));
  CHECK(rank.aborted());
  CHECK(error_of([&] { rank.goodbye(in(a_minute)); }).find("could not say goodbye") != std::string::npos);
}

TEST_CASE("after its goodbye a rank is not aborted any more", "[launch]") {
  Store store(1);
  Rank rank(store.context(0), Store::job, in(a_minute));
  rank.goodbye(in(a_minute));
  store.end();
  CHECK_FALSE(rank.aborted());
}

TEST_CASE("a rank waits for a missing launcher only until its deadline", "[launch]") {
  RankContext context;
  {
    const Store store(1);
    context = store.context(0);
  }
  CHECK(error_of([&] { Rank(context, Store::job, in(100)); }).find("could not join its job at 127.0.0.1 port") !=
        std::string::npos);
}
