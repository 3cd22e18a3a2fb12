// Copies of the device `cuda` over a fake of CUDA.

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "core/device/hash.h"
#include "tests/support/allocations.h"
#include "tests/unit/device/on_gpu.h"

using namespace shardrun;
using namespace shardrun::device;
using test::OnGpu;
using test::fake_cuda::Settings;

namespace {

/// Whether floats that are not pinned are copied to the GPU only when the queue reaches the copy, and read back.
bool are_copied(const Settings& settings, std::size_t count) {
  std::vector<float> others(count);
  std::vector<float> given(count);
  std::vector<float> found(count);
  std::iota(others.begin(), others.end(), 3.0F);
  OnGpu at(settings, 2 * count * sizeof(float));  // destroyed before the vectors, so that its streams end first
  std::byte* const of_others = at.memory->data() + count * sizeof(float);
  {
    const auto pinned = at.device.pin(std::as_writable_bytes(std::span(others)));
    at.queue->write(std::as_bytes(std::span(others)), of_others);
    at.queue->finish();
  }
  at.queue->call(
      [](void* of) {
        auto& numbers = *static_cast<std::vector<float>*>(of);
        std::iota(numbers.begin(), numbers.end(), 1.0F);
      },
      &given);
  at.queue->write(std::as_bytes(std::span(given)), at.memory->data());
  at.queue->read(of_others, std::as_writable_bytes(std::span(found)));
  at.queue->finish();
  const bool are_read = found == others;
  test::fake_cuda::forget(0);
  at.queue->read(at.memory->data(), std::as_writable_bytes(std::span(found)));
  at.queue->finish();
  std::iota(given.begin(), given.end(), 1.0F);
  return are_read && found == given;
}

constexpr std::size_t floats_of_buffer = std::size_t{1} << 20U;

}  // namespace

TEST_CASE("cuda: host memory that is not pinned is copied in pieces, when the queue reaches the copy",
          "[device][cuda]") {
#if defined(SHARDRUN_TSAN)  // takes seconds for a copy
  constexpr std::uint64_t seeds = 1;
  constexpr std::size_t counts[] = {2 * floats_of_buffer + 3};
#else
  constexpr std::uint64_t seeds = 3;
  constexpr std::size_t counts[] = {floats_of_buffer, floats_of_buffer + 1, 3 * floats_of_buffer + 3};
#endif
  for (const std::size_t count : counts) {
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      CAPTURE(count, seed);
      CHECK(are_copied({.seed = seed}, count));
    }
  }
}

#if !defined(SHARDRUN_TSAN)
TEST_CASE("cuda: leaving out any wait between pieces of a host copy gives wrong numbers", "[device][cuda]") {
  // Three pieces to the GPU and three back, each with two waits, and one wait after all. The waits that are left out
  // here only repeat what these ensure.
  for (const std::int64_t wait : {1, 2, 5, 9, 12, 14}) {
    bool is_right = true;
    for (std::uint64_t seed = 1; seed <= 30 && is_right; ++seed) {
      is_right = are_copied({.seed = seed, .forget = wait}, 2 * floats_of_buffer + 3);
    }
    CAPTURE(wait);
    CHECK_FALSE(is_right);
  }
}
#endif

TEST_CASE("cuda: pinned memory is read and written directly", "[device][cuda]") {
  OnGpu at;
  std::vector<float> room(64, 3);
  {
    const auto pinned = at.device.pin(std::as_writable_bytes(std::span(room)));
    CHECK(at.device.is_pinned(&room[8], 32));
    CHECK_FALSE(at.device.is_pinned(&room[60], 32));
    at.queue->write(std::as_bytes(std::span(room).first(8)), at.memory->data());
    at.queue->read(at.memory->data(), std::as_writable_bytes(std::span(room).subspan(8, 8)));
    at.queue->fill(at.view(0, 8), 7);
    at.queue->read(at.memory->data(), std::as_writable_bytes(std::span(room).subspan(16, 8)));
    at.queue->finish();
  }
  CHECK_FALSE(at.device.is_pinned(room.data(), 4));
  CHECK(room[15] == 3);
  CHECK(room[23] == 7);
}

