// Convolutions of the device `cuda` by cuDNN: the runtime over fakes of CUDA and of cuDNN.

#include "core/device/cuda/runtime/library_ops.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/device/cuda/runtime/cudnn.h"
#include "core/device/library.h"
#include "tests/support/errors.h"
#include "tests/support/variable.h"
#include "tests/unit/device/on_cudnn.h"
#include "tests/unit/device/types.h"

using namespace shardrun;
using namespace shardrun::device;
using Catch::Matchers::Contains;
using graph::DType;
using test::Shape;
using test::type_of;
using test::Variable;
namespace fake = shardrun::test::fake_cuda;

namespace {

/// An op with its types: x [batch, 3, 9, 7], w [4, 3, 3, 2], y [batch, 4, 5, 3].
struct Op {
  Op(std::string of, std::int64_t batch, DType operands, DType result) : name(std::move(of)) {
    const Shape x = {batch, 3, 9, 7};
    const Shape w = {4, 3, 3, 2};
    const Shape y = {batch, 4, 5, 3};
    if (name == "conv_gradient_input") {
      attributes.add("sizes", Shape{9, 7});
    } else if (name == "conv_gradient_weights") {
      attributes.add("sizes", Shape{3, 2});
    }
    inputs = {type_of(name == "conv" ? x : y, operands), type_of(name == "conv_gradient_weights" ? x : w, operands)};
    outputs = {type_of(name == "conv" ? y : name == "conv_gradient_input" ? x : w, result)};
  }
  [[nodiscard]] graph::OpShape shape() const { return {attributes, inputs, outputs}; }

  std::string name;
  graph::Attributes attributes = {
      {"strides", Shape{2, 2}}, {"padding", Shape{1, 1, 0, 0}}, {"dilation", Shape{1, 2}}, {"groups", std::int64_t{1}}};
  std::vector<graph::TensorType> inputs;
  std::vector<graph::TensorType> outputs;
};

const Kernel& kernel_of(std::string_view op) {
  static const std::vector<LibraryKernel> all = kernels_of_device("cuda-emulated");
  return std::ranges::find(all, op, &LibraryKernel::op)->kernel;
}

/// An op on a fake GPU, whose operands are small integers: results do not depend on the order of sums.
struct OnCudnn : test::OnFakeCudnn<Op> {
  explicit OnCudnn(const Op& of, std::int64_t shift = 0) : OnFakeCudnn(of, kernel_of(of.name)) {
    inputs = {view(shift, op.inputs[0]), view((1 << 20) + shift, op.inputs[1])};
    outputs = {view((1 << 21) + shift, op.outputs[0])};
    scratch = {memory->data() + (1 << 22) + 64, device.scratch_bytes(kernel, op.shape(), 1)};
    write_inputs([](std::int64_t i) { return static_cast<double>(i * i % 7 - 3); });
  }

  using OnFakeCudnn::prepare;
  void prepare(const cuda::FindConvolution* library, std::int64_t most_bytes = cuda::most_convolution_bytes) {
    prepared = cuda::prepare_convolution(library, to_prepare(), most_bytes);
  }
  /// The result of two runs, of which the second adds to the first if the op does so.
  [[nodiscard]] std::vector<double> result() {
    queue->run(*prepared, false, {});
    queue->run(*prepared, op.name == "conv_gradient_weights", {});
    return read();
  }
  using OnFakeCudnn::read;
  [[nodiscard]] std::vector<double> read() const { return read(outputs[0]); }
  [[nodiscard]] std::vector<double> own_result() {
    prepare(nullptr);
    return result();
  }
};

/// Every op with every combination of types that the library takes, for this number of images.
std::vector<Op> all_ops(std::int64_t batch) {
  std::vector<Op> ops;
  for (const char* const name : {"conv", "conv_gradient_input", "conv_gradient_weights"}) {
    ops.emplace_back(name, batch, DType::f32, DType::f32);
    ops.emplace_back(name, batch, DType::bf16, DType::bf16);
  }
  ops.emplace_back("conv_gradient_weights", batch, DType::bf16, DType::f32);
  return ops;
}

std::int64_t runs_so_far() { return fake::cudnn_counts().runs; }

}  // namespace

