#include "core/device/hash.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "core/device/queue.h"
#include "core/device/threads.h"
#include "tests/support/allocations.h"
#include "tests/support/catch.h"

using namespace shardrun::device;
using shardrun::graph::DType;

namespace {

TensorView view_of(std::vector<float>& values) {
  TensorView view{.data = values.data(), .dtype = DType::f32, .rank = 1};
  view.shape[0] = static_cast<std::int64_t>(values.size());
  return view;
}

std::vector<float> numbers(std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 1.0F);
  return values;
}

std::vector<std::uint64_t> hashes_of(const std::vector<TensorView>& tensors, int threads = 1) {
  Threads pool(threads);
  TensorHashes hashes(tensors);
  const std::span<const std::uint64_t> found = hashes.compute(*Device::find("cpu").open_queue(pool), pool);
  return {found.begin(), found.end()};
}

constexpr std::size_t several_blocks = 200'001;

}  // namespace

TEST_CASE("hashes of tensors are the same with any number of threads, and computed anew each time", "[device]") {
  std::vector<float> large = numbers(several_blocks);
  std::vector<float> small = numbers(3);
  std::vector<float> none;
  const std::vector<TensorView> tensors = {view_of(large), view_of(small), view_of(none), view_of(large)};

  const std::vector<std::uint64_t> expected = hashes_of(tensors);

  CHECK(expected[0] == expected[3]);
  CHECK(expected[0] != expected[1]);
  CHECK(expected[2] == 0);
  for (const int threads : {2, 3, 7}) {
    CHECK(hashes_of(tensors, threads) == expected);
  }
  Threads pool(2);
  TensorHashes hashes(tensors);
  for (int time = 0; time < 2; ++time) {
    const std::span<const std::uint64_t> found = hashes.compute(*Device::find("cpu").open_queue(pool), pool);
    CHECK(std::vector<std::uint64_t>(found.begin(), found.end()) == expected);
  }
}

TEST_CASE("a hash changes with every bit and every exchange", "[device]") {
  std::vector<float> values = numbers(several_blocks);
  const std::vector<std::uint64_t> before = hashes_of({view_of(values)});
  constexpr std::size_t block = 256 * 1024 / sizeof(float);
  for (const std::size_t at : {std::size_t{0}, std::size_t{77}, block - 1, block, values.size() - 1}) {
    for (const unsigned bit : {0U, 24U, 31U}) {
      INFO("bit " << bit << " of element " << at);
      const float kept = values[at];
      std::uint32_t bits = 0;
      std::memcpy(&bits, &kept, sizeof bits);
      bits ^= 1U << bit;
      std::memcpy(&values[at], &bits, sizeof bits);
      CHECK(hashes_of({view_of(values)}) != before);
      values[at] = kept;
    }
  }
  CHECK(hashes_of({view_of(values)}) == before);
  std::swap_ranges(values.begin(), values.begin() + block, values.begin() + block);
  CHECK(hashes_of({view_of(values)}) != before);
}

TEST_CASE("the weights of a hash are odd and differ, so that no two flipped bits cancel", "[device]") {
  constexpr std::uint64_t places = 1 << 16;
  const std::uint32_t one = 1;
  std::vector<std::uint64_t> weights;
  for (const std::uint64_t first : {std::uint64_t{0}, (std::uint64_t{1} << 31) - places}) {
    for (std::uint64_t place = first; place < first + places; ++place) {
      weights.push_back(hash_of(std::as_bytes(std::span(&one, 1)), place));
    }
  }
  CHECK(std::ranges::all_of(weights, [](std::uint64_t weight) { return weight % 2 == 1; }));
  std::ranges::sort(weights);
  CHECK(std::ranges::adjacent_find(weights) == weights.end());
}

TEST_CASE("the hash of bytes is the sum of the hashes of their parts, and zeros fill the last word", "[device]") {
  std::vector<float> values = numbers(1000);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
  for (const std::size_t words : {1U, 7U, 16U, 999U}) {
    CHECK(hash_of(bytes) == hash_of(bytes.first(4 * words)) + hash_of(bytes.subspan(4 * words), words));
  }
  values.back() = 0;
  CHECK(hash_of(bytes) == hash_of(bytes.first(4 * 999)));
  values[1] = 0.1F;  // no byte of it is 0
  for (const std::size_t count : {4U, 5U, 6U}) {
    CHECK(hash_of(bytes.first(count)) != hash_of(bytes.first(count + 1)));
  }
}

TEST_CASE("the hash of one tensor equals its hash among several", "[device]") {
  std::vector<float> large = numbers(several_blocks);
  std::vector<float> small = numbers(3);
  std::vector<float> none;
  const std::vector<TensorView> tensors = {view_of(large), view_of(none), view_of(small)};
  Threads pool(3);
  const std::unique_ptr<Queue> queue = Device::find("cpu").open_queue(pool);
  TensorHashes hashes(tensors);
  const std::span<const std::uint64_t> found = hashes.compute(*queue, pool);
  const std::vector<std::uint64_t> all(found.begin(), found.end());
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    CHECK(hashes.compute(*queue, pool, t) == all[t]);
  }
}

TEST_CASE("hashing allocates nothing", "[device]") {
  std::vector<float> values = numbers(several_blocks);
  Threads pool(2);
  const std::unique_ptr<Queue> queue = Device::find("cpu").open_queue(pool);
  TensorHashes hashes({view_of(values)});

  const std::uint64_t before = shardrun::test::allocations();
  const std::uint64_t hash = hashes.compute(*queue, pool)[0];
  const std::uint64_t allocated = shardrun::test::allocations() - before;

  CHECK(hash != 0);
  CHECK(allocated == 0);
}
