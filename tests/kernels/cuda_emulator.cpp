// The emulator of CUDA blocks itself: what it computes, and which mistakes of kernels it finds.

#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/device/cuda/launch.h"
#include "core/device/cuda/matrix.h"
#include "core/device/threads.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace shardrun;
using namespace shardrun::device;
using namespace shardrun::device::cuda;
using emulated::Order;

namespace {

constexpr int threads = 96;

template <typename Function>
void launch_test(std::int64_t blocks, std::size_t bytes, const Function& function) {
  static Threads one(1);
  const graph::Attributes attributes;
  const Scalars scalars;
  launch({.attributes = attributes, .inputs = {}, .outputs = {}, .scratch = {}, .scalars = scalars, .threads = one},
         blocks, threads, bytes, function);
}

/// Each thread writes its number and reads its neighbour's.
struct ReadNeighbour {
  int* y;
  bool has_barrier;

  void operator()(Block& block) const {
    const Shared<int> numbers = block.shared<int>(threads);
    numbers[block.thread()] = block.thread();
    if (has_barrier) {
      block.sync();
    }
    y[block.index() * threads + block.thread()] = numbers[(block.thread() + 1) % threads];
  }
};

std::vector<int> neighbours(Order order, bool has_barrier) {
  emulated::set_order(order, 3);
  std::vector<int> y(2 * threads);
  launch_test(2, shared_bytes<int>(threads), ReadNeighbour{y.data(), has_barrier});
  return y;
}

struct Sums {
  float* y;
  void operator()(Block& block) const {
    const auto own = static_cast<float>(block.thread());
    float* const to = y + 4 * block.thread();
    to[0] = warp_sum(block, own);
    to[1] = warp_join(block, -own, Larger{});
    to[2] = block_sum(block, own);
    to[3] = block_join(block, own, Larger{});
  }
};

template <typename Function>
std::string message_of(std::size_t bytes, const Function& function) {
  return test::error_of([&] { launch_test(2, bytes, function); });
}

struct SomeEnd {
  void operator()(Block& block) const {
    if (block.index() == 1 && block.thread() == 5) {
      return;
    }
    block.sync();
  }
};
struct DifferentBarriers {
  void operator()(Block& block) const {
    if (block.warp() == 0) {
      block.sync();
    } else {
      block.sync();
    }
  }
};
struct ExchangeOfSome {
  void operator()(Block& block) const {
    if (block.lane() < 16) {
      static_cast<void>(block.exchange(1, 0));
    }
  }
};
struct OutOfBounds {
  int index;
  void operator()(Block& block) const {
    const Shared<float> values = block.shared<float>(8);
    values[index] = 1;
  }
};
struct TooMuch {
  void operator()(Block& block) const { static_cast<void>(block.shared<float>(1000)); }
};
struct ReadUnwritten {
  float* y;
  void operator()(Block& block) const { y[block.thread()] = block.shared<float>(threads)[block.thread()]; }
};

/// Each thread copies four numbers to shared memory and reads what its neighbour copied.
struct CopyNumbers {
  struct alignas(16) Four {
    float of[4];
  };
  const Four* x;
  float* y;
  bool waits;

  void operator()(Block& block) const {
    const Shared<Four> copies = block.shared<Four>(threads);
    block.copy_later(copies, block.thread(), x + block.thread());
    if (waits) {
      block.wait_for_copies();
    }
    block.sync();
    y[block.thread()] = copies[(block.thread() + 1) % threads].of[3];
  }
};
struct CopyOfUnaligned {
  const unsigned char* x;
  void operator()(Block& block) const { block.copy_later(block.shared<CopyNumbers::Four>(threads), 0, x); }
};

/// Every warp computes c = a b of matrices [16, 16] in shared memory. b is stored as it is, or transposed.
struct SmallProduct {
  const float* a;
  const float* b;
  float* c;
  bool is_transposed;

  static constexpr int stride = 3;  // of rows of two Eights

  void operator()(Block& block) const {
    const Shared<Eight> of_a = block.shared<Eight>(16 * stride);
    const Shared<Eight> of_b = block.shared<Eight>(16 * stride);
    const int row = block.lane() / 2;
    const int column = block.lane() % 2;
    for (int k = 0; k < 4; ++k) {
      const int at = row * 16 + column * 8 + 2 * k;
      of_a[row * stride + column].words[k] = bfloat_pair(a[at], a[at + 1]);
      of_b[row * stride + column].words[k] = bfloat_pair(b[at], b[at + 1]);
    }
    block.sync();
    const FragmentA left = load_a<stride>(block, of_a, 0, 0, 0);
    const TwoB right =
        is_transposed ? load_transposed_b<stride>(block, of_b, 0, 0, 0) : load_b<stride>(block, of_b, 0, 0, 0);
    for (int n = 0; n < 2; ++n) {
      FragmentC sums = {};
      multiply_add(block, left, right.of[n], sums);
      for (int i = 0; i < 4; ++i) {
        c[(block.lane() / 4 + i / 2 * 8) * 16 + n * 8 + block.lane() % 4 * 2 + i % 2] = sums.of[i];
      }
    }
  }
};

}  // namespace

TEST_CASE("every thread of every block runs, and barriers order reads after writes") {
  for (const Order order : {Order::forward, Order::reversed, Order::shuffled}) {
    const std::vector<int> y = neighbours(order, true);
    for (int i = 0; i < 2 * threads; ++i) {
      CHECK(y[static_cast<std::size_t>(i)] == (i + 1) % threads);
    }
  }
}

