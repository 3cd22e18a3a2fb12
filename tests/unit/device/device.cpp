#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/device/device.h"
#include "core/device/threads.h"
#include "tests/support/catch.h"

using namespace shardrun;
using namespace shardrun::device;

namespace {

void weak(const KernelCall&) {}
void strong(const KernelCall&) {}

const RegisterKernel register_high("reference", "test_levels", {.run = strong}, 2);
const RegisterKernel register_low("reference", "test_levels", {.run = weak}, 1);

}  // namespace

TEST_CASE("devices are found by name and know the types that they store", "[device]") {
  CHECK(Device::find("cpu").stored(graph::DType::f32) == graph::DType::f32);
  CHECK(Device::find("cpu").stored(graph::DType::bf16) == graph::DType::bf16);
  CHECK(Device::find("reference").stored(graph::DType::f32) == graph::DType::f64);
  CHECK(Device::find("reference").stored(graph::DType::bf16) == graph::DType::f64);
  CHECK(Device::find("reference").stored(graph::DType::i32) == graph::DType::i32);
  try {
    static_cast<void>(Device::find("cpy"));
    FAIL("a device that does not exist was found");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::usage);
    CHECK(error.message() ==
          "no device is called 'cpy' (did you mean 'cpu'?); there are cpu, reference, unmapped, cuda");
  }
}

TEST_CASE("an op without a kernel is named", "[device]") {
  try {
    static_cast<void>(Device::find("cpu").kernel("transmogrify"));
    FAIL("a kernel that does not exist was found");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::internal);
    CHECK(error.message() == "device 'cpu' has no kernel for op 'transmogrify'");
  }
}

TEST_CASE("the kernel with the highest level is taken, in any order of registration", "[device]") {
  CHECK(Device::find("reference").kernel("test_levels").run == strong);
}

TEST_CASE("threads run every part once, and part 0 on the caller", "[device]") {
  for (const int count : {1, 2, 3, 5}) {
    Threads threads(count);
    CHECK(threads.count() == count);
    for (int parts = 0; parts <= 2 * count + 1; ++parts) {
      std::vector<int> runs(static_cast<std::size_t>(parts), 0);
      std::thread::id first;

      threads.run(parts, [&](int part) {
        ++runs[static_cast<std::size_t>(part)];
        if (part == 0) {
          first = std::this_thread::get_id();
        }
      });

      INFO(count << " threads, " << parts << " parts");
      CHECK(runs == std::vector<int>(static_cast<std::size_t>(parts), 1));
      CHECK((parts == 0 || first == std::this_thread::get_id()));
    }
  }
}

TEST_CASE("rotated parts run once, each on another thread", "[device]") {
  for (const int count : {1, 2, 3, 5}) {
    Threads threads(count);
    for (int parts = 0; parts <= 2 * count + 1; ++parts) {
      INFO(count << " threads, " << parts << " parts");
      std::vector<int> runs(static_cast<std::size_t>(parts), 0);
      const auto threads_of_parts = [&] {
        std::vector<std::thread::id> ids(static_cast<std::size_t>(parts));
        threads.run(parts, [&](int part) {
          ++runs[static_cast<std::size_t>(part)];
          ids[static_cast<std::size_t>(part)] = std::this_thread::get_id();
        });
        return ids;
      };
      const std::vector<std::thread::id> before = threads_of_parts();
      threads.rotate(1);
      const std::vector<std::thread::id> rotated = threads_of_parts();
      threads.rotate(0);

      CHECK(runs == std::vector<int>(static_cast<std::size_t>(parts), 2));
      for (std::size_t part = 0; part < before.size(); ++part) {
        CHECK((before[part] != rotated[part]) == (count > 1 && parts > 1));
      }
      CHECK(threads_of_parts() == before);
    }
  }
}

TEST_CASE("parts run at the same time", "[device]") {
  Threads threads(3);
  std::atomic<int> arrived = 0;

  // Ends only if all three are inside at once.
  threads.run(3, [&](int) {
    ++arrived;
    while (arrived.load() < 3) {
      std::this_thread::yield();
    }
  });

  CHECK(arrived.load() == 3);
}

TEST_CASE("ranges cover everything once and begin at multiples of the grain", "[device]") {
  for (const int count : {1, 2, 4}) {
    Threads threads(count);
    for (const std::int64_t size : {0, 1, 15, 16, 17, 64, 1000}) {
      for (const std::int64_t grain : {1, 16, 100}) {
        std::vector<int> visits(static_cast<std::size_t>(size), 0);
        std::atomic<int> ranges = 0;
        std::atomic<bool> aligned = true;

        threads.split(size, grain, [&](std::int64_t begin, std::int64_t end) {
          ++ranges;
          aligned = aligned && begin % grain == 0 && begin < end;
          for (std::int64_t i = begin; i < end; ++i) {
            ++visits[static_cast<std::size_t>(i)];
          }
        });

        INFO(count << " threads, size " << size << ", grain " << grain);
        CHECK(visits == std::vector<int>(static_cast<std::size_t>(size), 1));
        CHECK(aligned.load());
        CHECK(ranges.load() <= count);
      }
    }
  }
}

TEST_CASE("each run sees what the run before wrote", "[device]") {
  Threads threads(3);
  std::vector<std::int64_t> values(300, 0);
  for (int round = 0; round < 5000; ++round) {
    const int parts = 1 + round % 3;
    threads.run(parts, [&](int part) {
      for (std::size_t i = static_cast<std::size_t>(part); i < values.size(); i += static_cast<std::size_t>(parts)) {
        ++values[i];
      }
    });
  }
  CHECK(std::accumulate(values.begin(), values.end(), std::int64_t{0}) == 5000 * 300);
}

TEST_CASE("threads that never ran, and threads asleep, end with their owner", "[device]") {
  { const Threads unused(4); }
  for (int i = 0; i < 100; ++i) {
    Threads threads(2);
    threads.run(2, [](int) {});
  }
}
