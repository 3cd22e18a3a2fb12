#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>

#include "core/base/error.h"
#include "core/device/contraction.h"
#include "core/device/cpu/element_nest.h"
#include "core/device/cpu/few_rows.h"
#include "core/device/cpu/prepared_product.h"
#include "core/device/cpu/sgemm.h"
#include "core/device/host_device.h"
#include "core/device/queue.h"
#include "core/device/threads.h"

namespace shardrun::device::cpu {
namespace {

/// Adds a loop around the others, or merges it with the outermost of them if the strides allow.
void add_outer(NestLoops& nest, const NestLoop& loop) {
  if (loop.size == 1) {
    return;
  }
  if (nest.count > 0) {
    NestLoop& last = nest.loops[nest.count - 1];
    if (loop.a == last.size * last.a && loop.b == last.size * last.b && loop.y == last.size * last.y) {
      last.size *= loop.size;
      return;
    }
  }
  nest.loops[nest.count++] = loop;
}

NestLoops loops_over(const Contraction& of, const std::string& letters) {
  const auto& [a, b, y] = of.tensors;
  NestLoops nest;
  for (auto letter = letters.rbegin(); letter != letters.rend(); ++letter) {
    add_outer(nest, {.size = of.size(*letter), .a = a.stride(*letter), .b = b.stride(*letter), .y = y.stride(*letter)});
  }
  return nest;
}

/// Whether the iterations of a loop have consecutive elements, or all the same element, in each tensor.
bool has_vectors(const NestLoop& loop, bool sums) {
  return loop.a + loop.b > 0 && loop.a <= 1 && loop.b <= 1 && (sums || loop.y == 1);
}

/// Estimates how fast a nest is if its vectors run along this loop. A vector of strided elements takes as long as
/// `penalty` vectors of consecutive ones.
std::int64_t worth_as_vectors(const NestLoop& loop, bool sums) {
  constexpr std::int64_t longest_vector = 16;
  constexpr std::int64_t penalty = 8;
  return std::min(loop.size, longest_vector) * (has_vectors(loop, sums) ? penalty : 1);
}

/// The loops of an einsum that is not computed as matrix products.
ElementNest element_nest(const Contraction& of) {
  ElementNest nest = {.kept = loops_over(of, of.tensors[2].letters), .summed = loops_over(of, of.summed)};
  NestLoops* from = nullptr;
  int chosen = 0;
  for (NestLoops* loops : {&nest.kept, &nest.summed}) {
    const bool sums = loops == &nest.summed;
    for (int i = 0; i < loops->count; ++i) {
      if (from == nullptr || worth_as_vectors(loops->loops[i], sums) > worth_as_vectors(nest.vectors, nest.sums)) {
        from = loops;
        chosen = i;
        nest.vectors = loops->loops[i];
        nest.sums = sums;
      }
    }
  }
  if (from != nullptr) {
    std::copy(from->loops + chosen + 1, from->loops + from->count, from->loops + chosen);
    --from->count;
  }
  if (!has_vectors(nest.vectors, nest.sums)) {
    nest.operands = ElementNest::Operands::strided;
    return nest;
  }
  nest.swapped = nest.vectors.a == 0;
  if (nest.swapped) {
    std::swap(nest.vectors.a, nest.vectors.b);
    for (NestLoops* loops : {&nest.kept, &nest.summed}) {
      for (NestLoop& loop : loops->loops) {
        std::swap(loop.a, loop.b);
      }
    }
  }
  nest.operands = nest.vectors.b == 0 ? ElementNest::Operands::a_consecutive : ElementNest::Operands::both_consecutive;
  return nest;
}

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
  /// Whether the threads divide the batch. Otherwise they divide the tiles of each product.
  [[nodiscard]] bool shares_batch(int threads) const { return batch_ > 1 && batch_ >= threads; }

  [[nodiscard]] std::size_t product_bytes(int threads) const {
    return shares_batch(threads) ? static_cast<std::size_t>(threads) * product_.scratch_bytes(1)
                                 : product_.scratch_bytes(threads);
  }

  /// The product for batch index `number`.
  [[nodiscard]] Product at(const std::array<std::byte*, 3>& data, std::int64_t number) const {
    Product product = contraction_.product;
    const std::array<Operand*, 3> operands = {&product.a, &product.b, &product.c};
    for (std::size_t t = 0; t < 3; ++t) {
      const Lettered& packed = contraction_.packed[t];
      const auto offset = static_cast<std::size_t>(contraction_.offset(t, number));
      operands[t]->data = data[t] + offset * graph::element_bytes(packed.dtype);
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
  std::array<std::vector<std::int64_t>, 3> strides_;  ///< of each unpacked tensor, in the packed order of letters
  std::array<std::size_t, 3> begin_ = {};             ///< where each packed tensor begins in the scratch
  std::size_t packed_bytes_ = 0;
  std::int64_t batch_ = 1;
  bool touched_ = false;  ///< whether touch_pages() has touched the scratch
};

/// Throws Error{job} if the einsum asks for sums in a fixed order and this device cannot compute it so.
Contraction contraction_of(const graph::OpShape& shape) {
  Contraction contraction(graph::parse_einsum(shape.attributes.text("spec")), shape);
  const bool fits = contraction.products && (contraction.product.m == 0 || has_few_rows(contraction.product));
  if (graph::has_fixed_order(shape.attributes) && !fits) {
    throw Error(ErrorCode::job,
                fmt::format("einsum '{}' of {} and {}: the device cpu cannot add in a fixed order here: its first "
                            "operand must be float32 with what is summed over last",
                            shape.attributes.text("spec"), to_string(shape.inputs[0]), to_string(shape.inputs[1])));
  }
  return contraction;
}

/// The state of an instruction that computes an einsum. It is made once and used by every call.
struct Prepared {
  std::unique_ptr<Products> products;  ///< null: the nest is run instead
  ElementNest nest;
};

std::shared_ptr<void> prepare(const graph::OpShape& shape) {
  Contraction contraction = contraction_of(shape);
  auto prepared = std::make_shared<Prepared>();
  if (contraction.products) {
    if (!has_few_rows(contraction.product)) {
      set_up_sgemm(contraction.product);
    }
    prepared->products = std::make_unique<Products>(std::move(contraction));
  } else {
    prepared->nest = element_nest(contraction);
  }
  return prepared;
}

std::size_t scratch_bytes(const graph::OpShape& shape, int threads) {
  Contraction contraction = contraction_of(shape);
  return contraction.products ? Products(std::move(contraction)).scratch_bytes(threads) : 0;
}

void run(const KernelCall& call) {
  const auto& prepared = *static_cast<const Prepared*>(call.prepared);
  prepared.products != nullptr ? prepared.products->run(call) : run_nest(prepared.nest, call);
}

const RegisterKernel register_einsum("cpu", "einsum", {run, scratch_bytes, prepare});

}  // namespace
}  // namespace shardrun::device::cpu
