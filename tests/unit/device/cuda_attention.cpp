// Attention of the device `cuda` by cuDNN: the runtime over fakes of CUDA and of cuDNN. That results are right is
// checked in tests/kernels.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/device/cuda/runtime/library_ops.h"
#include "core/device/library.h"
#include "tests/support/errors.h"
#include "tests/support/variable.h"
#include "tests/unit/device/on_cudnn.h"
#include "tests/unit/device/types.h"

using namespace shardrun;
using namespace shardrun::device;
using Catch::Matchers::Contains;
using graph::DType;
using test::type_of;
using test::Variable;
namespace fake = shardrun::test::fake_cuda;

namespace {

/// An op with its types. Packed: 4 heads. Separate: 2 heads of keys, with two heads of queries for each, and as many
/// keys as queries.
struct Op {
  explicit Op(bool is_packed, bool is_gradient = false, std::int64_t batch = 2, std::int64_t length = 9,
              std::int64_t width = 8)
      : name(is_packed ? "attention" : "scaled_dot_product_attention") {
    if (is_packed) {
      inputs = {type_of({batch, length, 3, 4, width})};
      outputs = {type_of({batch, length, 4, width}), type_of({batch, 4, length}, DType::f32)};
    } else {
      const graph::TensorType k = type_of({batch, length, 2, width});
      inputs = {type_of({batch, length, 2, 2, width}), k, k};
      outputs = {inputs[0], type_of({batch, 2, 2, length}, DType::f32)};
    }
    if (is_gradient) {
      name += "_gradient";
      std::vector<graph::TensorType> all = inputs;
      all.insert(all.end(), {outputs[0], outputs[1], outputs[0]});
      outputs = std::exchange(inputs, all);
      outputs.resize(is_packed ? 1 : 3);
    }
  }
  void set(const std::string& attribute, const graph::Attributes::Scalar& value) {
    graph::Attributes changed;
    for (const auto& [key, before] : attributes.entries()) {
      changed.add(key, key == attribute ? value : before);
    }
    attributes = changed;
  }
  [[nodiscard]] graph::OpShape shape() const { return {attributes, inputs, outputs}; }
  [[nodiscard]] std::optional<cuda::AttentionSteps> steps(std::int64_t most_bytes = cuda::most_attention_bytes) const {
    return cuda::attention_steps(name, shape(), most_bytes);
  }

  std::string name;
  graph::Attributes attributes = {{"causal", std::int64_t{1}},
                                  {"window", std::int64_t{0}},
                                  {"scale", 0.0},
                                  {"dropout", 0.0},
                                  {"stream", "attention"}};
  std::vector<graph::TensorType> inputs;
  std::vector<graph::TensorType> outputs;
};

const Kernel& kernel_of(std::string_view op) {
  static const std::vector<LibraryKernel> all = kernels_of_device("cuda-emulated");
  return std::ranges::find(all, op, &LibraryKernel::op)->kernel;
}

/// An op on a fake GPU.
struct OnCudnn : test::OnFakeCudnn<Op> {
  explicit OnCudnn(const Op& of, int capability = 90)
      : OnFakeCudnn(of, kernel_of(of.name), {.capability = capability}) {
    std::int64_t place = 0;
    for (const auto& [types, views] : {std::pair(&op.inputs, &inputs), std::pair(&op.outputs, &outputs)}) {
      for (const graph::TensorType& type : *types) {
        views->push_back(view(place, type));
        place += 1 << 19;
      }
    }
    scratch = {memory->data() + (12 << 20) + 64, device.scratch_bytes(kernel, op.shape(), 1)};
    write_inputs([](std::int64_t i) { return std::sin(static_cast<double>(i * i % 101 + i)); });
  }

  using OnFakeCudnn::prepare;
  void prepare(const cuda::FindAttention* library, std::int64_t most_bytes = cuda::most_attention_bytes) {
    prepared = cuda::prepare_attention(library, to_prepare(), most_bytes);
  }

