// Products of the device `cuda` by the fastest algorithm of a library, and the file of these choices.

#include "core/device/cuda/runtime/timed_products.h"

#include <array>
#include <future>
#include <optional>
#include <stdexcept>
#include <string>

#include "core/base/error.h"
#include "core/device/cuda/runtime/cublaslt.h"
#include "core/device/cuda/runtime/trials.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/device/on_library.h"

using namespace shardrun;
using namespace shardrun::device;
using namespace shardrun::device::cuda;
using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

namespace {

constexpr const char* library = "cuBLASLt 13.1.0";
constexpr const char* gpu = "A GPU";
const std::string head = "# shardrun: products timed with cuBLASLt 13.1.0 on A GPU\n";

TimedProducts::Times not_asked() { throw std::logic_error("the product is known"); }

/// A matrix product prepared by a library that times products.
struct Timing : OnLibrary {
  explicit Timing(const std::filesystem::path& file) : found(cuda::find_cublaslt()) {
    found.timed_products = file.native();
    open();
  }
  /// Opens the library again, as another process would.
  void open() { products.emplace(found, device.gpu()); }
  void prepare() {
    prepared = prepare_product(&*products, {.kernel = kernel_of("matmul"),
                                            .attributes = attributes,
                                            .inputs = {x, w},
                                            .outputs = {y},
                                            .scratch = scratch});
  }
  /// Runs the product twice. Returns how many of the runs use the second algorithm.
  std::int64_t run_by_second() {
    const std::int64_t before = fake::cublaslt_counts().second;
    check(2);
    return fake::cublaslt_counts().second - before;
  }

  FoundCublasLt found;
  std::optional<LibraryProducts> products;
};

}  // namespace

TEST_CASE("the fastest algorithm is taken, and kept in the file", "[unit]") {
  const TemporaryFolder folder;
  const Variable three("FAKE_CUBLASLT_PROPOSALS", "3");
  {
    Timing at(folder / "timed");
    const std::int64_t before = fake::cublaslt_counts().products;
    at.prepare();
    CHECK(fake::cublaslt_counts().products > before + 3);
    CHECK(at.run_by_second() == 2);
  }
  const std::string kept = read_file(folder / "timed");
  CHECK_THAT(kept, Contains("\t1\t") && Contains("the first of 3 ") && Contains("bf16[6, 128] bf16[128, 5] -> bf16"));

  Timing at(folder / "timed");
  const std::int64_t before = fake::cublaslt_counts().products;
  at.prepare();
  CHECK(fake::cublaslt_counts().products == before);
  CHECK(at.run_by_second() == 2);
  CHECK(read_file(folder / "timed") == kept);
}

TEST_CASE("without memory for trials the first algorithm is taken, and not kept", "[unit]") {
  const TemporaryFolder folder;
  const Variable two("FAKE_CUBLASLT_PROPOSALS", "2");
  Timing at(folder / "timed");
  const std::string before = read_file(folder / "timed");
  void* rest = nullptr;
  std::size_t free = 0;
  std::size_t total = 0;
  REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
  REQUIRE(cudaMalloc(&rest, free - 64) == cudaSuccess);
  at.prepare();
  CHECK(cudaFree(rest) == cudaSuccess);
  CHECK(at.run_by_second() == 0);
  CHECK(read_file(folder / "timed") == before);
}

TEST_CASE("nothing is timed if the library proposes one algorithm", "[unit]") {
  const TemporaryFolder folder;
  Timing at(folder / "timed");
  const std::int64_t before = fake::cublaslt_counts().products;
  at.prepare();
  CHECK(fake::cublaslt_counts().products == before);
  at.check(2);
}

