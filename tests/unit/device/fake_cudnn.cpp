// The fake of cuDNN notices what the real one would refuse, and what would go wrong on a GPU. It computes graphs of
// several operations.

#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "core/device/cuda/runtime/cudnn.h"
#include "core/device/cuda/runtime/cudnn_graph.h"
#include "tests/support/cuda/fake_cudnn.h"
#include "tests/support/errors.h"
#include "tests/unit/device/on_fake_gpu.h"
#include "tests/unit/device/types.h"

using namespace shardrun;
using namespace shardrun::device;
using namespace shardrun::device::cuda;
using Catch::Matchers::Contains;
using test::Shape;
namespace fake = shardrun::test::fake_cuda;

namespace {

/// A fake GPU with memory, and cuDNN on it.
struct Fake : test::OnFakeGpu {
  Fake() : OnFakeGpu(fake::lend_to_cudnn, {}, 1 << 20) {
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    target.emplace(*find_cudnn().functions, device.gpu());
  }
  ~Fake() { CHECK(cudaStreamDestroy(stream) == cudaSuccess); }

  [[nodiscard]] void* at(std::int64_t byte) const { return memory->data() + byte; }
  [[nodiscard]] std::span<std::byte> workspace() const { return {memory->data() + (1 << 19), 1 << 19}; }
  [[nodiscard]] const CudnnFunctions& library() const { return *find_cudnn().functions; }

  /// Enqueues a plan, after its kernels are loaded.
  void run(const CudnnPlan& plan, const CudnnMemory& tensors) {
    const CudnnDescriptor pack = plan.bind(tensors, workspace());
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed) == cudaSuccess);
    std::string failure;
    try {
      target->run(plan.descriptor(), pack, stream);
    } catch (const Error& error) {
      failure = error.message();
    }
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    if (failure.empty()) {
      CHECK(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
      CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
    }
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    if (!failure.empty()) {
      throw Error(ErrorCode::internal, failure);
    }
    target->run(plan.descriptor(), pack, stream);
  }

  void write(std::int64_t byte, const std::vector<float>& values) {
    queue->write(std::as_bytes(std::span(values)), at(byte));
    queue->finish();
  }
  [[nodiscard]] std::vector<float> read(std::int64_t byte, std::size_t count) {
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    std::vector<float> values(count);
    queue->read(at(byte), std::as_writable_bytes(std::span(values)));
    queue->finish();
    return values;
  }

  cudaStream_t stream = nullptr;
  std::optional<CudnnTarget> target;
};

/// y = x + x, of float32 [1, 4, 8].
CudnnGraph sum_of(const CudnnFunctions& library, std::int64_t alignment = 16) {
  CudnnGraph graph(library);
  const CudnnTensor tensor{.dtype = CUDNN_DATA_FLOAT, .shape = {1, 4, 8}, .alignment = alignment};
  const std::int64_t x = graph.add(tensor);
  const std::int64_t y = graph.add(tensor);
  add_pointwise(graph, {.mode = CUDNN_POINTWISE_ADD, .x = x, .b = x}, y);
  return graph;
}

const std::vector<cudnnBackendNumericalNote_t> exact = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE,
                                                        CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS};

}  // namespace

TEST_CASE("the fake of cuDNN computes what was loaded, and nothing else", "[unit]") {
  Fake at;
  std::vector<float> x(32);
  std::iota(x.begin(), x.end(), 0.1F);
  at.write(0, x);
  at.write(1024, std::vector<float>(32, 7));
  const auto plan = CudnnPlan::find(*at.target, sum_of(at.library()), {.workspace_bytes = 1 << 19, .refused = exact});
  REQUIRE(plan != nullptr);
  CHECK(plan->workspace_bytes() > 0);

  at.run(*plan, {{1, at.at(0)}, {2, at.at(1024)}});
  const std::vector<float> y = at.read(1024, 32);

  for (std::size_t i = 0; i < x.size(); ++i) {
    CHECK(y[i] == 2 * x[i]);
  }
  const auto unloaded =
      CudnnPlan::find(*at.target, sum_of(at.library()), {.workspace_bytes = 1 << 19, .refused = exact});
  const CudnnDescriptor pack = unloaded->bind({{1, at.at(0)}, {2, at.at(1024)}}, at.workspace());
  at.target->run(unloaded->descriptor(), pack, at.stream);
  CHECK(cudaStreamSynchronize(at.stream) != cudaSuccess);
  fake::set_error(0);
}