  /// All results of a run.
  [[nodiscard]] std::vector<double> result() {
    queue->run(*prepared, false, {});
    std::vector<double> all;
    for (const TensorView& output : outputs) {
      const std::vector<double> values = read(output);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
  /// Runs the op as the device prepares it, and checks that the results nearly equal those of our own kernel. Returns
  /// the number of plans that ran.
  [[nodiscard]] std::int64_t runs_of_library() {
    prepare(nullptr);
    const std::vector<double> expected = result();
    prepare();
    const std::int64_t before = fake::cudnn_counts().runs;
    const std::vector<double> found = result();
    double largest = 0;
    double difference = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      largest = std::max(largest, std::abs(expected[i]));
      difference = std::max(difference, std::abs(expected[i] - found[i]));
    }
    CHECK(largest > 0.5);
    CHECK(difference < largest / 64);
    return fake::cudnn_counts().runs - before;
  }
};

std::vector<Op> all_ops() { return {Op(true), Op(true, true), Op(false), Op(false, true)}; }

}  // namespace

TEST_CASE("cuDNN computes attention, and equals our own kernels", "[unit]") {
  for (Op op : all_ops()) {
    for (const std::int64_t causal : {1, 0}) {
      op.set("causal", causal);
      INFO(op.name << " " << causal);
      CHECK(OnCudnn(op).runs_of_library() == 1);
    }
  }
}

TEST_CASE("the gradient of attention has the same bits in parts of samples or of heads", "[unit]") {
  for (const bool is_packed : {true, false}) {
    OnCudnn at(Op(is_packed, true, 6));
    at.prepare();
    const std::vector<double> expected = at.result();
    // The smallest part is one head of keys of one sample.
    const std::int64_t heads = is_packed ? 1 : 2;
    const std::int64_t of_head = heads * 2 * 64 * 128 + (is_packed ? 0 : heads * 2 * 2 * 9 * 8);
    const std::int64_t key_heads = is_packed ? 4 : 2;
    const std::pair<std::int64_t, std::int64_t> cases[] = {{3 * key_heads, 2},  // three samples
                                                           {4 * key_heads, 2},  // four are no part of six
                                                           {key_heads, 6},  // parts of four samples cannot make up six
                                                           {key_heads / 2, 12},  // half of its heads
                                                           {1, 6 * key_heads}};  // a head
    for (const auto& [fit, parts] : cases) {
      INFO(fit << " heads fit");
      at.prepare(at.device.attention(), fit * of_head);
      const std::int64_t before = fake::cudnn_counts().runs;

      CHECK(at.result() == expected);

      CHECK(fake::cudnn_counts().runs == before + parts);
    }
    // Even if that part does not fit, it is made.
    CHECK(at.op.steps(1)->parts_of_batch * at.op.steps(1)->part.parts_of_heads == 6 * key_heads);
  }
}

TEST_CASE("our own kernels compute the attention that the library does not take", "[unit]") {
  for (const Op& op : all_ops()) {
    INFO(op.name);
    Op other = op;
    other.set("dropout", 0.25);
    CHECK(OnCudnn(other).runs_of_library() == 0);

    other = op;
    for (auto* const types : {&other.inputs, &other.outputs}) {
      std::ranges::for_each(*types, [](graph::TensorType& type) { type.dtype = DType::f32; });
    }
    CHECK(OnCudnn(other).runs_of_library() == 0);
  }
  for (const bool is_gradient : {false, true}) {
    Op op(false, is_gradient);
    op.set("window", std::int64_t{3});
    CHECK(OnCudnn(op).runs_of_library() == 0);

    Op masked(false, is_gradient);
    masked.inputs.push_back(type_of({9, 9}));
    CHECK(OnCudnn(masked).runs_of_library() == 0);

    CHECK(OnCudnn(Op(true, is_gradient, 2, 9, 12)).runs_of_library() == 0);
  }
}

TEST_CASE("cuDNN computes attention on a later part of the queries only without a causal mask", "[unit]") {
  for (const bool is_gradient : {false, true}) {
    for (const std::int64_t causal : {1, 0}) {
      Op op(false, is_gradient);
      op.set("causal", causal);
      OnCudnn at(op);
      at.inputs[0].origin[1] = 4;
      at.inputs[0].global[1] = 13;
      CHECK(at.runs_of_library() == 1 - causal);
    }
  }
}

TEST_CASE("our own kernels compute attention if tensors are not aligned to 16 bytes", "[unit]") {
  OnCudnn at(Op(true));
  at.outputs[0].data = at.outputs[0].address_of(4);
  CHECK(at.runs_of_library() == 0);
}

TEST_CASE("cuDNN computes the gradient of attention on GPUs where its engines are known to be reproducible", "[unit]") {
  for (const auto& [capability, runs] : {std::pair(80, 1), std::pair(90, 1), std::pair(100, 0)}) {
    INFO(capability);
    CHECK(OnCudnn(Op(false), capability).runs_of_library() == 1);
    CHECK(OnCudnn(Op(false, true), capability).runs_of_library() == runs);
  }
}

TEST_CASE("our own kernels compute attention if cuDNN has no engine or cannot load its kernels", "[unit]") {
  for (const auto& [variable, value] :
       {std::pair("FAKE_CUDNN_NONE", "1"), std::pair("FAKE_CUDNN_FAIL", "cudnnBackendExecute"),
        std::pair("FAKE_CUDA_NO_GRAPHS", "1")}) {
    INFO(variable);
    const Variable set(variable, value);
    CHECK(OnCudnn(Op(true)).runs_of_library() == 0);
  }
}

TEST_CASE("attention uses cuDNN when plans can be made only with a handle", "[unit]") {
  for (const char* const refuses : {"cudnnBackendFinalize", "cudnnBackendExecute"}) {
    const Variable wants("FAKE_CUDNN_WANTS_HANDLE", refuses);
    for (const Op& op : all_ops()) {
      INFO(refuses << " " << op.name);
      CHECK(OnCudnn(op).runs_of_library() == 1);
    }
  }
}

TEST_CASE("the gradient of attention has no fixed order if that is asked for", "[.][fastest]") {
  for (const bool is_packed : {true, false}) {
    OnCudnn at(Op(is_packed, true));
    at.prepare(nullptr);
    const std::vector<double> own = at.result();
    at.prepare();
    const std::int64_t before = fake::cudnn_counts().runs;

    const std::vector<double> first = at.result();
    const std::vector<double> second = at.result();

    CHECK(fake::cudnn_counts().runs == before + 2);
    CHECK(first != second);
    // In the first element of each of dq, dk and dv, the fake's engine differs from our kernel.
    std::int64_t others = 0;
    for (std::size_t i = 0; i < own.size(); ++i) {
      others += std::abs(first[i] - own[i]) > 0.125 ? 1 : 0;
    }
    CHECK(others == 3);
  }
  OnCudnn forward{Op(true)};
  CHECK(forward.runs_of_library() == 1);
  CHECK(forward.result() == forward.result());
}

TEST_CASE("the gradient of attention has a fixed order if its sums do not fit into the scratch", "[.][fastest]") {
  OnCudnn at(Op(true, true, 1, 64, 256));
  CHECK(at.runs_of_library() == 1);
  CHECK(at.result() == at.result());
}

TEST_CASE("equal attention ops choose an engine once", "[unit]") {
  OnCudnn at(Op(false, true));
  at.prepare();
  const std::int64_t before = fake::cudnn_counts().choices;
  at.prepare();
  CHECK(fake::cudnn_counts().choices == before);
  at.op.set("scale", 0.5);
  CHECK(at.runs_of_library() == 1);
  CHECK(fake::cudnn_counts().choices == before);
}

TEST_CASE("scratch of attention follows from shapes and types, and covers our own kernels", "[unit]") {
  const auto bytes_of = [](const Op& op) { return static_cast<std::int64_t>(op.steps().value().scratch_bytes); };
  // 64 samples: 2 MiB of probabilities a head, and at most 256 MiB in all: 32 samples of 4 heads are a part.
  const Op large(true, true, 64, 1024, 64);
  CHECK(large.steps()->part.batch == 32);
  CHECK(large.steps()->parts_of_batch == 2);
  const std::int64_t sums = 32 * 4 * 1024 * 4;
  const std::int64_t probabilities = std::int64_t{32} * 4 * 1024 * 1024 * 2;
  CHECK(bytes_of(large) >= probabilities + sums);
  CHECK(bytes_of(large) < probabilities + sums + 8192);
  CHECK(bytes_of(Op(true, false, 64, 1024, 64)) < 8192);
  // A head of 16384 queries and keys alone takes 512 MiB. One may take 1 GiB: 23168 of them, or 16256 with two heads of
  // queries for one of keys.
  CHECK(Op(true, true, 1, 16384, 64).steps()->part.parts_of_heads == 4);
  CHECK(Op(true, true, 1, 23168, 64).steps());
  CHECK_FALSE(Op(true, true, 1, 23169, 64).steps());
  CHECK(Op(false, true, 1, 16256, 128).steps()->part.parts_of_heads == 2);
  CHECK_FALSE(Op(false, true, 1, 16385, 128).steps());

  for (const Op& op : {large, Op(true, true, 1, 16384, 64), Op(true, true, 1, 23169, 64)}) {
    const std::size_t planned = cuda::CudaDevice().scratch_bytes(kernel_of(op.name), op.shape(), 1);
    CHECK(planned >= static_cast<std::size_t>(graph::element_count(op.inputs[2])) * sizeof(float));
    CHECK(planned >= (op.steps() ? op.steps()->scratch_bytes : 0));
  }
}

TEST_CASE("attention touches all of its scratch when it first runs", "[unit]") {
  for (const bool is_own : {false, true}) {
    OnCudnn at(Op(true, true));
    at.check_touches_scratch([&] { at.prepare(is_own ? nullptr : at.device.attention()); });
  }
}

TEST_CASE("a call of cuDNN that fails names attention, its sizes and the status", "[unit]") {
  OnCudnn at(Op(true));
  static_cast<void>(at.device.attention());
  {
    const Variable failing("FAKE_CUDNN_FAIL", "cudnnBackendGetAttribute");
    CHECK_THAT(test::error_of([&] { at.prepare(); }),
               Contains("op attention: attention bf16[2, 9, 4, 8], 9 keys of 4 heads, causal, packed: cuDNN 9.19.0: "
                        "cudnnBackendGetAttribute") &&
                   Contains(" returned CUDNN_STATUS_EXECUTION_FAILED"));
  }
  at.prepare();
  const Variable failing("FAKE_CUDNN_FAIL", "cudnnBackendExecute");
  CHECK_THAT(test::error_of([&] { at.queue->run(*at.prepared, false, {}); }),
             Contains("GPU 0: op attention: attention bf16[") &&
                 Contains("cudnnBackendExecute returned CUDNN_STATUS_EXECUTION_FAILED"));
}
