#include <algorithm>
#include <memory>
#include <vector>

#include "core/device/cpu/bf16_product.h"
#include "core/device/cpu/sgemm.h"
#include "core/device/cpu/widened_product.h"
#include "core/device/device.h"

namespace shardrun::device::cpu {
namespace {

/// What a product needs to know of a tensor, with or without memory.
struct Tensor {
  explicit Tensor(const TensorView& view)
      : shape(view.shape.data()), rank(view.rank), dtype(view.dtype), data(static_cast<std::byte*>(view.data)) {}
  explicit Tensor(const graph::TensorType& type)
      : shape(type.shape.data()), rank(static_cast<std::uint32_t>(type.shape.size())), dtype(type.dtype) {}

  /// Product of the dimensions [first, last).
  [[nodiscard]] std::int64_t extent(std::uint32_t first, std::uint32_t last) const {
    std::int64_t product = 1;
    for (std::uint32_t d = first; d < last; ++d) {
      product *= shape[d];
    }
    return product;
  }
  [[nodiscard]] Operand matrix(std::int64_t stride, bool transposed = false) const {
    return {data, dtype, stride, transposed};
  }

  const std::int64_t* shape;
  std::uint32_t rank;
  graph::DType dtype;
  std::byte* data = nullptr;
};

/// The matrices of an op's operands and result.
using ProductOf = Product(const graph::Attributes& attributes, const Tensor& x, const Tensor& second, const Tensor& y);

/// x: [L, K...]   w: [K..., N...], or [N..., K...] when transposed   y: [L, N...]
Product matmul(const graph::Attributes& attributes, const Tensor& x, const Tensor& w, const Tensor& y) {
  const bool transposed = attributes.integer("transpose") != 0;
  const std::uint32_t lead = x.rank - static_cast<std::uint32_t>(attributes.integer("contract"));
  const std::int64_t k = x.extent(lead, x.rank);
  const std::int64_t n = y.extent(lead, y.rank);
  return {x.extent(0, lead), n, k, x.matrix(k), w.matrix(transposed ? k : n, transposed), y.matrix(n)};
}

/// x: [L, K...]   dy: [L, N...]   dw: [K..., N...] = xᵀ dy, or [N..., K...] = dyᵀ x when transposed
Product gradient_weights(const graph::Attributes& attributes, const Tensor& x, const Tensor& dy, const Tensor& dw) {
  const std::uint32_t lead = x.rank - static_cast<std::uint32_t>(attributes.integer("contract"));
  const std::int64_t tokens = x.extent(0, lead);
  const std::int64_t width = x.extent(lead, x.rank);
  const std::int64_t outputs = dy.extent(lead, dy.rank);
  if (attributes.integer("transpose") != 0) {
    return {outputs, width, tokens, dy.matrix(outputs, true), x.matrix(width), dw.matrix(width)};
  }
  return {width, outputs, tokens, x.matrix(width, true), dy.matrix(outputs), dw.matrix(outputs)};
}

bool in_floats(const Product& p) {
  return p.a.dtype == graph::DType::f32 && p.b.dtype == graph::DType::f32 && p.c.dtype == graph::DType::f32;
}

void multiply_floats(const Product& product, bool accumulate, Threads& threads) {
  const Tiles tiles = sgemm_tiles(product.m, product.n, product.k);
  tiles.run(threads, [&](std::int64_t number, int) {
    const Product p = tiles.tile(product, number);
    sgemm(p.m, p.n, p.k, 1, {p.a.floats(), p.a.stride, p.a.transposed}, {p.b.floats(), p.b.stride, p.b.transposed},
          p.c.floats(), p.c.stride, accumulate);
  });
}

/// Writes to every page. The memory that the operating system counts as used is to be what is planned, and a product
/// need not use all of its scratch.
void touch_pages(std::byte* scratch, std::size_t bytes) {
  constexpr std::size_t page = 4096;
  for (std::size_t at = 0; at < bytes; at += page) {
    scratch[at] = std::byte{0};
  }
  if (bytes > 0) {
    scratch[bytes - 1] = std::byte{0};
  }
}

/// A product with bfloat16 among its matrices, made once for an instruction.
class BfloatProduct {
 public:
  explicit BfloatProduct(const Product& product) : tiles_(bf16_tiles(product.m, product.n, product.k)) {
    for (std::int64_t number = 0; number < tiles_.count; ++number) {
      const Product tile = tiles_.tile(product, number);
      const Forms forms = {bf16_product(tile, false), bf16_product(tile, true)};
      if (forms.overwriting == nullptr) {
        forms_.clear();
        tiles_ = sgemm_tiles(product.m, product.n, product.k);
        share_ = widened_scratch_bytes(product);
        return;
      }
      forms_.push_back(forms);
      const std::size_t most = std::max(forms.overwriting->scratch_bytes(), forms.adding->scratch_bytes());
      share_ = std::max(share_, (most + 63) / 64 * 64);
    }
  }