TEST_CASE("memory for trials is aligned as was asked for, and no better", "[unit]") {
  const OnFakeGpu at(nullptr);
  std::array<TrialBuffer, 4> buffers = {
      {{.bytes = 1000}, {.bytes = 0}, {.bytes = 500, .alignment = 16}, {.bytes = 2, .alignment = 2}}};
  const TrialMemory memory(at.device.gpu(), buffers);
  const auto address = [&](std::size_t i) { return reinterpret_cast<std::uintptr_t>(buffers[i].data); };
  CHECK(address(0) % 256 == 0);
  CHECK(buffers[1].data == nullptr);
  CHECK(address(2) % 32 == 16);
  CHECK(address(2) >= address(0) + 1000);
  CHECK(address(3) % 4 == 2);
  CHECK(address(3) >= address(2) + 500);
}

TEST_CASE("processes that share a file of timed products time each once", "[unit]") {
  const TemporaryFolder folder;
  TimedProducts one(folder / "timed", library, gpu);
  TimedProducts other(folder / "timed", library, gpu);
  CHECK(one.find({1, 2}, 3, "a product", [] { return TimedProducts::Times{3.0, 2.5, 2.0}; }) == 2);
  CHECK(other.find({1, 2}, 3, "a product", not_asked) == 2);
  CHECK(other.find({1, 3}, 2, "another", [] { return TimedProducts::Times{1.0, 2.0}; }) == 0);
  CHECK(one.find({1, 3}, 2, "another", not_asked) == 0);
  CHECK(read_file(folder / "timed") == head + "1,2\t2\t2.0000 ms, the first of 3 3.0000 ms\ta product\n" +
                                           "1,3\t0\t1.0000 ms, the first of 2 1.0000 ms\tanother\n");

  // The second waits until the first has timed it.
  std::promise<void> timing;
  std::future<std::size_t> second;
  CHECK(one.find({4}, 2, "slow", [&] {
    second = std::async(std::launch::async, [&] {
      timing.set_value();
      return other.find({4}, 2, "slow", not_asked);
    });
    timing.get_future().wait();
    return TimedProducts::Times{2.0, 1.0};
  }) == 1);
  CHECK(second.get() == 1);
}

TEST_CASE("a file of timed products that does not fit is refused", "[unit]") {
  const TemporaryFolder folder;
  const auto open = [&](const std::string& contents) {
    write_file(folder / "timed", contents);
    return TimedProducts(folder / "timed", library, gpu);
  };
  const auto refusal = [&](const std::string& contents) { return error_of([&] { open(contents); }); };
  CHECK_THAT(
      refusal("# shardrun: products timed with cuBLASLt 13.2.0 on A GPU\n"),
      Contains("SHARDRUN_CUDA_TIMED_PRODUCTS), line 1: found '# shardrun: products timed with cuBLASLt 13.2.0") &&
          Contains("expected '# shardrun: products timed with cuBLASLt 13.1.0 on A GPU': remove the file"));
  CHECK_THAT(refusal("[job]\n"), StartsWith("2: "));
  CHECK_THAT(refusal(head + "1,2\t1\tms\n1,3\tx\t\n"), Contains("line 3: found '1,3"));
  CHECK_THAT(refusal(head + "12\n"), Contains("line 2"));

  // The part of a line that a killed process has left is dropped.
  TimedProducts cut = open(head + "1,2\t1\tms\n1,3\t0");
  CHECK(read_file(folder / "timed") == head + "1,2\t1\tms\n");
  CHECK(cut.find({1, 3}, 2, "another", [] { return TimedProducts::Times{2.0, 1.0}; }) == 1);
  CHECK(TimedProducts(folder / "timed", library, gpu).find({1, 3}, 2, "another", not_asked) == 1);

  TimedProducts fewer = open(head + "1,2\t3\tms\n");
  CHECK_THAT(error_of([&] {
               static_cast<void>(fewer.find({1, 2}, 3, "a product", not_asked));
             }),
             Contains("found proposal 3 for a product, expected one of 3, counted from 0"));
  CHECK_THAT(error_of([&] { TimedProducts(folder / "none" / "timed", library, gpu); }), StartsWith("1: cannot open"));
}
