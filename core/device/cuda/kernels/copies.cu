#include "core/device/cuda/copies.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "core/base/error.h"
#include "core/device/cuda/launch.h"

namespace shardrun::device::cuda {
namespace {

struct alignas(16) Sixteen {
  std::uint64_t low;
  std::uint64_t high;
};

/// A box of elements, the last dimension innermost. Strides are in elements.
struct Box {
  int rank = 0;
  std::int64_t shape[max_rank] = {};
  std::int64_t from_strides[max_rank] = {};
  std::int64_t to_strides[max_rank] = {};
  std::int64_t elements = 1;
};

/// `Number` is the integer type that counts elements. A 32-bit division takes a fraction of the time of a 64-bit one.
template <typename Element, typename Number>
struct CopyElement {
  Box box;
  const Element* from;
  Element* to;

  SHARDRUN_ON_DEVICE void operator()(std::int64_t element) const {
    auto index = static_cast<Number>(element);
    std::int64_t from_at = 0;
    std::int64_t to_at = 0;
    for (int d = box.rank - 1; d > 0; --d) {
      const auto size = static_cast<Number>(box.shape[d]);
      const Number rest = index / size;
      const auto i = static_cast<std::int64_t>(index - rest * size);
      from_at += i * box.from_strides[d];
      to_at += i * box.to_strides[d];
      index = rest;
    }
    if (box.rank > 0) {
      from_at += static_cast<std::int64_t>(index) * box.from_strides[0];
      to_at += static_cast<std::int64_t>(index) * box.to_strides[0];
    }
    to[to_at] = from[from_at];
  }
};

/// A copy's box without dimensions of size 1. Neighbouring dimensions that are one run in both tensors are merged.
Box merged(const StridedCopy& copy) {
  Box box;
  for (std::size_t d = 0; d < copy.shape.size(); ++d) {
    box.elements *= copy.shape[d];
    if (copy.shape[d] == 1) {
      continue;
    }
    const int last = box.rank - 1;
    if (last >= 0 && box.from_strides[last] == copy.from_strides[d] * copy.shape[d] &&
        box.to_strides[last] == copy.to_strides[d] * copy.shape[d]) {
      box.shape[last] *= copy.shape[d];
      box.from_strides[last] = copy.from_strides[d];
      box.to_strides[last] = copy.to_strides[d];
      continue;
    }
    if (box.rank == static_cast<int>(max_rank)) {
      throw Error(ErrorCode::internal, "a copy of a box has more dimensions than a tensor");
    }
    box.shape[box.rank] = copy.shape[d];
    box.from_strides[box.rank] = copy.from_strides[d];
    box.to_strides[box.rank] = copy.to_strides[d];
    ++box.rank;
  }
  return box;
}

/// The number of elements that can be copied together as one unit of up to 16 bytes.
std::int64_t run_of(const Box& box, const StridedCopy& copy) {
  const int last = box.rank - 1;
  if (last < 0 || box.from_strides[last] != 1 || box.to_strides[last] != 1) {
    return 1;
  }
  const auto fits = [&](std::int64_t run) {
    const std::size_t bytes = static_cast<std::size_t>(run) * copy.element_bytes;
    bool does = box.shape[last] % run == 0 && reinterpret_cast<std::uintptr_t>(copy.from) % bytes == 0 &&
                reinterpret_cast<std::uintptr_t>(copy.to) % bytes == 0;
    for (int d = 0; d < last; ++d) {
      does = does && box.from_strides[d] % run == 0 && box.to_strides[d] % run == 0;
    }
    return does;
  };
  std::int64_t run = static_cast<std::int64_t>(16 / copy.element_bytes);
  while (run > 1 && !fits(run)) {
    run /= 2;
  }
  return run;
}

template <typename Element>
void copy_as(const KernelCall& call, const Box& box, const StridedCopy& copy) {
  const auto* const from = static_cast<const Element*>(copy.from);
  auto* const to = static_cast<Element*>(copy.to);
  if (box.elements <= std::int64_t{std::numeric_limits<std::uint32_t>::max()}) {
    for_each(call, box.elements, CopyElement<Element, std::uint32_t>{box, from, to});
  } else {
    for_each(call, box.elements, CopyElement<Element, std::uint64_t>{box, from, to});
  }
}

/// Copies long rows whose elements cannot be combined into larger units: a warp copies a piece of a row, and computes
/// the piece's place once.
template <typename Element>
struct CopyPieces {
  static constexpr int of_thread = 8;
  static constexpr std::int64_t length = of_thread * warp_size;

  Box box;
  const Element* from;
  Element* to;

  [[nodiscard]] static std::int64_t of_row(const Box& box) { return (box.shape[box.rank - 1] + length - 1) / length; }

