#include <algorithm>
#include <array>
#include <memory>

#include "core/device/cpu/contraction.h"
#include "core/device/cpu/prepared_product.h"
#include "core/device/cpu/views.h"
#include "core/device/host_device.h"
#include "core/device/queue.h"

namespace shardrun::device::cpu {
namespace {

using namespace SHARDRUN_KERNEL_VARIANT;

/// Loops over some letters, the last one innermost, and where the elements of a and b lie.
struct LetterLoops {
  LetterLoops(const Contraction& of, const std::string& letters) : count(letters.size()) {
    const auto& [a, b, y] = of.tensors;
    for (std::size_t i = 0; i < count; ++i) {
      sizes[i] = a.letters.find(letters[i]) == std::string::npos ? b.size(letters[i]) : a.size(letters[i]);
      a_strides[i] = a.stride(letters[i]);
      b_strides[i] = b.stride(letters[i]);
      total *= sizes[i];
    }
  }
  void add_offsets(std::int64_t number, std::int64_t& in_a, std::int64_t& in_b) const {
    for (std::size_t i = count; i-- > 0;) {
      in_a += number % sizes[i] * a_strides[i];
      in_b += number % sizes[i] * b_strides[i];
      number /= sizes[i];
    }
  }

  std::size_t count;
  std::int64_t total = 1;
  std::array<std::int64_t, 2 * max_rank> sizes = {};  // operands of max_rank dimensions each
  std::array<std::int64_t, 2 * max_rank> a_strides = {};
  std::array<std::int64_t, 2 * max_rank> b_strides = {};
};

/// An einsum that is not worth a product of matrices: element by element of the result.
class ElementLoops {
 public:
  explicit ElementLoops(const Contraction& contraction)
      : kept_(contraction, contraction.tensors[2].letters),
        outer_(contraction, contraction.summed.substr(0, std::max<std::size_t>(contraction.summed.size(), 1) - 1)),
        inner_(contraction, contraction.summed.substr(outer_.count)) {}

  void run(const KernelCall& call) const {
    const auto a = reals<Reals>(call.inputs[0]);
    const auto b = reals<Reals>(call.inputs[1]);
    const auto y = reals<Reals>(call.outputs[0]);
    const std::int64_t work = outer_.total * inner_.total;
    call.threads.split(kept_.total, row_grain(work), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        double sum = call.accumulate ? static_cast<double>(get(y, i)) : 0;
        for (std::int64_t r = 0; r < outer_.total; ++r) {
          std::int64_t in_a = 0;
          std::int64_t in_b = 0;
          kept_.add_offsets(i, in_a, in_b);
          outer_.add_offsets(r, in_a, in_b);
          sum += inner_sum(a + in_a, b + in_b);
        }
        put(y, i, static_cast<float>(sum));
      }
    });
  }

 private:
  [[nodiscard]] double inner_sum(Reals a, Reals b) const {
    double sum = 0;
    for (std::int64_t r = 0; r < inner_.total; ++r) {
      sum +=
          static_cast<double>(get(a, r * inner_.a_strides[0])) * static_cast<double>(get(b, r * inner_.b_strides[0]));
    }
    return sum;
  }

  LetterLoops kept_;
  LetterLoops outer_;
  LetterLoops inner_;  ///< the last of the summed letters
};

/// An einsum as products of matrices.
class Products {
 public:
  explicit Products(Contraction contraction) : contraction_(std::move(contraction)), product_(contraction_.product) {
    for (std::size_t t = 0; t < 3; ++t) {
      const Lettered& packed = contraction_.packed[t];
      for (const char letter : packed.letters) {
        strides_[t].push_back(contraction_.tensors[t].stride(letter));
      }
      begin_[t] = packed_bytes_;
      if (contraction_.copied[t]) {
        const auto elements = static_cast<std::size_t>(packed.elements());
        packed_bytes_ += (elements * graph::element_bytes(packed.dtype) + 63) / 64 * 64;
      }
    }
    batch_ = contraction_.tensors[2].count(contraction_.batch);
  }

  [[nodiscard]] std::size_t scratch_bytes(int threads) const { return packed_bytes_ + product_bytes(threads); }

  void run(const KernelCall& call) {
    std::array<std::byte*, 3> data = {static_cast<std::byte*>(call.inputs[contraction_.swapped ? 1 : 0].data),
                                      static_cast<std::byte*>(call.inputs[contraction_.swapped ? 0 : 1].data),
                                      static_cast<std::byte*>(call.outputs[0].data)};
    std::byte* const result = data[2];
    for (std::size_t t = 0; t < 3; ++t) {
      if (contraction_.copied[t]) {
        std::byte* const packed = call.scratch.data() + begin_[t];
        if (t < 2 || call.accumulate) {
          pack(t, data[t], packed, true, call.threads);
        }
        data[t] = packed;
      }
    }
    multiply(data, call.accumulate, call.threads, call.scratch.data() + packed_bytes_);
    if (contraction_.copied[2]) {
      pack(2, result, data[2], false, call.threads);
    }
  }