TEST_CASE("the fake of cuDNN refuses memory that differs from its descriptor", "[unit]") {
  Fake at;
  const auto plan = CudnnPlan::find(*at.target, sum_of(at.library()), {.workspace_bytes = 1 << 19, .refused = exact});
  std::array<float, 32> of_host = {};
  struct Case {
    CudnnMemory memory;
    std::string why;
  };
  const std::vector<Case> cases = {
      {{{1, at.at(4)}, {2, at.at(1024)}}, "tensor 1 is not aligned as was promised"},
      {{{1, at.at(0)}, {2, of_host.data()}}, "tensor 2 is not on the GPU as a whole"},
      {{{1, at.at(0)}, {2, at.at((1 << 20) - 64)}}, "tensor 2 is not on the GPU as a whole"},
      {{{1, at.at(0)}, {2, nullptr}}, "tensor 2 has no memory"},
      {{{1, at.at(0)}, {3, at.at(1024)}}, "tensor 2 has no memory"},
      {{{1, at.at(0)}, {2, at.at(1024)}, {3, at.at(2048)}}, "memory is given for a tensor that there is not"},
      {{{1, at.at(0)}, {1, at.at(1024)}}, "a variant pack has a tensor twice"}};
  for (const Case& each : cases) {
    CHECK_THAT(test::error_of([&] { at.run(*plan, each.memory); }), Contains(each.why));
  }
  for (const std::span<std::byte> workspace :
       {std::span<std::byte>(), at.workspace().subspan(16), at.workspace().last(256)}) {
    const CudnnDescriptor pack = plan->bind({{1, at.at(0)}, {2, at.at(1024)}}, workspace);
    CHECK_THAT(test::error_of([&] { at.target->run(plan->descriptor(), pack, at.stream); }),
               Contains("the workspace is not on the GPU as a whole, or not aligned"));
  }
}

TEST_CASE("the fake of cuDNN refuses the descriptors that cuDNN refuses", "[unit]") {
  Fake at;
  const CudnnFunctions& library = at.library();
  const auto tensor = [](CudnnGraph& graph, const Shape& shape) { return graph.add({.shape = shape}); };
  const auto refused = [](const std::function<void()>& act) { return test::error_of(act); };
  CHECK_THAT(refused([&] { CudnnDescriptor(library, CUDNN_BACKEND_TENSOR_DESCRIPTOR).finalize(); }),
             Contains("attribute ") && Contains(" is not set"));
  CHECK_THAT(refused([&] {
               CudnnDescriptor(library, CUDNN_BACKEND_TENSOR_DESCRIPTOR).set(CUDNN_ATTR_TENSOR_UNIQUE_ID, 1.0F);
             }),
             Contains("has another type"));
  CHECK_THAT(refused([&] {
               CudnnDescriptor(library, CUDNN_BACKEND_TENSOR_DESCRIPTOR)
                   .set(CUDNN_ATTR_TENSOR_UNIQUE_ID, std::vector<std::int64_t>{1, 2});
             }),
             Contains("has another number of elements"));
  CHECK_THAT(refused([&] {
               CudnnDescriptor(library, CUDNN_BACKEND_TENSOR_DESCRIPTOR)
                   .set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, std::int64_t{2});
             }),
             Contains("have no attribute"));
  CHECK_THAT(refused([&] {
               const CudnnDescriptor unfinished(library, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
               CudnnDescriptor(library, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
                   .set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, unfinished);
             }),
             Contains("not finalized"));
  CHECK_THAT(refused([&] {
               CudnnGraph graph(library);
               graph.add({.dtype = CUDNN_DATA_FLOAT, .shape = {1, 4, 8}, .strides = {32, 8}});
             }),
             Contains("as many strides as sizes"));
  CHECK_THAT(refused([&] {
               CudnnGraph graph(library);
               const std::int64_t x = tensor(graph, {1, 4, 8});
               add_pointwise(graph, {.mode = CUDNN_POINTWISE_EXP, .x = x}, tensor(graph, {1, 4, 4}));
             }),
             Contains("does not fit its result"));
  // A virtual tensor that nothing reads.
  CHECK_THAT(refused([&] {
               CudnnGraph graph(library);
               const std::int64_t x = tensor(graph, {1, 4, 8});
               add_pointwise(graph, {.mode = CUDNN_POINTWISE_EXP, .x = x}, add_virtual(graph, {1, 4, 8}));
               static_cast<void>(CudnnPlan::find(*at.target, std::move(graph), {}));
             }),
             Contains("a virtual tensor is not made, or not read"));
  CHECK_THAT(refused([&] {
               CudnnGraph graph(library);
               const std::int64_t x = tensor(graph, {1, 4, 8});
               const std::int64_t y = tensor(graph, {1, 4, 8});
               add_pointwise(graph, {.mode = CUDNN_POINTWISE_EXP, .x = x}, y);
               add_pointwise(graph, {.mode = CUDNN_POINTWISE_LOG, .x = x}, y);
               static_cast<void>(CudnnPlan::find(*at.target, std::move(graph), {}));
             }),
             Contains("a tensor is made twice"));
}