  SHARDRUN_ON_DEVICE void operator()(std::int64_t thread) const {
    const int last = box.rank - 1;
    const std::int64_t pieces = (box.shape[last] + length - 1) / length;
    std::int64_t row = thread / warp_size / pieces;
    const std::int64_t begin = thread / warp_size % pieces * length + thread % warp_size;
    std::int64_t from_at = 0;
    std::int64_t to_at = 0;
    for (int d = last - 1; d >= 0; --d) {
      const std::int64_t rest = row / box.shape[d];
      const std::int64_t i = row - rest * box.shape[d];
      from_at += i * box.from_strides[d];
      to_at += i * box.to_strides[d];
      row = rest;
    }
    for (std::int64_t i = begin; i < begin + length && i < box.shape[last]; i += warp_size) {
      to[to_at + i] = from[from_at + i];
    }
  }
};

template <typename Element>
void copy_pieces(const KernelCall& call, const Box& box, const StridedCopy& copy) {
  const std::int64_t rows = box.elements / box.shape[box.rank - 1];
  for_each(call, rows * CopyPieces<Element>::of_row(box) * warp_size,
           CopyPieces<Element>{box, static_cast<const Element*>(copy.from), static_cast<Element*>(copy.to)});
}

/// Whether consecutive elements of a row are consecutive in memory, and rows are long enough for a warp.
bool has_long_rows(const Box& box) {
  const int last = box.rank - 1;
  return last >= 0 && box.from_strides[last] == 1 && box.to_strides[last] == 1 &&
         box.shape[last] >= CopyPieces<std::uint16_t>::length;
}

template <typename Element>
struct FillElement {
  Element* data;
  Element value;
  SHARDRUN_ON_DEVICE void operator()(std::int64_t index) const { data[index] = value; }
};

template <typename Element>
void fill_as(const KernelCall& call, void* data, std::int64_t count, std::uint64_t bits) {
  for_each(call, count, FillElement<Element>{static_cast<Element*>(data), static_cast<Element>(bits)});
}

/// In infinities and NaN all bits of the exponent are set. A block writes at most once, because `finite` may be in the
/// host's memory.
template <typename Element>
struct FindNonFinite {
  const Element* data;
  std::int64_t count;
  Element exponent;
  std::int32_t* finite;
  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    std::int32_t found = 0;
    const std::int64_t step = block.blocks() * block.threads();
    for (std::int64_t i = block.index() * block.threads() + block.thread(); i < count; i += step) {
      found |= (data[i] & exponent) == exponent ? 1 : 0;
    }
    if (block_sum(block, found) != 0 && block.thread() == 0) {
      *finite = 0;
    }
  }
};

template <typename Element>
void find_in(const KernelCall& call, const TensorView& tensor, Element exponent, std::int32_t* finite) {
  constexpr std::int64_t most_blocks = 4096;
  const std::int64_t count = tensor.elements();
  launch(call, std::min((count + most_threads - 1) / most_threads, most_blocks), most_threads, 0,
         FindNonFinite<Element>{static_cast<const Element*>(tensor.data), count, exponent, finite});
}

struct FindWritten {
  const std::uint32_t* data;
  std::int64_t words;
  std::uint32_t word;
  std::uint8_t* pages;
  SHARDRUN_ON_DEVICE void operator()(std::int64_t page) const {
    constexpr std::int64_t of_page = static_cast<std::int64_t>(page_bytes / sizeof(std::uint32_t));
    const std::int64_t end = (page + 1) * of_page < words ? (page + 1) * of_page : words;
    for (std::int64_t i = page * of_page; i < end; ++i) {
      if (data[i] != word) {
        pages[page] = 1;
        return;
      }
    }
  }
};

}  // namespace

void copy_box(const KernelCall& call, const StridedCopy& copy) {
  Box box = merged(copy);
  const std::int64_t run = run_of(box, copy);
  if (run > 1) {
    box.shape[box.rank - 1] /= run;
    box.elements /= run;
    for (int d = 0; d < box.rank - 1; ++d) {
      box.from_strides[d] /= run;
      box.to_strides[d] /= run;
    }
  }
  if (run == 1 && copy.element_bytes == 2 && has_long_rows(box)) {
    copy_pieces<std::uint16_t>(call, box, copy);
    return;
  }
  switch (static_cast<std::size_t>(run) * copy.element_bytes) {
    case 1: copy_as<std::uint8_t>(call, box, copy); break;
    case 2: copy_as<std::uint16_t>(call, box, copy); break;
    case 4: copy_as<std::uint32_t>(call, box, copy); break;
    case 8: copy_as<std::uint64_t>(call, box, copy); break;
    case 16: copy_as<Sixteen>(call, box, copy); break;
    default: throw Error(ErrorCode::internal, "a copy of elements that have none of 1, 2, 4 and 8 bytes");
  }
}

void fill_elements(const KernelCall& call, void* data, std::int64_t count, std::size_t element_bytes,
                   std::uint64_t bits) {
  switch (element_bytes) {
    case 1: fill_as<std::uint8_t>(call, data, count, bits); break;
    case 2: fill_as<std::uint16_t>(call, data, count, bits); break;
    case 4: fill_as<std::uint32_t>(call, data, count, bits); break;
    case 8: fill_as<std::uint64_t>(call, data, count, bits); break;
    default: throw Error(ErrorCode::internal, "elements to fill have none of 1, 2, 4 and 8 bytes");
  }
}

void find_non_finite(const KernelCall& call, const TensorView& tensor, std::int32_t* finite) {
  switch (tensor.dtype) {
    case graph::DType::f32: find_in<std::uint32_t>(call, tensor, 0x7F800000U, finite); break;
    case graph::DType::f64: find_in<std::uint64_t>(call, tensor, 0x7FF0000000000000U, finite); break;
    case graph::DType::bf16: find_in<std::uint16_t>(call, tensor, 0x7F80U, finite); break;
    case graph::DType::f16: find_in<std::uint16_t>(call, tensor, 0x7C00U, finite); break;
    default: break;  // integers are finite
  }
}

void find_written(const KernelCall& call, const void* data, std::uint64_t bytes, std::uint32_t word,
                  std::uint8_t* pages) {
  for_each(call, static_cast<std::int64_t>((bytes + page_bytes - 1) / page_bytes),
           FindWritten{static_cast<const std::uint32_t*>(data), static_cast<std::int64_t>(bytes / 4), word, pages});
}

}  // namespace shardrun::device::cuda
