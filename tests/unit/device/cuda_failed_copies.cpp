// Copies of device `cuda` over a fake of CUDA to memory of the host that a failure lets its owner free.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <future>
#include <vector>

#include "core/base/error.h"
#include "core/device/cuda/runtime/host_copies.h"
#include "tests/support/errors.h"
#include "tests/unit/device/on_gpu.h"

using namespace shardrun;
using namespace shardrun::device;
using Catch::Matchers::Contains;
using test::OnGpu;

namespace {

/// Host memory. The first write to it blocks until release(). Only one such object may exist at a time.
class StandingMemory {
 public:
  static constexpr std::size_t size = 4096;

  StandingMemory()
      : data_(static_cast<std::byte*>(mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    REQUIRE(static_cast<void*>(data_) != MAP_FAILED);
    REQUIRE(pipe(begun_.data()) == 0);
    REQUIRE(pipe(released_.data()) == 0);
    only_ = this;
    struct sigaction stand = {};
    stand.sa_sigaction = [](int, siginfo_t* fault, void*) { on_fault(*fault); };
    stand.sa_flags = SA_SIGINFO;
    REQUIRE(sigaction(SIGSEGV, &stand, &before_) == 0);
  }
  StandingMemory(const StandingMemory&) = delete;
  StandingMemory& operator=(const StandingMemory&) = delete;
  ~StandingMemory() {
    static_cast<void>(sigaction(SIGSEGV, &before_, nullptr));
    for (const int end : {begun_[0], begun_[1], released_[0], released_[1]}) {
      close(end);
    }
    munmap(data_, size);
  }

  [[nodiscard]] std::span<std::byte> bytes() const { return {data_, size}; }
  void await_write() const { await(begun_); }
  void release() const { tell(released_); }

 private:
  using Pipe = std::array<int, 2>;

  /// Handles the fault of the first write. When this returns, the write is made again.
  static void on_fault(const siginfo_t& fault) {
    const auto* const at = static_cast<const std::byte*>(fault.si_addr);
    if (at < only_->data_ || at >= only_->data_ + size) {
      static_cast<void>(sigaction(SIGSEGV, &only_->before_, nullptr));
      return;
    }
    tell(only_->begun_);
    await(only_->released_);
    mprotect(only_->data_, size, PROT_READ | PROT_WRITE);
  }
  static void tell(const Pipe& pipe) {
    const char word = 0;
    static_cast<void>(!::write(pipe[1], &word, 1));
  }
  static void await(const Pipe& pipe) {
    char word = 0;
    static_cast<void>(!::read(pipe[0], &word, 1));
  }

  static inline StandingMemory* only_ = nullptr;
  std::byte* data_;
  Pipe begun_{};
  Pipe released_{};
  struct sigaction before_ = {};
};

}  // namespace

TEST_CASE("cuda: after a refused copy, earlier copies no longer write to the host", "[device][cuda]") {
  constexpr std::size_t piece = cuda::HostCopies::buffer_bytes;
  // The GPU's memory ends before the refused copy does: within its first piece, or within its second.
  for (const std::size_t first : {8U, 0U}) {
    CAPTURE(first);
    const std::size_t bytes = piece + 8 - first;
    std::vector<std::byte> earlier(piece, std::byte{7});
    std::vector<std::byte> refused(bytes, std::byte{7});
    {
      OnGpu at({}, piece);
      at.queue->read(at.memory->data(), earlier);
      CHECK_THAT(test::error_of([&] { at.queue->read(at.memory->data() + first, refused); }),
                 Contains("bytes to the host: invalid argument"));
      at.queue->finish();
    }
    CHECK((earlier == std::vector<std::byte>(piece, std::byte{7})));
    CHECK((refused == std::vector<std::byte>(bytes, std::byte{7})));
  }
}

TEST_CASE("cuda: a failure is thrown only after the host's running copy has ended", "[device][cuda]") {
  using namespace std::chrono_literals;
  const StandingMemory memory;
  OnGpu at({}, StandingMemory::size);
  at.queue->read(at.memory->data(), memory.bytes());
  std::promise<void> thrown;
  std::atomic<bool> is_released = false;
  const std::future<void> other = std::async(std::launch::async, [&] {
    memory.await_write();
    test::fake_cuda::set_error(700);
    static_cast<void>(thrown.get_future().wait_for(50ms));  // no event tells that it is not thrown
    is_released = true;
    memory.release();
  });

  CHECK_THAT(test::error_of([&] { at.queue->finish(); }), Contains("cudaErrorIllegalAddress"));

  CHECK(is_released);
  thrown.set_value();
}

TEST_CASE("cuda: a host function that runs after its queue is gone writes nothing", "[device][cuda]") {
  std::vector<std::byte> memory(4096, std::byte{7});
  std::promise<void> begun;
  std::promise<void> is_gone;
  {
    OnGpu at({}, memory.size());
    test::fake_cuda::set_before_host_function([&] {
      begun.set_value();
      is_gone.get_future().wait();
    });
    at.queue->read(at.memory->data(), memory);
    const std::future<void> other = std::async(std::launch::async, [&] {
      begun.get_future().wait();
      test::fake_cuda::set_error(700);
    });
    CHECK_THAT(test::error_of([&] { at.queue->finish(); }), Contains("cudaErrorIllegalAddress"));
  }
  std::fill(memory.begin(), memory.end(), std::byte{8});
  test::fake_cuda::set_before_host_function({});

  is_gone.set_value();

  std::vector<std::byte> later(4096);
  OnGpu again({}, later.size());
  again.queue->read(again.memory->data(), later);
  again.queue->finish();
  CHECK((memory == std::vector<std::byte>(4096, std::byte{8})));
}

TEST_CASE("cuda: a host call that CUDA has begun is made once, even if its queue is gone", "[device][cuda]") {
  std::atomic<int> made = 0;
  const auto make = [](void* of) { ++*static_cast<std::atomic<int>*>(of); };
  std::promise<void> begun;
  std::promise<void> is_gone;
  {
    OnGpu at;
    test::fake_cuda::set_before_host_function([&] {
      begun.set_value();
      is_gone.get_future().wait();
    });
    at.queue->call(make, &made);
    const std::future<void> other = std::async(std::launch::async, [&] {
      begun.get_future().wait();
      test::fake_cuda::set_error(700);
    });
    CHECK_THAT(test::error_of([&] { at.queue->finish(); }), Contains("cudaErrorIllegalAddress"));
    CHECK(made == 1);
  }
  test::fake_cuda::set_before_host_function({});

  is_gone.set_value();

  OnGpu again;
  again.queue->call(make, &made);
  again.queue->finish();
  CHECK(made == 2);
}