TEST_CASE("the fake of cuDNN computes a softmax of products", "[unit]") {
  Fake at;
  constexpr std::int64_t rows = 4;
  constexpr std::int64_t inner = 6;
  constexpr std::int64_t columns = 8;
  CudnnGraph graph(at.library());
  const std::int64_t a = graph.add({.shape = {2, rows, inner}});
  // One b for both, stored column by column.
  const std::int64_t b = graph.add({.shape = {1, inner, columns}, .strides = {inner * columns, 1, inner}});
  const std::int64_t scores = add_virtual(graph, {2, rows, columns});
  const std::int64_t largest = add_virtual(graph, {2, rows, 1});
  const std::int64_t less = add_virtual(graph, {2, rows, columns});
  const std::int64_t powers = add_virtual(graph, {2, rows, columns});
  const std::int64_t sums = add_virtual(graph, {2, rows, 1});
  const std::int64_t y = graph.add({.shape = {2, rows, columns}});
  // The operations are added in an order in which they cannot be computed.
  add_pointwise(graph, {.mode = CUDNN_POINTWISE_DIV, .x = powers, .b = sums}, y);
  add_matmul(graph, a, b, scores);
  add_reduction(graph, CUDNN_REDUCE_TENSOR_MAX, scores, largest);
  add_pointwise(graph, {.mode = CUDNN_POINTWISE_SUB, .x = scores, .b = largest}, less);
  add_pointwise(graph, {.mode = CUDNN_POINTWISE_EXP, .x = less}, powers);
  add_reduction(graph, CUDNN_REDUCE_TENSOR_ADD, powers, sums);
  const auto plan = CudnnPlan::find(*at.target, std::move(graph), {.workspace_bytes = 1 << 19, .refused = exact});
  REQUIRE(plan != nullptr);
  std::vector<float> of_a;
  std::vector<float> of_b;
  for (std::int64_t i = 0; i < 2 * rows * inner; ++i) {
    of_a.push_back(static_cast<float>(i % 5) - 2);
  }
  for (std::int64_t i = 0; i < inner * columns; ++i) {
    of_b.push_back(static_cast<float>(i % 7) / 4);
  }
  at.write(0, of_a);
  at.write(4096, of_b);

  at.run(*plan, {{a, at.at(0)}, {b, at.at(4096)}, {y, at.at(8192)}});

  const std::vector<float> found = at.read(8192, 2 * rows * columns);
  for (std::size_t row = 0; row < 2 * rows; ++row) {
    std::vector<double> expected;
    for (std::size_t column = 0; column < columns; ++column) {
      double score = 0;
      for (std::size_t k = 0; k < inner; ++k) {
        score += static_cast<double>(of_a[row * inner + k]) * static_cast<double>(of_b[column * inner + k]);
      }
      expected.push_back(std::exp(score));
    }
    const double sum = std::accumulate(expected.begin(), expected.end(), 0.0);
    for (std::size_t column = 0; column < columns; ++column) {
      CHECK(std::abs(static_cast<double>(found[row * columns + column]) - expected[column] / sum) < 1e-6);
    }
  }
}