TEST_CASE("cuda: boxes of every rank, stride and alignment are copied", "[device][cuda]") {
  struct Case {
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> from;
    std::vector<std::int64_t> to;
    std::int64_t offset;
    std::size_t element_bytes;
  };
  for (const Case& box :
       {Case{{3, 4, 8}, {64, 16, 1}, {32, 8, 1}, 0, 4}, Case{{3, 4, 8}, {64, 16, 1}, {32, 8, 1}, 3, 2},
        Case{{2, 3}, {1, 5}, {3, 1}, 1, 1}, Case{{}, {}, {}, 2, 8}, Case{{5, 1, 7}, {9, 2, 1}, {7, 7, 1}, 0, 4},
        Case{{0, 4}, {4, 1}, {4, 1}, 0, 4}, Case{{4, 6}, {6, 1}, {6, 1}, 0, 2},
        Case{{3, 300}, {301, 1}, {304, 1}, 1, 2}, Case{{2, 2, 515}, {1201, 577, 1}, {1031, 515, 1}, 3, 2}}) {
    OnGpu at;
    std::vector<std::byte> given(8192);
    for (std::size_t i = 0; i < given.size(); ++i) {
      given[i] = static_cast<std::byte>(i * 7 + i / 256);
    }
    std::vector<std::byte> expected(8192, std::byte{1});
    std::vector<std::byte> found(8192);
    const auto offset = static_cast<std::size_t>(box.offset) * box.element_bytes;
    const std::function<void(std::size_t, std::int64_t, std::int64_t)> copy = [&](std::size_t d, std::int64_t from,
                                                                                  std::int64_t to) {
      if (d == box.shape.size()) {
        std::copy_n(
            given.begin() + from * static_cast<std::int64_t>(box.element_bytes) + static_cast<std::int64_t>(offset),
            box.element_bytes,
            expected.begin() + to * static_cast<std::int64_t>(box.element_bytes) + static_cast<std::int64_t>(offset));
        return;
      }
      for (std::int64_t i = 0; i < box.shape[d]; ++i) {
        copy(d + 1, from + i * box.from[d], to + i * box.to[d]);
      }
    };
    copy(0, 0, 0);
    const std::vector<std::byte> ones(8192, std::byte{1});
    std::byte* const to = at.memory->data() + 8192;
    at.queue->write(given, at.memory->data());
    at.queue->write(ones, to);
    at.queue->finish();
    at.queue->copy({.from = at.memory->data() + offset,
                    .to = to + offset,
                    .element_bytes = box.element_bytes,
                    .shape = box.shape,
                    .from_strides = box.from,
                    .to_strides = box.to});
    at.queue->read(to, found);
    at.queue->finish();
    CHECK((found == expected));
  }
}

TEST_CASE("cuda: hashes of tensors equal the cpu's", "[device][cuda]") {
  OnGpu at({}, 20 << 20);
  std::vector<float> numbers(5'000'000);
  std::iota(numbers.begin(), numbers.end(), 1.0F);
  at.queue->write(std::as_bytes(std::span(numbers)), at.memory->data());
  std::vector<TensorView> on_gpu;
  std::vector<TensorView> on_host;
  // More than is read at once, in tensors that begin anywhere.
  for (const auto& [first, count] :
       {std::pair(3, 900'001), std::pair(0, 0), std::pair(0, 3), std::pair(7, 4'900'000)}) {
    on_gpu.push_back(at.view(first, count));
    on_host.push_back(on_gpu.back());
    on_host.back().data = numbers.data() + first;
  }
  TensorHashes hashes(on_gpu);
  for (int time = 0; time < 2; ++time) {
    const std::uint64_t before = test::allocations();
    const std::span<const std::uint64_t> found = hashes.compute(*at.queue, at.threads);
    CHECK((test::allocations() == before) == (time > 0));
    TensorHashes expected(on_host);
    CHECK(std::ranges::equal(found, expected.compute(*Device::find("cpu").open_queue(at.threads), at.threads)));
  }
}