TEST_CASE("cuDNN computes convolutions, and equals our own kernels", "[unit]") {
  for (const Op& op : all_ops(2)) {
    INFO(op.name << " " << to_string(op.inputs[0].dtype) << " " << to_string(op.outputs[0].dtype));
    OnCudnn at(op);
    const std::vector<double> expected = at.own_result();
    at.prepare();
    const std::int64_t before = runs_so_far();

    CHECK(at.result() == expected);

    CHECK(runs_so_far() == before + 2);
  }
}

TEST_CASE("convolutions with large copies are made in parts of images", "[unit]") {
  for (const Op& op : all_ops(5)) {
    INFO(op.name << " " << to_string(op.inputs[0].dtype) << " " << to_string(op.outputs[0].dtype));
    OnCudnn at(op);
    const std::vector<double> expected = at.own_result();
    // The limit lets two images fit, but not three.
    std::int64_t most_bytes = 0;
    std::optional<cuda::ConvolutionSteps> steps;
    do {
      most_bytes += 64;
      steps = cuda::convolution_steps(op.name, op.shape(), most_bytes);
    } while (steps->images < 2);
    if (steps->images == 5) {
      continue;  // float32 is not copied
    }
    REQUIRE(steps->images == 2);
    CHECK(static_cast<std::int64_t>(steps->scratch_bytes) < most_bytes + 256);
    CHECK(steps->scratch_bytes < at.scratch.size());
    at.prepare(at.device.convolutions(), most_bytes);
    const std::int64_t before = runs_so_far();

    CHECK(at.result() == expected);

    CHECK(runs_so_far() == before + 6);
  }
}

TEST_CASE("a bfloat16 gradient of weights is rounded once, in however many parts it is made", "[unit]") {
  const auto real = [](std::int64_t i) { return std::sin(static_cast<double>(i * i % 101 + i)); };
  const std::vector<double> expected = [&] {
    OnCudnn exact(Op("conv_gradient_weights", 9, DType::bf16, DType::f32));
    exact.write_inputs(real);
    exact.prepare(nullptr);
    exact.queue->run(*exact.prepared, false, {});
    return exact.read();
  }();
  OnCudnn at(Op("conv_gradient_weights", 9, DType::bf16, DType::bf16));
  at.write_inputs(real);
  at.prepare(at.device.convolutions(), 1);
  const std::int64_t before = runs_so_far();
  const auto check_rounded = [](double found, double sum) {
    CHECK(std::abs(found - sum) <= std::ldexp(1.0, std::ilogb(sum)) / 256 + 1e-5);
  };

  at.queue->run(*at.prepared, false, {});
  const std::vector<double> set = at.read();
  at.queue->run(*at.prepared, true, {});
  const std::vector<double> added = at.read();

  CHECK(runs_so_far() == before + 18);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    check_rounded(set[i], expected[i]);
    check_rounded(added[i], set[i] + expected[i]);
  }
}

TEST_CASE("copies of weights and sums count toward the scratch limit", "[unit]") {
  Op op("conv", 1, DType::bf16, DType::bf16);
  op.inputs = {type_of({2048, 64, 7, 7}, DType::bf16), type_of({2048, 64, 3, 3}, DType::bf16)};
  op.outputs = {type_of({2048, 2048, 7, 7}, DType::bf16)};
  op.attributes = {
      {"strides", Shape{1, 1}}, {"padding", Shape{1, 1, 1, 1}}, {"dilation", Shape{1, 1}}, {"groups", std::int64_t{1}}};
  const std::optional<cuda::ConvolutionSteps> steps = cuda::convolution_steps(op.name, op.shape());
  CHECK(steps->images < 2048);
  CHECK(static_cast<std::int64_t>(steps->scratch_bytes) < cuda::most_convolution_bytes + 256);
}

