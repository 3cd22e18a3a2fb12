#include "core/device/cuda/runtime/library_ops.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/device/cuda/runtime/cudnn_library.h"

namespace shardrun::device::cuda {
namespace {

/// The addresses of the whole tensors of attention.
struct AttentionTensors {
  const TensorView* q;
  const TensorView* k;
  const TensorView* v;
  const TensorView* out;
  const TensorView* log_sum_exp;
  const TensorView* dout = nullptr;
  const TensorView* dq = nullptr;
  const TensorView* dk = nullptr;
  const TensorView* dv = nullptr;
};

AttentionTensors tensors_of(const OpToPrepare& op, const FusedAttention& part) {
  const auto& in = op.inputs;
  const auto& out = op.outputs;
  const std::size_t operands = part.is_packed ? 1 : 3;  // q, k and v
  const TensorView* const k = &in[operands == 1 ? 0 : 1];
  const TensorView* const v = &in[operands == 1 ? 0 : 2];
  if (!part.is_gradient) {
    return {.q = &in[0], .k = k, .v = v, .out = &out[0], .log_sum_exp = &out[1]};
  }
  return {.q = &in[0],
          .k = k,
          .v = v,
          .out = &in[operands],
          .log_sum_exp = &in[operands + 1],
          .dout = &in[operands + 2],
          .dq = &out[0],
          .dk = &out[operands == 1 ? 0 : 1],
          .dv = &out[operands == 1 ? 0 : 2]};
}

/// The memory of the part that begins at this sample and this head.
AttentionMemory memory_of(const AttentionTensors& of, const FusedAttention& part, std::int64_t sample,
                          std::int64_t heads_before) {
  const std::int64_t key_heads_before = heads_before / (part.heads / part.key_heads);
  const std::int64_t q = sample * part.queries * part.query_row() + heads_before * part.width;
  const std::int64_t k = sample * part.keys * part.key_row() + key_heads_before * part.width;
  const std::int64_t out = sample * part.queries * part.out_row() + heads_before * part.width;
  // In packed rows, q, k and v follow each other.
  const std::int64_t third = part.is_packed ? part.out_row() : 0;
  const auto at = [](const TensorView* tensor, std::int64_t element) -> void* {
    return tensor == nullptr ? nullptr : tensor->address_of(element);
  };
  return {.q = at(of.q, q),
          .k = at(of.k, k + third),
          .v = at(of.v, k + 2 * third),
          .out = at(of.out, out),
          .log_sum_exp = at(of.log_sum_exp, (sample * part.heads * part.parts_of_heads + heads_before) * part.queries),
          .dout = at(of.dout, out),
          .dq = at(of.dq, q),
          .dk = at(of.dk, k + third),
          .dv = at(of.dv, k + 2 * third)};
}

bool is_for_library(const OpToPrepare& op, const AttentionSteps& steps) {
  // cuDNN's causal mask counts queries from 0, so it is wrong for a shard's later queries.
  if (steps.part.is_causal && op.inputs[0].origin[1] != 0) {
    return false;
  }
  const auto is_aligned = [](const TensorView& tensor) {
    return reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0;
  };
  return std::ranges::all_of(op.inputs, is_aligned) && std::ranges::all_of(op.outputs, is_aligned);
}

LibraryWork work_of(const FindAttention& find, const OpToPrepare& op, std::int64_t most_bytes) {
  const std::vector<graph::TensorType> inputs = op.input_types();
  const std::vector<graph::TensorType> outputs = op.output_types();
  const std::optional<AttentionSteps> steps =
      attention_steps(op.kernel.op, {op.attributes, inputs, outputs}, most_bytes);
  if (!steps || !is_for_library(op, *steps)) {
    return nullptr;
  }
  const FusedAttention& part = steps->part;
  std::byte* const scratch = op.scratch_at(AttentionSteps::alignment, steps->scratch_bytes);
  const AttentionTensors tensors = tensors_of(op, part);
  std::vector<AttentionRun> runs;
  for (std::int64_t b = 0; b < steps->parts_of_batch; ++b) {
    for (std::int64_t h = 0; h < part.parts_of_heads; ++h) {
      AttentionMemory memory = memory_of(tensors, part, b * part.batch, h * part.heads);
      memory.sums = scratch;
      memory.workspace = {scratch + steps->sums_bytes, steps->workspace_bytes};
      runs.push_back(find(part, steps->scale, memory));
      if (!runs.back()) {
        return nullptr;
      }
    }
  }
  return [runs = std::move(runs)](const KernelCall& call) {
    for (const AttentionRun& run : runs) {
      run(static_cast<cudaStream_t>(call.stream));
    }
  };
}

}  // namespace

std::unique_ptr<const PreparedKernel> prepare_attention(const FindAttention* library, OpToPrepare op,
                                                        std::int64_t most_bytes) {
  return prepare_for_library(op, [&] { return library == nullptr ? nullptr : work_of(*library, op, most_bytes); });
}

}  // namespace shardrun::device::cuda
