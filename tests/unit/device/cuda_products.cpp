// Products of the device `cuda` by a library: the runtime over fakes of CUDA and of cuBLASLt.

#include <string>

#include "core/base/error.h"
#include "core/device/cuda/runtime/cublaslt.h"
#include "tests/support/errors.h"
#include "tests/unit/device/on_library.h"

using namespace shardrun;
using namespace shardrun::device;
using namespace shardrun::test;
using Catch::Matchers::Contains;

namespace {

const std::string own_attention = "; attention and convolutions: own kernels: SHARDRUN_CUDA_DNN=own";

std::int64_t products_so_far() { return fake::cublaslt_counts().products; }

}  // namespace

TEST_CASE("the library that is found computes products and adds to results", "[unit]") {
  OnLibrary at;
  CHECK(at.device.facts().bf16_products == "cuBLASLt 13.1.0" + own_attention);
  CHECK(at.scratch.size() > 0);
  at.prepare();
  const std::int64_t before = products_so_far();

  at.check(3);

  CHECK(products_so_far() == before + 3);
}

TEST_CASE("a product touches all of its scratch when it first runs", "[unit]") {
  for (const bool is_own : {false, true}) {
    OnLibrary at(64, 512, 64);
    const auto touched = [&] { return at.memory->touched_bytes(); };
    const std::uint64_t none = touched();
    if (is_own) {
      const Variable none_found("FAKE_CUBLASLT_NONE", "1");
      at.prepare();
    } else {
      at.prepare();
    }
    CHECK(touched() == none);

    at.queue->run(*at.prepared, false, {});
    at.queue->finish();

    CHECK(touched() - none >= at.scratch.size() / 4096 * 4096);
  }
}

TEST_CASE("equal instructions choose an algorithm once", "[unit]") {
  OnLibrary at;
  at.prepare();
  const std::int64_t before = fake::cublaslt_counts().choices;
  const std::unique_ptr<const PreparedKernel> first = std::move(at.prepared);

  at.prepare();
  CHECK(fake::cublaslt_counts().choices == before);
  at.check(2);

  // Less aligned memory needs another choice.
  at.x = at.view(2, {at.rows, at.inner});
  at.prepare();
  CHECK(fake::cublaslt_counts().choices == before + 1);
  at.check(2);
}

TEST_CASE("products work on poorly aligned memory", "[unit]") {
  for (const std::int64_t shift : {2, 4, 8, 16, 64}) {
    OnLibrary at(6, 128, 5, shift);
    at.prepare();
    at.check(2);
  }
}

TEST_CASE("a result whose rows are not aligned is made in padded rows, and added to", "[unit]") {
  OnLibrary at(800, 392, 515);
  CHECK(at.scratch.size() > 800 * 576 * 2 + 6 * 800 * 515 * 4);
  at.prepare();
  const fake::CublasLtCounts before = fake::cublaslt_counts();
  at.check(2);
  CHECK(fake::cublaslt_counts().unaligned == before.unaligned);
}

TEST_CASE("our own kernel computes products for which the library has no algorithm", "[unit]") {
  const Variable none("FAKE_CUBLASLT_NONE", "1");
  OnLibrary at(6, 136, 5);
  at.prepare();
  const std::int64_t before = products_so_far();

  at.check(2);

  CHECK(products_so_far() == before);
}

TEST_CASE("our own kernel computes products for which choosing an algorithm fails", "[unit]") {
  OnLibrary at(6, 144, 5);
  {
    const Variable function("FAKE_CUBLASLT_FAIL", "cublasLtMatmulAlgoGetHeuristic");
    const Variable status("FAKE_CUBLASLT_STATUS", "7");
    at.prepare();
  }
  const std::int64_t before = products_so_far();

  at.check(2);

  CHECK(products_so_far() == before);
}

TEST_CASE("a call of the library that fails names the op, its sizes and the status", "[unit]") {
  struct Failing {
    const char* function;
    const char* status;
    const char* name;
  };
  // Each product has sizes of its own, so that no earlier choice is known for it.
  std::int64_t inner = 200;
  for (const Failing& each : {Failing{"cublasLtMatmulDescCreate", "1", "CUBLAS_STATUS_NOT_INITIALIZED"},
                              Failing{"cublasLtMatmulDescSetAttribute", "7", "CUBLAS_STATUS_INVALID_VALUE"},
                              Failing{"cublasLtMatrixLayoutCreate", "7", "CUBLAS_STATUS_INVALID_VALUE"},
                              Failing{"cublasLtMatmulPreferenceSetAttribute", "7", "CUBLAS_STATUS_INVALID_VALUE"}}) {
    OnLibrary at(6, inner, 5);
    const Variable function("FAKE_CUBLASLT_FAIL", each.function);
    const Variable status("FAKE_CUBLASLT_STATUS", each.status);
    INFO(each.function);
    const std::string message = test::error_of([&] { at.prepare(); });
    CHECK_THAT(message, Contains("op matmul: multiplying bf16[6, " + std::to_string(inner) + "] bf16[" +
                                 std::to_string(inner) + ", 5] -> bf16 by cuBLASLt 13.1.0: "));
    CHECK_THAT(message, Contains(std::string(" returned ") + each.name));
    inner += 8;
  }
  OnLibrary at(6, inner, 5);
  at.prepare();
  const Variable function("FAKE_CUBLASLT_FAIL", "cublasLtMatmul");
  CHECK_THAT(test::error_of([&] { at.queue->run(*at.prepared, false, {}); }),
             Contains("GPU 0: op matmul: multiplying bf16[6, ") &&
                 Contains("cublasLtMatmul returned CUBLAS_STATUS_EXECUTION_FAILED"));
}

TEST_CASE("our own kernel computes products that the library cannot warm up", "[unit]") {
  std::int64_t inner = 304;
  for (const auto& [variable, value] : {std::pair("FAKE_CUBLASLT_FAIL", "cublasLtMatmul"),  // in the capture
                                        std::pair("FAKE_CUDA_NO_GRAPHS", "1")}) {           // after it
    INFO(variable);
    OnLibrary at(6, inner, 5);
    {
      const Variable failing(variable, value);
      at.prepare();
    }
    const std::int64_t before = products_so_far();

    at.check(2);

    CHECK(products_so_far() == before);
    inner += 8;
  }
}

TEST_CASE("a library that does not start fails the product that needs it", "[unit]") {
  const Variable function("FAKE_CUBLASLT_FAIL", "cublasLtCreate");
  OnLibrary at;
  CHECK_THAT(test::error_of([&] { at.prepare(); }),
             Contains("starting cuBLASLt 13.1.0: cublasLtCreate returned CUBLAS_STATUS_EXECUTION_FAILED"));
}