  [[nodiscard]] std::size_t scratch_bytes(int threads) const {
    return static_cast<std::size_t>(tiles_.parts(threads)) * share_;
  }

  void run(const Product& product, bool accumulate, Threads& threads, std::byte* scratch) {
    if (!touched_) {
      threads.run(tiles_.parts(threads.count()),
                  [&](int part) { touch_pages(scratch + static_cast<std::size_t>(part) * share_, share_); });
      touched_ = true;
    }
    if (forms_.empty()) {
      multiply_widened(product, accumulate, threads, scratch);
      return;
    }
    tiles_.run(threads, [&](std::int64_t number, int part) {
      const Forms& forms = forms_[static_cast<std::size_t>(number)];
      const Bf16Product& form = accumulate ? *forms.adding : *forms.overwriting;
      form.run(tiles_.tile(product, number), scratch + static_cast<std::size_t>(part) * share_);
    });
  }

 private:
  struct Forms {
    const Bf16Product* overwriting;
    const Bf16Product* adding;
  };

  Tiles tiles_;
  std::vector<Forms> forms_;  ///< of each tile; none: the matrices are widened
  std::size_t share_ = 0;     ///< bytes of scratch of one thread
  bool touched_ = false;      ///< the scratch, by the first call
};

template <ProductOf product_of>
void run(const KernelCall& call) {
  const Product product =
      product_of(call.attributes, Tensor(call.inputs[0]), Tensor(call.inputs[1]), Tensor(call.outputs[0]));
  if (in_floats(product)) {
    multiply_floats(product, call.accumulate, call.threads);
  } else {
    static_cast<BfloatProduct*>(call.prepared)->run(product, call.accumulate, call.threads, call.scratch.data());
  }
}

template <ProductOf product_of>
Product product_of_types(const graph::OpShape& shape) {
  return product_of(shape.attributes, Tensor(shape.inputs[0]), Tensor(shape.inputs[1]), Tensor(shape.outputs[0]));
}

template <ProductOf product_of>
std::size_t scratch_bytes(const graph::OpShape& shape, int threads) {
  const Product product = product_of_types<product_of>(shape);
  return in_floats(product) ? 0 : BfloatProduct(product).scratch_bytes(threads);
}

template <ProductOf product_of>
std::shared_ptr<void> prepare(const graph::OpShape& shape) {
  const Product product = product_of_types<product_of>(shape);
  return in_floats(product) ? nullptr : std::make_shared<BfloatProduct>(product);
}

template <ProductOf product_of>
constexpr Kernel kernel = {run<product_of>, scratch_bytes<product_of>, prepare<product_of>, bf16_products};

const RegisterKernel register_matmul("cpu", "matmul", kernel<matmul>);
const RegisterKernel register_gradient("cpu", "matmul_gradient_weights", kernel<gradient_weights>);

}  // namespace
}  // namespace shardrun::device::cpu