TEST_CASE("scratch of convolutions follows from shapes and types", "[unit]") {
  const auto steps_of = [](std::int64_t batch, DType operands, DType result) {
    Op op("conv_gradient_weights", 1, operands, result);
    op.inputs[0].shape = {batch, 64, 112, 112};
    op.inputs[1].shape = {batch, 3, 224, 224};
    op.outputs[0].shape = {64, 3, 7, 7};
    op.attributes = {{"strides", Shape{2, 2}},
                     {"padding", Shape{3, 3, 3, 3}},
                     {"dilation", Shape{1, 1}},
                     {"groups", std::int64_t{1}},
                     {"sizes", Shape{7, 7}}};
    return cuda::convolution_steps(op.name, op.shape());
  };
  // Tensor cores: x and y with channels that fill up 16 bytes, w too, and 16 sums of parts.
  const std::int64_t copies = 32 * (8 * 224 * 224 + 64 * 112 * 112) * 2 + 64 * 8 * 49 * 2;
  const std::int64_t sums = 16 * (64 * 4 * 49 * 4);
  const std::optional<cuda::ConvolutionSteps> bfloat = steps_of(32, DType::bf16, DType::bf16);
  CHECK(bfloat->images == 32);
  CHECK_FALSE(bfloat->casts);
  CHECK(static_cast<std::int64_t>(bfloat->workspace_bytes) >= copies + sums);
  CHECK(static_cast<std::int64_t>(bfloat->workspace_bytes) < copies + sums + (17 << 20));
  // float32 without TF32 is not copied.
  CHECK(static_cast<std::int64_t>(steps_of(32, DType::f32, DType::f32)->workspace_bytes) < sums + (1 << 20));
  // Operands of bfloat16 and a float32 result: casts beside copies, in parts.
  const std::optional<cuda::ConvolutionSteps> cast = steps_of(256, DType::bf16, DType::f32);
  CHECK(cast->casts);
  CHECK(cast->images > 1);
  CHECK(cast->images < 64);
  CHECK(static_cast<std::int64_t>(cast->scratch_bytes) < cuda::most_convolution_bytes + 256);
  CHECK(cast->cast_x == static_cast<std::int64_t>(cast->workspace_bytes));
  CHECK(cast->cast_y >= cast->cast_x + cast->images * 3 * 224 * 224 * 4);

  Op mixed("conv", 2, DType::bf16, DType::bf16);
  mixed.inputs[1].dtype = DType::f32;
  CHECK_FALSE(cuda::convolution_steps(mixed.name, mixed.shape()));
  const Op rounded("conv", 2, DType::bf16, DType::f32);
  CHECK_FALSE(cuda::convolution_steps(rounded.name, rounded.shape()));
  const Op empty("conv", 0, DType::f32, DType::f32);
  CHECK_FALSE(cuda::convolution_steps(empty.name, empty.shape()));
}

TEST_CASE("a convolution touches all of its scratch when it first runs", "[unit]") {
  for (const bool is_own : {false, true}) {
    OnCudnn at(Op("conv", 3, DType::bf16, DType::bf16));
    at.check_touches_scratch([&] { at.prepare(is_own ? nullptr : at.device.convolutions()); });
  }
}

TEST_CASE("equal convolutions choose an engine once", "[unit]") {
  OnCudnn at(Op("conv_gradient_input", 4, DType::bf16, DType::bf16));
  const std::vector<double> expected = at.own_result();
  at.prepare();
  const std::int64_t before = fake::cudnn_counts().choices;
  at.prepare();
  CHECK(fake::cudnn_counts().choices == before);
  CHECK(at.result() == expected);

  // A less aligned result needs another choice.
  at.outputs[0].data = at.outputs[0].address_of(1);
  at.prepare();
  CHECK(fake::cudnn_counts().choices == before + 1);
  CHECK(at.result() == expected);
}

TEST_CASE("convolutions work on poorly aligned memory", "[unit]") {
  for (const std::int64_t shift : {2, 4, 8, 16, 64}) {
    OnCudnn at(Op("conv_gradient_weights", 2, DType::bf16, DType::bf16), shift);
    const std::vector<double> expected = at.own_result();
    at.prepare();
    const std::int64_t before = runs_so_far();
    CHECK(at.result() == expected);
    CHECK(runs_so_far() == before + 2);
  }
}

TEST_CASE("our own kernel computes a convolution that the library has no engine for", "[unit]") {
  const Variable none("FAKE_CUDNN_NONE", "1");
  OnCudnn at(Op("conv", 6, DType::bf16, DType::bf16));
  const std::vector<double> expected = at.own_result();
  at.prepare();
  const std::int64_t before = runs_so_far();

  CHECK(at.result() == expected);

  CHECK(runs_so_far() == before);
}