TEST_CASE("a missing barrier gives other numbers, in each order") {
  const std::vector<int> right = neighbours(Order::forward, true);
  CHECK(neighbours(Order::forward, false) != right);
  CHECK(neighbours(Order::reversed, false) != right);
  CHECK(neighbours(Order::shuffled, false) != right);
}

TEST_CASE("warps and blocks sum and compare") {
  for (const Order order : {Order::forward, Order::reversed, Order::shuffled}) {
    emulated::set_order(order, 5);
    std::vector<float> y(4 * threads);
    launch_test(1, 0, Sums{y.data()});
    for (int i = 0; i < threads; ++i) {
      const float* const of = y.data() + 4 * i;
      const int first = i / 32 * 32;
      CHECK(of[0] == static_cast<float>(32 * first + 31 * 16));
      CHECK(of[1] == static_cast<float>(-first));
      CHECK(of[2] == 95 * 48);
      CHECK(of[3] == 95);
    }
  }
}

TEST_CASE("a warp multiplies matrices of bfloat16") {
  std::vector<float> a(256);
  std::vector<float> b(256);
  for (std::size_t i = 0; i < a.size(); ++i) {  // small integers: every sum is exact
    a[i] = static_cast<float>(i * 7 % 31) - 15;
    b[i] = static_cast<float>(i * 11 % 29) - 14;
  }
  for (const Order order : {Order::forward, Order::reversed, Order::shuffled}) {
    for (const bool is_transposed : {false, true}) {
      emulated::set_order(order, 5);
      std::vector<float> c(256);
      launch_test(1, 2 * shared_bytes<Eight>(16 * SmallProduct::stride),
                  SmallProduct{a.data(), b.data(), c.data(), is_transposed});
      for (std::size_t row = 0; row < 16; ++row) {
        for (std::size_t column = 0; column < 16; ++column) {
          float expected = 0;
          for (std::size_t k = 0; k < 16; ++k) {
            expected += a[row * 16 + k] * (is_transposed ? b[column * 16 + k] : b[k * 16 + column]);
          }
          CHECK(c[row * 16 + column] == expected);
        }
      }
    }
  }
}

TEST_CASE("asynchronous copies to shared memory are there after the thread has waited for them") {
  std::vector<CopyNumbers::Four> x(threads);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i].of[3] = static_cast<float>(i);
  }
  for (const Order order : {Order::forward, Order::reversed, Order::shuffled}) {
    emulated::set_order(order, 3);
    std::vector<float> y(threads);
    launch_test(1, shared_bytes<CopyNumbers::Four>(threads), CopyNumbers{x.data(), y.data(), true});
    for (std::size_t i = 0; i < y.size(); ++i) {
      CHECK(y[i] == static_cast<float>((i + 1) % y.size()));
    }
    launch_test(1, shared_bytes<CopyNumbers::Four>(threads), CopyNumbers{x.data(), y.data(), false});
    for (const float value : y) {
      CHECK(value != value);
    }
  }
  CHECK_THAT(message_of(shared_bytes<CopyNumbers::Four>(threads),
                        CopyOfUnaligned{reinterpret_cast<const unsigned char*>(x.data()) + 4}),
             Catch::Contains("addresses must be multiples of 16"));
}

TEST_CASE("shared memory begins as NaN in each block") {
  std::vector<float> y(threads);
  launch_test(2, shared_bytes<float>(threads), ReadUnwritten{y.data()});
  for (const float value : y) {
    CHECK(value != value);
  }
}

TEST_CASE("threads that can never go on are an error with the kernel, the block and the place") {
  const std::string some_end = message_of(0, SomeEnd{});
  CHECK_THAT(some_end, Catch::Contains("SomeEnd, block 1 of 2: its threads wait in vain") &&
                           Catch::Contains("95 threads wait for the block at") &&
                           Catch::Contains("cuda_emulator.cpp") && Catch::Contains("1 threads ended"));
  CHECK_THAT(message_of(0, DifferentBarriers{}), Catch::Contains("DifferentBarriers, block 0") &&
                                                     Catch::Contains("32 threads wait for the block at") &&
                                                     Catch::Contains("64 threads wait for the block at"));
  CHECK_THAT(message_of(0, ExchangeOfSome{}), Catch::Contains("48 threads exchange within their warp at"));
}

TEST_CASE("an index outside shared memory is an error, and so is using more of it than the launch asked for") {
  emulated::set_order(Order::forward);
  CHECK(message_of(shared_bytes<float>(8), OutOfBounds{7}) == "nothing");
  CHECK_THAT(message_of(shared_bytes<float>(8), OutOfBounds{8}),
             Catch::Contains("OutOfBounds, block 0 of 2, thread 0: index 8 of an array of 8 elements"));
  CHECK_THAT(message_of(shared_bytes<float>(8), OutOfBounds{-1}),
             Catch::Contains("index -1 of an array of 8 elements"));
  CHECK_THAT(message_of(64, TooMuch{}),
             Catch::Contains("TooMuch") && Catch::Contains("4256 bytes of shared memory, but "
                                                           "was launched with 320"));
}

TEST_CASE("after an error the emulator runs other kernels") {
  CHECK(message_of(0, SomeEnd{}) != "nothing");
  CHECK(neighbours(Order::forward, true)[0] == 1);
}