 private:
  /// Whether the threads share the batch, not the tiles of one product after the other.
  [[nodiscard]] bool shares_batch(int threads) const { return batch_ > 1 && batch_ >= threads; }

  [[nodiscard]] std::size_t product_bytes(int threads) const {
    return shares_batch(threads) ? static_cast<std::size_t>(threads) * product_.scratch_bytes(1)
                                 : product_.scratch_bytes(threads);
  }

  /// The product of index `number` of the batch.
  [[nodiscard]] Product at(const std::array<std::byte*, 3>& data, std::int64_t number) const {
    Product product = contraction_.product;
    const std::array<Operand*, 3> operands = {&product.a, &product.b, &product.c};
    for (std::size_t t = 0; t < 3; ++t) {
      const Lettered& packed = contraction_.packed[t];
      const std::int64_t offset = packed.offset(contraction_.batch, number);
      operands[t]->data = data[t] + static_cast<std::size_t>(offset) * graph::element_bytes(packed.dtype);
    }
    return product;
  }

  void multiply(const std::array<std::byte*, 3>& data, bool accumulate, Threads& threads, std::byte* scratch) {
    if (!shares_batch(threads.count())) {
      for (std::int64_t number = 0; number < batch_; ++number) {
        product_.run(at(data, number), accumulate, threads, scratch);
      }
      return;
    }
    const std::size_t share = product_.scratch_bytes(1);
    const int parts = threads.count();
    threads.run(parts, [&](int part) {
      std::byte* const room = scratch + static_cast<std::size_t>(part) * share;
      if (!touched_) {
        touch_pages(room, share);
      }
      for (std::int64_t number = batch_ * part / parts; number < batch_ * (part + 1) / parts; ++number) {
        product_.run_alone(at(data, number), accumulate, room);
      }
    });
    touched_ = true;
  }

  /// Copies a tensor into its packed form, or back.
  void pack(std::size_t t, std::byte* tensor, std::byte* packed, bool forward, Threads& threads) const {
    const Lettered& form = contraction_.packed[t];
    const std::size_t bytes = graph::element_bytes(form.dtype);
    threads.split(form.sizes[0], 1, [&](std::int64_t begin, std::int64_t end) {
      std::array<std::int64_t, max_rank> shape = {};
      std::ranges::copy(form.sizes, shape.begin());
      shape[0] = end - begin;
      std::byte* const there = tensor + static_cast<std::size_t>(begin * strides_[t][0]) * bytes;
      std::byte* const here = packed + static_cast<std::size_t>(begin * form.strides[0]) * bytes;
      copy_on_host({.from = forward ? there : here,
                    .to = forward ? here : there,
                    .element_bytes = bytes,
                    .shape = {shape.data(), form.sizes.size()},
                    .from_strides = forward ? strides_[t] : form.strides,
                    .to_strides = forward ? form.strides : strides_[t]});
    });
  }

  Contraction contraction_;
  PreparedProduct product_;
  std::array<std::vector<std::int64_t>, 3> strides_;  ///< of each tensor as it is, in the order of its packed form
  std::array<std::size_t, 3> begin_ = {};             ///< of each packed tensor, in the scratch
  std::size_t packed_bytes_ = 0;
  std::int64_t batch_ = 1;
  bool touched_ = false;  ///< the scratch of products whose batch is shared
};

/// What an instruction keeps: one of both.
struct Prepared {
  std::unique_ptr<Products> products;
  std::unique_ptr<ElementLoops> loops;
};

std::shared_ptr<void> prepare(const graph::OpShape& shape) {
  Contraction contraction(shape);
  auto prepared = std::make_shared<Prepared>();
  if (contraction.products) {
    prepared->products = std::make_unique<Products>(std::move(contraction));
  } else {
    prepared->loops = std::make_unique<ElementLoops>(contraction);
  }
  return prepared;
}

std::size_t scratch_bytes(const graph::OpShape& shape, int threads) {
  Contraction contraction(shape);
  return contraction.products ? Products(std::move(contraction)).scratch_bytes(threads) : 0;
}

void run(const KernelCall& call) {
  const auto& prepared = *static_cast<const Prepared*>(call.prepared);
  prepared.products != nullptr ? prepared.products->run(call) : prepared.loops->run(call);
}

const RegisterKernel register_einsum("cpu", "einsum", {run, scratch_bytes, prepare});

}  // namespace
}  // namespace shardrun::device::cpu