TEST_CASE("our own kernel computes convolutions of images that are split", "[unit]") {
  OnCudnn at(Op("conv", 2, DType::f32, DType::f32));
  at.outputs[0].global[2] = 10;
  const std::vector<double> expected = at.own_result();
  at.prepare();
  const std::int64_t before = runs_so_far();

  CHECK(at.result() == expected);

  CHECK(runs_so_far() == before);
}

TEST_CASE("our own kernel computes convolutions that cannot be warmed up", "[unit]") {
  std::int64_t batch = 7;
  for (const auto& [variable, value] : {std::pair("FAKE_CUDNN_FAIL", "cudnnBackendExecute"),  // in the capture
                                        std::pair("FAKE_CUDA_NO_GRAPHS", "1")}) {             // after it
    INFO(variable);
    OnCudnn at(Op("conv", batch, DType::bf16, DType::bf16));
    const std::vector<double> expected = at.own_result();
    {
      const Variable failing(variable, value);
      at.prepare();
    }
    const std::int64_t before = runs_so_far();

    CHECK(at.result() == expected);

    CHECK(runs_so_far() == before);
    ++batch;
  }
}

TEST_CASE("convolutions use cuDNN when plans can be made only with a handle", "[unit][handle]") {
  const Variable wants("FAKE_CUDNN_WANTS_HANDLE", "cudnnBackendExecute");
  OnCudnn at(Op("conv", 11, DType::f32, DType::f32));
  const std::vector<double> expected = at.own_result();
  at.prepare();
  const std::int64_t before = runs_so_far();

  CHECK(at.result() == expected);

  CHECK(runs_so_far() == before + 2);
}

TEST_CASE("a call of cuDNN that fails names the op, its sizes and the status", "[unit]") {
  // Each convolution has sizes of its own, so that no earlier choice is known for it.
  std::int64_t batch = 9;
  for (const char* const function : {"cudnnBackendCreateDescriptor", "cudnnBackendSetAttribute",
                                     "cudnnBackendGetAttribute", "cudnnBackendFinalize"}) {
    INFO(function);
    OnCudnn at(Op("conv", batch, DType::bf16, DType::bf16));
    static_cast<void>(at.device.convolutions());
    const Variable failing("FAKE_CUDNN_FAIL", function);
    CHECK_THAT(test::error_of([&] { at.prepare(); }),
               Contains("op conv: conv bf16[" + std::to_string(batch) + ", 3, 9, 7] * [4, 3, 3, 2] -> [" +
                        std::to_string(batch) + ", 4, 5, 3]: cuDNN 9.19.0: " + function) &&
                   Contains(" returned CUDNN_STATUS_EXECUTION_FAILED"));
    ++batch;
  }
  OnCudnn at(Op("conv", batch, DType::bf16, DType::bf16));
  at.prepare();
  const Variable failing("FAKE_CUDNN_FAIL", "cudnnBackendExecute");
  CHECK_THAT(
      test::error_of([&] { at.queue->run(*at.prepared, false, {}); }),
      Contains("GPU 0: op conv: conv bf16[") && Contains("cudnnBackendExecute returned CUDNN_STATUS_EXECUTION_FAILED"));
}

// Run by finding_cudnn.cpp.
TEST_CASE("our own kernel computes a convolution if cuDNN does not start", "[.own]") {
  OnCudnn at(Op("conv", 2, DType::f32, DType::f32));
  const std::vector<double> expected = at.own_result();
  at.prepare();
  CHECK(at.result() == expected);
  CHECK(runs_so_far() == 0);
}

TEST_CASE("a cuDNN that does not start fails a convolution if cuDNN was asked for", "[unit]") {
  OnCudnn at(Op("conv", 2, DType::f32, DType::f32));
  const Variable failing("FAKE_CUDNN_FAIL", "cudnnCreate");
  CHECK_THAT(test::error_of([&] { at.prepare(); }), Contains("cudnnCreate returned CUDNN_STATUS_EXECUTION_FAILED"));
}
